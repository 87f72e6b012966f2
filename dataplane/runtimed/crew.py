"""The workers of a Pod: one for each Run that is here, made when it comes and gone when nothing of it is left.

Here: their tasks, what happens when one fails, and how late watch lines about a Run that has left are told from news.
Next: `daemon.py` says whose a Run is.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from controlplane.kube.types import RunObject
from dataplane.runtimed.ports import Pod, Tools
from dataplane.runtimed.view import not_newer
from dataplane.runtimed.worker import Worker
from statemachine.run import RunUID

LEFT_REMEMBERED_MAX: Final = 1_024  # Runs that ended here; a watch is never this far behind
AGAIN_S: Final = 1.0  # after a defect ended a worker

_log = logging.getLogger(__name__)


class Crew:
    """`on_left(uid)` is called when a worker has ended, `on_failed(uid)` some time after one raised."""

    def __init__(self, pod: Pod, *, on_left: Callable[[RunUID], None], on_failed: Callable[[RunUID], None]) -> None:
        self.workers: dict[RunUID, Worker] = {}
        self._pod = pod
        self._on_left = on_left
        self._on_failed = on_failed
        self._tasks: dict[RunUID, asyncio.Task[None]] = {}
        self._left: OrderedDict[RunUID, str] = OrderedDict()
        self._stopping = False

    def start(self, uid: RunUID, tools: Tools, *, starting: bool = False) -> Worker:
        """A worker for a Run that has none."""
        assert uid not in self.workers, "one worker a Run"
        worker = Worker(uid, tools, self._pod, starting=starting)
        self.workers[uid] = worker
        task = asyncio.get_running_loop().create_task(worker.run(), name=f"run {uid}")
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._ended(uid, worker, tools, done))
        return worker

    def is_news(self, obj: RunObject) -> bool:
        """Whether this object is newer than what the Run's last worker had seen when it ended."""
        seen = self._left.get(RunUID(obj.metadata.uid))
        return seen is None or not not_newer(obj.metadata.resource_version, seen)

    def wake(self) -> None:
        """Something that concerns every Run may have changed."""
        for worker in self.workers.values():
            worker.wake()

    async def stop(self) -> None:
        """End all of them; nothing is written."""
        self._stopping = True
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _ended(self, uid: RunUID, worker: Worker, tools: Tools, task: asyncio.Task[None]) -> None:
        del self.workers[uid], self._tasks[uid]
        worker.jobs.let_go()
        if self._stopping or task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("the worker of a Run failed and is made anew", exc_info=error, extra={"run": uid})
            tools.call_later(AGAIN_S, lambda: self._on_failed(uid))
            return
        if worker.left_at:
            self._left[uid] = worker.left_at
            self._left.move_to_end(uid)
            while len(self._left) > LEFT_REMEMBERED_MAX:
                self._left.popitem(last=False)
        self._on_left(uid)
