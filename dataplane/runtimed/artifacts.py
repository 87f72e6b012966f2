"""Artifacts of this Pod's Runs: stored before the task's end is written or the call is answered, removed with the Run.

The Runtime Server hands over a folder and never sees a credential; this process stores what is in it. A call that left
nothing costs nothing here. Removal follows the Run's object: at once by each Pod that sees it go, and by a sweep at
start for what went while no Pod was there. Next: `jobs.py` and `serving.py` store, `daemon.py` forgets.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from dataplane.runtimed.artifactfiles import ArtifactsRefused, close_files, open_files
from dataplane.runtimed.artifactstore import Store, UploadFailed, UploadTimeout
from dataplane.runtimed.workdir import WorkDir, remove_tree
from runtimes.contract.messages import ArtifactRef
from statemachine.run import Epoch

UPLOADS_MAX: Final = 4  # at once in one Pod, each in a thread: more would only share the same network
TASK_UPLOAD_MAX_S: Final = 240.0  # 1 GiB at 5 MiB/s; within the grace of a Pod that drains

_log = logging.getLogger(__name__)


class Artifacts:
    """Shared by all Runs of the Pod. Without a store everything that is left is an UploadFailed."""

    def __init__(self, workdir: WorkDir, store: Store | None) -> None:
        self._workdir = workdir
        self._store = store
        self._threads = ThreadPoolExecutor(UPLOADS_MAX, "artifacts")  # starts none before it is used
        self._tasks: set[asyncio.Task[None]] = set()

    async def keep(self, epoch: Epoch, folder: str, *, timeout: float) -> tuple[ArtifactRef, ...]:
        """Store the files of one folder that the Runtime Server has handed over. It stays: a task's is stored again
        when this process restarts before the result is written.

        Raises ArtifactsRefused (the code's fault), UploadFailed or UploadTimeout.
        """
        if self._store is None:
            raise UploadFailed("the Runtime has no artifactStore")
        path = self._workdir.artifacts(epoch.run_uid, epoch.attempt, folder)
        if path is None:
            raise UploadFailed(f"the Runtime Server named no folder: {folder[:64]!r}")
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, self._keep, self._store, epoch, folder)
        try:
            async with asyncio.timeout(timeout):
                refs = await asyncio.shield(work)
        except TimeoutError as error:
            work.add_done_callback(_ignored)
            raise UploadTimeout(f"the artifacts were not stored within {timeout:.1f} s") from error
        except OSError as error:
            raise UploadFailed(f"the artifacts cannot be read: {error.strerror or error}") from error
        return refs

    async def drop(self, epoch: Epoch, folder: str) -> None:
        """Remove a folder that is not needed any more; the others go with the epoch."""
        path = self._workdir.artifacts(epoch.run_uid, epoch.attempt, folder)
        if path is not None:
            await remove_tree(path)

    def _keep(self, store: Store, epoch: Epoch, folder: str) -> tuple[ArtifactRef, ...]:
        path = self._workdir.artifacts(epoch.run_uid, epoch.attempt, folder)
        assert path is not None, "checked before"
        files = open_files(path)
        try:
            return tuple(store.put(epoch.run_uid, f"{epoch.attempt}/{folder}", left) for left in files)
        finally:
            close_files(files)

    # --- the Run is gone

    def forget(self, run_uid: str) -> None:
        """Remove what is stored of a Run whose object is gone, in the background."""
        if self._store is not None:
            self._spawn(self._forget(self._store, run_uid))

    def sweep(self, living: Callable[[], Awaitable[Collection[str]]]) -> None:
        """Remove what is stored of Runs that are gone. `living` reads their UIDs from the API itself.

        The store is listed first: a Run that is missing from a later list is gone, however new its artifacts are.
        """
        if self._store is not None:
            self._spawn(self._sweep(self._store, living))

    async def _sweep(self, store: Store, living: Callable[[], Awaitable[Collection[str]]]) -> None:
        loop = asyncio.get_running_loop()
        try:
            stored = await loop.run_in_executor(self._threads, store.runs)
            gone = stored.difference(await living()) if stored else ()
        except UploadFailed as error:
            _log.warning("%s", error)
            return
        for run_uid in gone:
            await self._forget(store, run_uid)

    async def _forget(self, store: Store, run_uid: str) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, store.remove, run_uid)
        except UploadFailed as error:
            _log.warning("%s; the next start tries again", error, extra={"run": run_uid})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("artifacts were not removed", exc_info=task.exception())

    async def stop(self) -> None:
        """End what goes on in the background."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _ignored(work: "asyncio.Future[tuple[ArtifactRef, ...]]") -> None:
    if not work.cancelled():
        work.exception()


__all__ = ["Artifacts", "ArtifactsRefused", "UploadFailed", "UploadTimeout"]
