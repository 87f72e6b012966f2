"""The worker processes of one function: started as calls need them, replaced, recycled, ended.

The pool knows processes, not calls that wait or epochs (that is `function`). A worker is free, busy, starting, or
ending; it is handed out by `take` and comes back by itself when its call is answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

import msgspec

from runtimes.contract.limits import REPLACEMENTS_MAX
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError
from runtimes.server.language import Call, FunctionSpec, Language, Worker
from runtimes.server.logs import RunLog
from runtimes.server.spawner import Spawner

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
"""A replacement that has not loaded by then has failed, as a registration would have."""
RETRY_DELAY_S: Final = 0.1
"""Before the second replacement in a row, and five times that before the third: what was short may be there again."""
SPARE_IDLE_S: Final = 60.0
"""Workers beyond the first that nobody needed for so long are ended."""
RECYCLE_CHECK_CALLS: Final = 256
RECYCLE_CHECK_S: Final = 1.0
"""After its first call, then after so many calls or so long, a worker is looked at: reading its size costs 20 µs."""
WORKER_CALLS_MAX: Final = 1 << 20
WORKER_AGE_MAX_S: Final = 24 * 3600.0
WORKER_RSS_MAX_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Beyond any of these a worker is replaced when its call is answered: what leaks slowly is bounded."""
UNTRIED_DEATHS_MAX: Final = 1 + REPLACEMENTS_MAX
"""Workers in a row that loaded and died without having answered a call: one, and the replacements that failed."""
UNTRIED_DELAY_S: Final = 0.5
"""The first of those is replaced at once, the second after this, the third after ten times this: code that dies by
itself soon after it was loaded costs the API a write now and then, not twenty a second."""


class Wear(msgspec.Struct, frozen=True):
    """When a worker is worn."""

    calls: int = WORKER_CALLS_MAX
    age_s: float = WORKER_AGE_MAX_S
    rss_bytes: int = WORKER_RSS_MAX_BYTES

    def reached(self, worker: Worker) -> bool:
        """Looks at the process."""
        old = time.monotonic() - worker.born > self.age_s
        return old or worker.calls >= self.calls or worker.rss_bytes > self.rss_bytes


class PoolOwner(Protocol):
    """Who has the calls."""

    def worker_free(self) -> None:
        """A worker may be taken."""

    def start_failed(self, error: ErrorHead, failures: int) -> None:
        """A worker did not start, the `failures`th in a row. The pool tries again unless `finish` is called."""

    def call_answered(self, call: Call, body: bytes | None, error: ErrorHead | None) -> None: ...

    def call_lost(self, call: Call, worker: Worker) -> None:
        """Its worker has ended, and so has the whole group."""

    def pool_empty(self) -> None:
        """After `finish`: no process is left."""


