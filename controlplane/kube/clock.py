"""Clocks that shells are given. Code that decides never reads time itself; it gets it in an event.

`SystemClock` reads the machine's; `tests/kit` has one that moves by hand. Every constructor that needs time takes a
`Clock`.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is written down, and a monotonic clock that also runs while the machine sleeps."""

    def now_us(self) -> int:
        """Unix time in microseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds of CLOCK_BOOTTIME: it never goes back, and counts time in which the machine stood still."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)
