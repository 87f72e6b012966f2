"""Alarms on the wall clock and on the monotonic one, armed by a `CallLater` that tests replace.

One alarm, one armed call; nothing ticks. An alarm that rings early (the clock was set back) arms itself again.
Next: `worker.py` (registration, lifetime, idleness) and `lease.py`.
"""

from collections.abc import Callable
from typing import Final, Protocol

from controlplane.kube.clock import Clock

ALARM_MAX_S: Final = 3_600.0  # a wall clock that is set is noticed within an hour


class Handle(Protocol):
    """An armed call that can be taken back."""

    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Handle]
"""Arms a call in that many seconds; `loop.call_later` is one."""


class Alarm:
    """Rings once at a moment of the wall clock (Unix microseconds); setting it again replaces the moment."""

    def __init__(self, clock: Clock, call_later: CallLater, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._call_later = call_later
        self._ring = ring
        self._due_us = 0
        self._handle: Handle | None = None

    @property
    def armed(self) -> bool:
        """Whether it has still to ring."""
        return self._handle is not None

    def set(self, due_us: int) -> None:
        """Ring at `due_us`; in the past: as soon as the loop turns."""
        self.drop()
        self._due_us = due_us
        self._arm()

    def drop(self) -> None:
        """Do not ring."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        delay = max(0.0, (self._due_us - self._clock.now_us()) / 1_000_000)
        self._handle = self._call_later(min(delay, ALARM_MAX_S), self._rung)

    def _rung(self) -> None:
        self._handle = None
        if self._clock.now_us() < self._due_us:
            self._arm()
        else:
            self._ring()
