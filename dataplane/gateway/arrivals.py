"""Request bodies that are not all here: how many there may be and how large, of one caller, of one Run and in all.

Here: who makes room when there is none. A body that comes slower than any body may, else one of the greediest caller,
is given up for the body of a caller that has less; nobody waits. Bytes count as they arrive, so who only announces a
body takes a place and no memory. Not here: how many bytes all bodies may have (`ledger`), reading them (`exchange`).
Next: `invoke` opens an arrival for a body that it has to wait for.
"""

from collections.abc import Callable
from typing import Final

from controlplane.kube.clock import Clock
from dataplane.gateway.dispatch import reject
from dataplane.gateway.ledger import BodyLedger
from dataplane.gateway.limits import (
    ARRIVING_MAX,
    ARRIVING_MAX_BYTES,
    ARRIVING_RATE_MIN,
    ARRIVING_SLOW_S,
    CALLER_ARRIVING_MAX,
    CALLER_ARRIVING_MAX_BYTES,
    RUN_ARRIVING_MAX,
    RUN_ARRIVING_MAX_BYTES,
)
from statemachine.reasons import Reason
from statemachine.run import RunUID

_GIVEN_UP: Final = "the rest of the body came too late: others need its room in this gateway"


class Arrival:
    """One body on its way. `give_up` is called when it has to make room: what came of it is dropped then."""

    __slots__ = ("caller", "give_up", "given_up", "run", "since_s", "size")

    def __init__(self, caller: str, run: RunUID, since_s: float, give_up: Callable[[], None]) -> None:
        self.caller = caller
        self.run = run
        self.since_s = since_s
        self.give_up = give_up
        self.given_up = False
        self.size = 0
        """Bytes of it that are in the ledger: whoever opened it gives them back when its call is over."""

    def slow(self, now_s: float) -> bool:
        """It will not be whole in time, or was announced and does not come."""
        age_s = now_s - self.since_s
        return age_s >= ARRIVING_SLOW_S and self.size < age_s * ARRIVING_RATE_MIN


class _Pile:
    """The bodies of one caller, oldest first."""

    __slots__ = ("arrivals", "size")

    def __init__(self) -> None:
        self.arrivals: dict[Arrival, None] = {}
        self.size = 0


class _Group:
    """The bodies of one Run, or all of them, by caller."""

    __slots__ = ("count", "piles", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.piles: dict[str, _Pile] = {}

    def add(self, arrival: Arrival) -> None:
        self.piles.setdefault(arrival.caller, _Pile()).arrivals[arrival] = None
        self.count += 1

    def grow(self, arrival: Arrival, more: int) -> None:
        self.piles[arrival.caller].size += more
        self.size += more

    def remove(self, arrival: Arrival) -> None:
        pile = self.piles[arrival.caller]
        del pile.arrivals[arrival]
        pile.size -= arrival.size
        self.size -= arrival.size
        self.count -= 1
        if not pile.arrivals:
            del self.piles[arrival.caller]


Measure = Callable[[_Pile], int]


def _count(pile: _Pile) -> int:
    return len(pile.arrivals)


def _size(pile: _Pile) -> int:
    return pile.size


class Arrivals:
    """All bodies on their way in this process. Whoever begins one ends it once."""

    def __init__(self, bodies: BodyLedger, clock: Clock) -> None:
        self._bodies = bodies
        self._clock = clock
        self._all = _Group()
        self._runs: dict[RunUID, _Group] = {}

    def __len__(self) -> int:
        return self._all.count

    def begin(self, caller: str, run: RunUID, give_up: Callable[[], None]) -> Arrival:
        """A place for one more. Raises Rejected when nobody makes room for it."""
        arrival = Arrival(caller, run, self._clock.monotonic(), give_up)
        own = self._all.piles.get(caller)
        if own is not None and _count(own) >= CALLER_ARRIVING_MAX and not self._slow_goes(own, arrival):
            reject(Reason.OVERLOADED, f"{CALLER_ARRIVING_MAX} bodies of the caller are on their way to this gateway")
        group = self._runs.get(run)
        if group is not None and group.count >= RUN_ARRIVING_MAX and not self._make_room(group, arrival, _count):
            reject(Reason.TOO_MANY_INVOCATIONS, f"{RUN_ARRIVING_MAX} bodies of calls of the Run are on their way")
        if self._all.count >= ARRIVING_MAX and not self._make_room(self._all, arrival, _count):
            reject(Reason.OVERLOADED, f"{ARRIVING_MAX} bodies are on their way to this gateway")
        self._runs.setdefault(run, _Group()).add(arrival)
        self._all.add(arrival)
        return arrival

    def arrived(self, arrival: Arrival, size: int) -> None:
        """So much of it is in memory now. Raises Rejected when it had to make room, or finds none."""
        if arrival.given_up:
            reject(Reason.OVERLOADED, _GIVEN_UP)
        more, own = size - arrival.size, self._all.piles[arrival.caller]
        while own.size + more > CALLER_ARRIVING_MAX_BYTES:
            if not self._slow_goes(own, arrival, holding=True):
                reject(Reason.OVERLOADED, f"{CALLER_ARRIVING_MAX_BYTES} bytes of the caller's bodies are on their way")
        group = self._runs[arrival.run]
        while group.size + more > RUN_ARRIVING_MAX_BYTES:
            if not self._make_room(group, arrival, _size):
                reject(Reason.TOO_MANY_INVOCATIONS, f"{RUN_ARRIVING_MAX_BYTES} bytes of the Run's bodies are coming")
        while self._all.size + more > ARRIVING_MAX_BYTES or not self._bodies.take(more):
            if not self._make_room(self._all, arrival, _size):
                reject(Reason.OVERLOADED, f"{self._bodies.bytes} bytes of bodies are in this gateway")
        group.grow(arrival, more)
        self._all.grow(arrival, more)
        arrival.size = size

    def end(self, arrival: Arrival) -> None:
        """It is whole, or nobody waits for it any more. Its bytes stay in the ledger, which their owner pays back."""
        if arrival.given_up:
            return
        self._all.remove(arrival)
        group = self._runs[arrival.run]
        group.remove(arrival)
        if not group.count:
            del self._runs[arrival.run]

    def _make_room(self, group: _Group, arrival: Arrival, measure: Measure) -> bool:
        """One of the greediest caller's goes: if it is slow, or if that caller has more than the one of `arrival`."""
        if not group.piles:
            return False
        greediest, own = max(group.piles.values(), key=measure), group.piles.get(arrival.caller)
        holding = measure is _size
        if self._slow_goes(greediest, arrival, holding=holding):
            return True
        if greediest is own or measure(greediest) <= (measure(own) if own is not None else 0):
            return False
        # None is slow: the last has cost least.
        return self._goes(next((one for one in reversed(greediest.arrivals) if one.size or not holding), None))

    def _slow_goes(self, pile: _Pile, arrival: Arrival, *, holding: bool = False) -> bool:
        """The oldest slow one of the pile goes, but not `arrival`; of those that have bytes when `holding`."""
        now_s = self._clock.monotonic()
        slow = (one for one in pile.arrivals if one.slow(now_s) and one is not arrival and (one.size or not holding))
        return self._goes(next(slow, None))

    def _goes(self, arrival: Arrival | None) -> bool:
        if arrival is None:
            return False
        self.end(arrival)
        arrival.given_up = True
        self._bodies.give(arrival.size)
        arrival.size = 0
        arrival.give_up()
        return True