class Pool:
    """At most `size` workers. Implements `language.WorkerListener`."""

    def __init__(
        self,
        *,
        spec: FunctionSpec,
        size: int,
        language: Language,
        spawner: Spawner,
        log: RunLog,
        owner: PoolOwner,
        wear: Wear,
    ) -> None:
        self._spec = spec
        self._size = size
        self._language = language
        self._spawner = spawner
        self._log = log
        self._owner = owner
        self._wear = wear
        self._loop = asyncio.get_running_loop()
        self._workers: dict[Worker, asyncio.TimerHandle | None] = {}
        self._free: list[Worker] = []
        self._failures = 0
        self._untried_deaths = 0
        self._finishing = False
        self._wanted = 0
        self._retry_timer: asyncio.TimerHandle | None = None
        self._spare_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._workers)

    def take(self) -> Worker | None:
        """A free worker, the one used last first; None: `want` one."""
        return self._free.pop() if self._free else None

    def want(self, calls: int) -> None:
        """See to it that there is a worker, or one on its way, for so many waiting calls, and at least one at all."""
        self._wanted = calls
        if self._finishing or self._retry_timer is not None:
            return
        live = [worker for worker in self._workers if worker.live]
        starting = sum(1 for worker in live if not worker.ready)
        missing = max(calls, 0 if live else 1) - starting
        for _ in range(min(missing, self._size - len(live))):
            self._start()

    def finish(self) -> None:
        """Start no more, end every worker that has no call; those that have one are ended when it is over."""
        self._finishing = True
        for timer in (self._retry_timer, self._spare_timer):
            if timer is not None:
                timer.cancel()
        self._retry_timer = self._spare_timer = None
        self._free.clear()
        for worker in list(self._workers):
            if worker.call is None:
                worker.kill()
        self._report_empty()

    def kill_all(self) -> None:
        """End every worker, whatever it does."""
        for worker in list(self._workers):
            worker.kill()

    # --- starting

    def _start(self) -> None:
        if self._finishing:
            return  # The one before failed for good.
        try:
            worker = self._language.start_worker(self._spec, self._spawner, self._log, self)
        except CallError as error:
            self._failed(error.error)
            return
        self._workers[worker] = self._loop.call_later(START_TIMEOUT_S, self._start_timed_out, worker)

    def _start_timed_out(self, worker: Worker) -> None:
        worker.kill()
        self._failed(ErrorHead(reason="ImportFailed", message=f"loading took longer than {START_TIMEOUT_S:g} s"))

    def _failed(self, error: ErrorHead) -> None:
        self._failures += 1
        extra = {"run": self._spec.epoch.run_uid, "attempt": self._spec.epoch.attempt, "reason": error.reason}
        logger.warning("a worker did not start", extra=extra)
        self._owner.start_failed(error, self._failures)
        self._wait(RETRY_DELAY_S * 5 ** (self._failures - 1))

    def _wait(self, delay_s: float) -> None:
        """Start no worker for so long."""
        if not self._finishing and self._retry_timer is None:
            self._retry_timer = self._loop.call_later(delay_s, self._retry)

    def _retry(self) -> None:
        self._retry_timer = None
        self.want(self._wanted)

    # --- what workers tell

    def worker_ready(self, worker: Worker) -> None:
        timer = self._workers[worker]
        if timer is not None:
            timer.cancel()
            self._workers[worker] = None
        self._failures = 0
        self._release(worker)

    def worker_failed(self, worker: Worker, error: ErrorHead) -> None:
        self._failed(error)

    def worker_answered(self, worker: Worker, call: Call, body: bytes | None, error: ErrorHead | None) -> None:
        self._untried_deaths = 0
        self._owner.call_answered(call, body, error)
        if worker.live:
            self._release(worker)

    def worker_broken(self, worker: Worker) -> None:
        """It is ending by itself: no call may go there any more, and its replacement need not wait for its end."""
        if worker in self._free:
            self._free.remove(worker)
            if worker.calls == 0 and time.monotonic() - worker.born < SPARE_IDLE_S:
                self._untried_deaths += 1
                if self._untried_deaths > 1:
                    self._wait(UNTRIED_DELAY_S * 10 ** (self._untried_deaths - 2))
            if self._untried_deaths >= UNTRIED_DEATHS_MAX:
                message = f"{self._untried_deaths} workers in a row died before their first call"
                self._owner.start_failed(ErrorHead(reason="WorkerCrashed", message=message), REPLACEMENTS_MAX)
            self.want(self._wanted)

    def worker_ended(self, worker: Worker) -> None:
        timer = self._workers.pop(worker, None)
        if timer is not None:
            timer.cancel()
        if worker in self._free:
            self._free.remove(worker)
        call, worker.call = worker.call, None
        if call is not None:
            self._owner.call_lost(call, worker)
        self.want(self._wanted)
        self._report_empty()

    def _report_empty(self) -> None:
        if self._finishing and not self._workers:
            self._owner.pool_empty()

    # --- recycling

    def _release(self, worker: Worker) -> None:
        if self._finishing or self._worn(worker):
            worker.kill()
            self.want(self._wanted)
            return
        self._free.append(worker)
        self._owner.worker_free()
        if len(self._free) > 1 and self._spare_timer is None:
            self._spare_timer = self._loop.call_later(SPARE_IDLE_S, self._end_spares, len(self._free) - 1)

    def _worn(self, worker: Worker) -> bool:
        if worker.calls == 0:
            return False
        if worker.calls < self._wear.calls and worker.calls % RECYCLE_CHECK_CALLS:
            now = time.monotonic()
            if now - worker.looked_at < RECYCLE_CHECK_S:
                return False
            worker.looked_at = now
        return self._wear.reached(worker)

    def _end_spares(self, count: int) -> None:
        """End at most `count` workers, from the bottom of the stack: those have been free since the timer began."""
        self._spare_timer = None
        count = min(count, len(self._free) - 1)
        spares, self._free = self._free[:count], self._free[count:]
        for worker in spares:
            worker.kill()
