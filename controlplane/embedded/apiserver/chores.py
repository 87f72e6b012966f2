"""Work that follows commits: small jobs, one at a time, after the response that caused them.

Lives here: the queue. May not live here: the jobs (`collector.py`, `namespaces.py`, `custom.py`, `upkeep.py` add them).
`main.py` runs it as the one background task.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable

from controlplane.embedded.apiserver import errors, limits

_log = logging.getLogger(__name__)

Job = Callable[[], None]


class Chores:
    """A queue of jobs by key: a job that is already waiting is not added again. Nothing runs while it is empty."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, Job] = {}
        self._failed: dict[Hashable, Job] = {}
        self._wake = asyncio.Event()

    def add(self, key: Hashable, job: Job) -> None:
        self._jobs.setdefault(key, job)
        self._wake.set()

    @property
    def idle(self) -> bool:
        return not self._jobs and not self._failed

    async def run(self) -> None:
        """Work for ever. A job that is refused is tried again after a pause; an error in our code is logged once."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            while self._jobs:
                key = next(iter(self._jobs))
                self._attempt(key, self._jobs.pop(key))
                await asyncio.sleep(0)
            self._wake.clear()
            if self._failed:
                loop.call_later(limits.CHORE_RETRY_SECONDS, self._retry)

    def _attempt(self, key: Hashable, job: Job) -> None:
        try:
            job()
        except errors.ApiError as error:
            if error.code == 507:
                self._failed[key] = job
            else:
                _log.warning("chore refused", extra={"chore": str(key), "error": error.message})
        except Exception:
            _log.exception("chore failed", extra={"chore": str(key)})

    def _retry(self) -> None:
        failed, self._failed = self._failed, {}
        for key, job in failed.items():
            self.add(key, job)
