"""One registered function: admission of calls, deadlines, the idle clock, release. Its processes are `pool`'s.

Everything happens on the loop's thread, so that every decision here is atomic: admission at the cap, idleness, closing.
A call's bad end never leaves this file (L6); only replacements that fail again and again lose the registration.

  loading ──► ready ──► closing ──► gone          (close: from any state; `gone` is when nothing is left)
                └─────► lost ─────► gone
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Literal
from weakref import proxy

from runtimes.contract import messages as m
from runtimes.contract.deadlines import Deadlines
from runtimes.contract.limits import REPLACEMENTS_MAX, WORKER_WAIT_MAX_MS
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError
from runtimes.server.environment import remove_folders
from runtimes.server.language import Call, FunctionSpec, Language, Worker
from runtimes.server.logs import RunLog
from runtimes.server.pool import Pool, Wear
from runtimes.server.spawner import Spawner

State = Literal["loading", "ready", "closing", "lost"]


class Function:
    """Holds one epoch. `on_gone` is called once, when no process and no folder of it is left."""

    def __init__(
        self,
        *,
        spec: FunctionSpec,
        digest: str,
        concurrency: int,
        idle_timeout_ms: int | None,
        language: Language,
        spawner: Spawner,
        log: RunLog,
        wear: Wear,
        on_gone: Callable[[Function], None],
    ) -> None:
        self.spec = spec
        self.epoch = spec.epoch
        self.digest = digest
        self.registration_id = secrets.token_urlsafe(12)
        self.state: State = "loading"
        self.error: ErrorHead | None = None
        """Why it is lost, or why it did not load."""
        self.in_flight = 0
        loop = asyncio.get_running_loop()
        self.loaded: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._concurrency = concurrency
        self._idle_timeout_s = None if idle_timeout_ms is None else idle_timeout_ms / 1000
        self._log = log
        self._on_gone = on_gone
        self._pool = Pool(
            spec=spec, size=concurrency, language=language, spawner=spawner, log=log, owner=proxy(self), wear=wear
        )  # A proxy, since a function that is gone goes at once: in a cycle it waits for the garbage collector.
        self._waiting: deque[Call] = deque()
        self._deadlines: Deadlines[Call] = Deadlines(loop, self._deadline_passed)
        self._idle_since = time.monotonic()
        self._changed = asyncio.Event()
        self._drain_timer: asyncio.TimerHandle | None = None
        self._removing: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        return self.state in ("loading", "ready")

    @property
    def ending(self) -> bool:
        """It failed or was closed: it will be gone, and dropped, without anybody's doing."""
        return not self.open

    @property
    def workers(self) -> int:
        return len(self._pool)

    # --- registration

    async def load(self, timeout: float) -> None:
        """Start the first worker and wait until it has loaded the handler. Raises CallError; nothing is left then."""
        self._pool.want(0)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self.loaded)
        except TimeoutError:
            if not self.loaded.done():
                message = f"the handler did not load within {timeout:.1f} s"
                self._fail_load(ErrorHead(reason="RegistrationTimedOut", message=message))
        if self.error is not None:
            await asyncio.shield(self.gone)
            raise CallError(self.error)

    def _fail_load(self, error: ErrorHead) -> None:
        self.error = error
        self.close(drain_ms=0)

    # --- calls

    def invoke(self, call: Call) -> None:
        """Admit and dispatch a call; `call.answer` follows, exactly once. Raises CallError when it is not admitted."""
        if self.state != "ready":
            raise CallError(ErrorHead(reason=m.FAILED_PRECONDITION, message=f"the registration is {self.state}"))
        if self.in_flight >= self._concurrency:
            message = f"{self.in_flight} invocations are in flight; concurrency is {self._concurrency}"
            raise CallError(ErrorHead(reason="TooManyInvocations", message=message, retry_after_ms=1000))
        self.in_flight += 1
        worker = self._pool.take()
        if worker is not None:
            self._dispatch(worker, call)
            return
        wait_until = min(self._loop.time() + WORKER_WAIT_MAX_MS / 1000, call.deadline)
        call.timer = self._loop.call_at(wait_until, self._waited_too_long, call)
        self._waiting.append(call)
        self._pool.want(len(self._waiting))

    def _dispatch(self, worker: Worker, call: Call) -> None:
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        self._deadlines.set(call, call.deadline)
        worker.invoke(call)

    def _waited_too_long(self, call: Call) -> None:
        self._waiting.remove(call)
        self._pool.want(len(self._waiting))
        message = f"no worker became ready within {WORKER_WAIT_MAX_MS} ms or the deadline; the call did not run"
        self._end_call(call, None, ErrorHead(reason="WorkerStarting", message=message, retry_after_ms=1000))

    def _deadline_passed(self, call: Call) -> None:
        """The whole group goes first; the answer is given by `call_lost`, when it is gone."""
        call.overdue = True
        if call.worker is not None:
            call.worker.kill()

    def _end_call(self, call: Call, body: bytes | None, error: ErrorHead | None) -> None:
        """The one place where a slot is freed."""
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        self._deadlines.drop(call)
        call.worker = None
        self.in_flight -= 1
        if not self.in_flight:
            self._idle_since = time.monotonic()
        call.answer(call, body, error)

    # --- what the pool tells

    def worker_free(self) -> None:
        if self.state == "loading":
            self.state = "ready"
            self._idle_since = time.monotonic()
            self.loaded.set_result(None)
        if self._waiting and (worker := self._pool.take()) is not None:
            self._dispatch(worker, self._waiting.popleft())
            self._pool.want(len(self._waiting))

    def start_failed(self, error: ErrorHead, failures: int) -> None:
        if self.state == "loading":
            self._fail_load(error)
        elif self.state == "ready" and failures >= REPLACEMENTS_MAX:
            self.error = error
            self._end("lost")

    def call_answered(self, call: Call, body: bytes | None, error: ErrorHead | None) -> None:
        self._end_call(call, body, error)

    def call_lost(self, call: Call, worker: Worker) -> None:
        self._end_call(call, None, _why_lost(call, worker))

    def pool_empty(self) -> None:
        if self._removing is None:
            self._removing = self._loop.create_task(self._remove())

    # --- idle clock

    def idle_for(self) -> float:
        """Seconds since the last call finished; 0 while one is in flight."""
        return 0.0 if self.in_flight else time.monotonic() - self._idle_since

    def restart_idle(self) -> None:
        self._idle_since = time.monotonic()

    async def wait_for_change(self, timeout: float) -> None:
        """Return when it is no longer ready, or has been idle for its timeout, or after `timeout` seconds."""
        until = time.monotonic() + timeout
        while self.open and (left := until - time.monotonic()) > 0:
            if self._idle_timeout_s is not None:
                idle_left = self._idle_timeout_s - self.idle_for()
                if idle_left <= 0:
                    return
                left = min(left, idle_left)
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue

    # --- release

    def close(self, *, drain_ms: int | None) -> None:
        """Take no more calls, end a load, let calls in flight finish (at most `drain_ms`), then end every process."""
        if drain_ms is not None and not self.gone.done():
            if self._drain_timer is not None:
                self._drain_timer.cancel()
            self._drain_timer = self._loop.call_later(drain_ms / 1000, self._pool.kill_all)
        if self.open:
            self._end("closing")

    def _end(self, state: Literal["closing", "lost"]) -> None:
        if self.state == "loading":
            if self.error is None:
                message = "the epoch was closed while it was loading"
                self.error = ErrorHead(reason=m.FAILED_PRECONDITION, message=message)
            self.loaded.set_result(None)
        self.state = state
        self._changed.set()
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            message = f"the registration is {state}; the call did not run"
            self._end_call(call, None, ErrorHead(reason=m.FAILED_PRECONDITION, message=message))
        self._pool.finish()

    async def _remove(self) -> None:
        await asyncio.to_thread(remove_folders, self.spec.folders)
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self._deadlines.close()
        self._log.close()
        self._on_gone(self)
        self.gone.set_result(None)


def _why_lost(call: Call, worker: Worker) -> ErrorHead:
    if call.overdue:
        message = "the deadline passed; the worker's process group has been ended"
        return ErrorHead(reason="InvocationTimeout", message=message)
    if worker.killed:
        return ErrorHead(reason="OutcomeUnknown", message="the function was released while the call ran")
    code = worker.child.exit_code
    how = worker.child.failure or (f"signal {code - 128}" if code and code > 128 else f"exit code {code}")
    return ErrorHead(reason="WorkerCrashed", message=f"the worker process ended during the call: {how}")
