"""The short tasks of the control plane in one place, so that none is forgotten and none dies unseen.

Components spawn here what must await; `main` waits in `watch`. A task that raises has met a defect of ours: expected
failures are handled inside.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn


class Tasks:
    """Tasks that live until they are done, or until `close`. Made inside a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[NoReturn] = self._loop.create_future()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start `work` and keep it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def watch(self) -> NoReturn:
        """Ends only by cancellation, or by raising what a task died of."""
        await self._broken
        raise AssertionError("a broken task has an exception")

    async def close(self) -> None:
        """Cancel what still runs and wait until it has ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._broken.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._broken.done():
            self._broken.set_exception(error)
