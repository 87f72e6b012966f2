"""Timers of the control plane: `Timers` for moments on the wall clock, `Vigil` for time that this process was awake.

Both arm one alarm for the earliest deadline and none while they wait for nothing. Alarms are asyncio's `call_later`, or
a test's; deadlines are compared with the `Clock`, so that neither a late alarm nor a stepped clock fires one too early.
"""

import heapq
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from controlplane.kube.clock import Clock

TICK_S: Final = 1.0  # how precisely a standstill is noticed; ticks cost next to nothing, and come only while watching
TICK_LATE_MAX_S: Final = 1.0  # a tick that comes later than this ended a standstill, not an ordinary delay
ALARM_MAX_S: Final = 3_600.0  # a wall clock that is set back or forth is noticed within an hour
STALE_ENTRIES_MIN: Final = 64  # dropped deadlines are swept out once they outnumber the live ones by this many


class Alarm(Protocol):
    """An armed call that can be taken back."""

    def cancel(self) -> None:
        """Do not call any more."""
        ...


CallLater = Callable[[float, Callable[[], None]], Alarm]
"""Arms a call in that many seconds; `loop.call_later` is one."""


class _Deadlines:
    """Deadlines by key, at most one each: a heap whose dropped entries are skipped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Hashable]] = []
        self._live: dict[Hashable, tuple[int, Callable[[], None]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._live

    def put(self, key: Hashable, due: int, fire: Callable[[], None]) -> None:
        self._count += 1
        self._live[key] = (self._count, fire)
        heapq.heappush(self._heap, (due, self._count, key))
        if len(self._heap) > 2 * len(self._live) + STALE_ENTRIES_MIN:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)

    def drop(self, key: Hashable) -> None:
        self._live.pop(key, None)

    def earliest(self) -> int | None:
        while self._heap and not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now: int) -> list[Callable[[], None]]:
        fired = []
        while (due := self.earliest()) is not None and due <= now:
            _, _, key = heapq.heappop(self._heap)
            fired.append(self._live.pop(key)[1])
        return fired

    def clear(self) -> None:
        self._heap.clear()
        self._live.clear()

    def _is_live(self, entry: tuple[int, int, Hashable]) -> bool:
        live = self._live.get(entry[2])
        return live is not None and live[0] == entry[1]


class Timers:
    """Calls at moments of the wall clock (Unix microseconds), one per key. A moment that has passed fires at once."""

    def __init__(self, clock: Clock, call_later: CallLater) -> None:
        self._clock = clock
        self._call_later = call_later
        self._deadlines = _Deadlines()
        self._alarm: Alarm | None = None
        self._armed_us = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: Hashable, due_us: int, fire: Callable[[], None]) -> None:
        """Call `fire` at `due_us`, in place of an earlier call for this key."""
        self._deadlines.put(key, due_us, fire)
        self._arm()

    def drop(self, key: Hashable) -> None:
        """Forget the call for this key, if there is one."""
        self._deadlines.drop(key)
        self._arm()

    def close(self) -> None:
        """Forget all."""
        self._deadlines.clear()
        self._arm()

    def _arm(self) -> None:
        due_us = self._deadlines.earliest()
        if due_us is None:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            return
        if self._alarm is not None:
            if self._armed_us == due_us:
                return
            self._alarm.cancel()
        delay_s = max(0.0, (due_us - self._clock.now_us()) / 1_000_000)
        self._armed_us = due_us
        self._alarm = self._call_later(min(delay_s, ALARM_MAX_S), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        for fire in self._deadlines.take_due(self._clock.now_us()):
            fire()
        self._arm()


class Vigil:
    """A stopwatch that counts only time in which this process was awake, and calls after spans of it, one per key.

    While anything is watched it wakes at least once a second. A wake that comes more than a second late ended a
    standstill (of the machine, or of this process): nothing of that gap is counted. So what is decided after a span of
    silence was decided by somebody who would have heard.
    """

    def __init__(self, clock: Clock, call_later: CallLater) -> None:
        self._clock = clock
        self._call_later = call_later
        self._deadlines = _Deadlines()
        self._alarm: Alarm | None = None
        self._attended_us = 0
        self._looked_at = clock.monotonic()

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._deadlines

    def attended_ms(self) -> int:
        """Milliseconds attended so far. Only differences mean anything, and only while something is watched between."""
        self._look()
        return self._attended_us // 1_000

    def watch(self, key: Hashable, after_ms: int, ring: Callable[[], None]) -> None:
        """Call `ring` once `after_ms` have been attended from now, in place of an earlier call for this key."""
        self._look()
        self._deadlines.put(key, self._attended_us + after_ms * 1_000, ring)
        self._arm()

    def drop(self, key: Hashable) -> None:
        """Forget the call for this key, if there is one."""
        self._deadlines.drop(key)
        if not self._deadlines and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def close(self) -> None:
        """Forget all."""
        self._deadlines.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _look(self) -> None:
        now = self._clock.monotonic()
        elapsed_s = now - self._looked_at
        self._looked_at = now
        if elapsed_s <= TICK_S + TICK_LATE_MAX_S:
            self._attended_us += round(elapsed_s * 1_000_000)

    def _arm(self) -> None:
        due_us = self._deadlines.earliest()
        if due_us is None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        wait_s = max(0.0, (due_us - self._attended_us) / 1_000_000)
        self._alarm = self._call_later(min(wait_s, TICK_S), self._tick)

    def _tick(self) -> None:
        self._alarm = None
        self._look()
        for ring in self._deadlines.take_due(self._attended_us):
            ring()
        self._arm()
