"""One process of the system as the supervisor keeps it: its pid, its ends, and when it may start again.

Lives here: the restart policy. May not live here: forks and waiting (`supervisor` calls it next).
"""

import contextlib
import os
import signal
import time
from typing import Final

from controlplane.embedded import control, processes
from controlplane.embedded.topology import BOOTSTRAP, ProcessSpec

RESTART_FIRST_SECONDS: Final = 0.2
RESTART_MAX_SECONDS: Final = 5.0
"""The first restart is immediate, then 0.2 s doubling to 5 s: a killed process is back well within 10 s."""

RESTART_RESET_SECONDS: Final = 10.0
"""A process that ran this long starts with a clean slate."""


class Member:
    """The life of one process. `next_start` is a monotonic second, None while it runs or is not to start again."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.next_start: float | None = 0.0
        self.failures = 0
        self._restarts = 0
        self._started_us = 0
        self._started_at = 0.0
        self._last_code: int | None = None

    def due(self, now: float) -> bool:
        """It should run and its backoff is over."""
        return self.next_start is not None and self.next_start <= now

    def started(self, pid: int) -> None:
        """It runs as `pid`."""
        self.pid = pid
        self.next_start = None
        self._started_at = time.monotonic()
        self._started_us = time.time_ns() // 1_000

    def ended(self, code: int, now: float) -> None:
        """It ended. Bootstrap is done when it succeeds; everything else starts again."""
        self._last_code = code
        self.pid = 0
        if self.spec.name == BOOTSTRAP and code == 0:
            return
        if now - self._started_at >= RESTART_RESET_SECONDS:
            self.failures = 0
        self._restarts += 1
        self.failed(now)

    def failed(self, now: float) -> None:
        """Another try after the backoff."""
        self.failures += 1
        doublings = min(self.failures - 2, 16)
        delay = 0.0 if self.failures == 1 else min(RESTART_MAX_SECONDS, RESTART_FIRST_SECONDS * 2**doublings)
        self.next_start = now + delay

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it runs (an unreaped child keeps its pid, so it hits nobody else)."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def state(self) -> control.ProcessState:
        """For `DIR/status.json`."""
        return control.ProcessState(
            name=self.spec.name,
            kind="process",
            state="running" if self.pid else ("stopped" if self.next_start is None else "waiting"),
            pid=self.pid,
            start_ticks=(processes.start_time(self.pid) or 0) if self.pid else 0,
            started_us=self._started_us,
            restarts=self._restarts,
            last_exit_code=self._last_code,
        )
