"""Pods that refused a connection a moment ago, and who is told about it.

Here: a short memory, so that others' calls are not sent through a dead endpoint, and a bounded voice, so that recovery
hears of a dead owner once and not once per call. Not here: what recovery does. Nothing here awaits or calls the API.
Next: `invoke` adds and asks; `main` gives `OwnerReports` the Event recorder that recovery listens to.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final

from controlplane.kube.clock import Clock
from dataplane.gateway.limits import CONNECT_SUSPECT_S, OWNER_REPORT_S
from statemachine.ownership import Owner
from statemachine.run import PodUID, RunUID

REPORTS_REMEMBERED_MAX: Final = 10_000  # Runs; the oldest are reported again sooner


class Suspects:
    """Pods at whose address nobody listened within the last CONNECT_SUSPECT_S."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[PodUID, float] = {}

    def add(self, uid: PodUID) -> None:
        """It refused a connection now."""
        self._until[uid] = self._clock.monotonic() + CONNECT_SUSPECT_S

    def clear(self, uid: PodUID) -> None:
        """The API says something new about it."""
        self._until.pop(uid, None)

    def current(self) -> Collection[PodUID]:
        """Those to avoid now."""
        if self._until:
            now = self._clock.monotonic()
            for uid in [uid for uid, until in self._until.items() if until <= now]:
                del self._until[uid]
        return self._until


class OwnerReports:
    """Tells `emit` of an owner that refuses connections, at most once per Run and attempt in OWNER_REPORT_S."""

    def __init__(self, clock: Clock, emit: Callable[[Owner], None]) -> None:
        self._clock = clock
        self._emit = emit
        self._told: OrderedDict[tuple[RunUID, int], float] = OrderedDict()

    def refused(self, owner: Owner) -> None:
        """Nobody listens at the owner's address."""
        key = (owner.run.uid, owner.run.attempt)
        now = self._clock.monotonic()
        if now - self._told.get(key, -OWNER_REPORT_S) < OWNER_REPORT_S:
            return
        self._told[key] = now
        self._told.move_to_end(key)
        if len(self._told) > REPORTS_REMEMBERED_MAX:
            self._told.popitem(last=False)
        self._emit(owner)
