"""Many deadlines, one timer: for calls that almost always end before theirs.

Here: the times of what is pending, and one timer of the loop for the earliest that was ever set. Setting and dropping
one is a dict's work; a timer of the loop for each call would cost more than the rest of its bookkeeping.
Next: `mux` has one of these per connection, a Runtime Server one per function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from math import inf
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

EARLY_S: Final = 0.001
"""A loop's timers may ring this much before their time."""


class Deadlines(Generic[K]):
    """`expired(key)` is called once for each key that is not dropped before its time, never before that time by more
    than EARLY_S. The keys that are due together are all forgotten before the first call."""

    __slots__ = ("_at", "_expired", "_loop", "_rings_at", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[K], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._at: dict[K, float] = {}
        self._rings_at = inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: K, at: float) -> None:
        """Expire `key` at loop time `at`, instead of when it was to before."""
        self._at[key] = at
        if at < self._rings_at:
            self._arm(at)

    def drop(self, key: K) -> None:
        """It has ended; of one that is not there nothing happens. The timer stays as it is."""
        self._at.pop(key, None)

    def close(self) -> None:
        """Forget all, and whom to tell, who mostly holds this: no cycle is left for the garbage collector."""
        self._at.clear()
        self._arm(inf)
        self._expired = _nobody

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = at
        self._timer = None if at == inf else self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        until = self._loop.time() + EARLY_S
        due = [key for key, at in self._at.items() if at <= until]
        for key in due:
            del self._at[key]
        self._timer = None
        self._arm(min(self._at.values(), default=inf))
        for key in due:
            self._expired(key)


def _nobody(key: Hashable) -> None:
    """Told after `close`: nothing is pending then."""
