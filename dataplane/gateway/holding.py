"""Calls that wait for a fact: woken by the feed, bounded in time and number. And how many calls one Run may have.

Here: who waits for which Run, and how many may. Not here: whether to wait (`routing`), how facts arrive (`feed`).
Next: `invoke` waits here; `runfeed` and `feed` wake.
"""

import asyncio
from collections import Counter

from dataplane.gateway.limits import MOVING_HELD_MAX, RUN_INFLIGHT_MAX, UNKNOWN_HELD_PER_CALLER_MAX
from statemachine.run import RunUID


class Changes:
    """Wakes whoever waits for a fact about one Run. Nothing is stored: look up first, wait then, both on the loop."""

    def __init__(self) -> None:
        self._waiting: dict[RunUID, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def changed(self, uid: RunUID) -> None:
        """A fact about this Run has changed."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            _wake(waiting)

    def all_changed(self) -> None:
        """Something that may concern any Run has changed: an endpoint came or went."""
        for waiting in list(self._waiting.values()):
            _wake(waiting)
        self._waiting.clear()

    async def wait(self, uid: RunUID, *, timeout_s: float) -> bool:
        """Until the next change of that Run: True; False after `timeout_s` seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, []).append(future)
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            waiting = self._waiting.get(uid)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._waiting[uid]
        return True


class HoldCaps:
    """How many calls may wait: of moving Runs in this process, and of unknown UIDs for one caller.

    Whoever takes a place gives it back in a `finally`. A place that is not there is answered, not waited for.
    """

    def __init__(self) -> None:
        self.moving = 0
        self._unknown: Counter[str] = Counter()

    @property
    def unknown(self) -> int:
        """Calls that wait for a UID never seen."""
        return self._unknown.total()

    def take_moving(self) -> bool:
        """A place for a call of a moving Run; False when all are taken."""
        if self.moving >= MOVING_HELD_MAX:
            return False
        self.moving += 1
        return True

    def give_moving(self) -> None:
        """Give back what `take_moving` gave."""
        self.moving -= 1

    def take_unknown(self, caller: str) -> bool:
        """A place for a call of an unknown UID; False when this caller's are taken."""
        if self._unknown[caller] >= UNKNOWN_HELD_PER_CALLER_MAX:
            return False
        self._unknown[caller] += 1
        return True

    def give_unknown(self, caller: str) -> None:
        """Give back what `take_unknown` gave."""
        self._unknown[caller] -= 1
        if not self._unknown[caller]:
            del self._unknown[caller]


class RunShares:
    """How many calls each Run has in this process, so that a flood of one fills nothing that others share: the bodies
    in memory, the connection to a Pod. Whoever takes a place gives it back once."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: dict[RunUID, int] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def full(self, run: RunUID) -> bool:
        """All places of this Run are taken."""
        return self._taken.get(run, 0) >= RUN_INFLIGHT_MAX

    def take(self, run: RunUID) -> bool:
        """A place for a call of this Run; False when all are taken."""
        taken = self._taken.get(run, 0)
        if taken >= RUN_INFLIGHT_MAX:
            return False
        self._taken[run] = taken + 1
        return True

    def give(self, run: RunUID) -> None:
        """Give back what `take` gave."""
        taken = self._taken[run] - 1
        if taken:
            self._taken[run] = taken
        else:
            del self._taken[run]


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
