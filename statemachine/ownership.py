"""Which Pod owns which Run: a fold of facts that the gateway and runtimed ask when they route.

The Kubernetes API is never asked here or by anyone who asks here. Facts may be stale; the owner alone judges, by the
epoch that every hop carries. Keyed by Run UID, so that a new Run of the same name is never reached by an old URL.
A million Runs must fit: one small Struct each, strings shared between Runs of one Pod.
"""

from collections import OrderedDict
from enum import StrEnum
from sys import intern
from typing import Final

import msgspec

from statemachine.run import ENDED, Mode, Phase, PodUID, RunUID

TOMBSTONES_MAX: Final = 2048  # deleted UIDs answered 404 at once (0.2 KiB each); older ones are held like unknown ones


class RunFact(msgspec.Struct, frozen=True, gc=False):
    """What a watch said about one Run."""

    uid: RunUID
    namespace: str
    runtime: str
    name: str
    phase: Phase
    attempt: int = 0
    pod_name: str | None = None
    pod_uid: PodUID | None = None
    mode: Mode | None = None  # None where the watch does not carry it (a Table row)


class PodFact(msgspec.Struct, frozen=True, gc=False):
    """Where a Pod is dialled, by its EndpointSlice or status. `ready`: may get calls of Runs it does not own."""

    uid: PodUID
    namespace: str
    runtime: str
    address: str
    port: int
    ready: bool
    serving: bool = True


class Owner(msgspec.Struct, frozen=True):
    """The answer to a look-up. `address` is None when the Pod is not known (yet)."""

    run: RunFact
    pod: PodFact | None


class Miss(StrEnum):
    """Why there is no owner."""

    UNKNOWN = "unknown"  # never seen: may be ahead of this projection
    DELETED = "deleted"  # seen to go
    ELSEWHERE = "elsewhere"  # exists, but not in that namespace and Runtime


class Projection:
    """The fold. Changed in place: copying a million entries would stop the loop for 47 ms."""

    def __init__(self) -> None:
        self._runs: dict[RunUID, RunFact] = {}
        self._pods: dict[PodUID, PodFact] = {}
        self._by_runtime: dict[tuple[str, str], dict[PodUID, PodFact]] = {}
        self._tombstones: OrderedDict[RunUID, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._runs)

    def run_seen(self, fact: RunFact) -> None:
        """Adopt what a watch said. An older attempt than the known one is a late fact and changes nothing."""
        known = self._runs.get(fact.uid)
        if known is not None and known.attempt > fact.attempt:
            return
        mode = known.mode if known is not None and fact.mode is None else fact.mode  # it never changes
        self._runs[fact.uid] = msgspec.structs.replace(
            fact, namespace=intern(fact.namespace), runtime=intern(fact.runtime), mode=mode
        )
        self._tombstones.pop(fact.uid, None)

    def mode_seen(self, uid: RunUID, mode: Mode) -> None:
        """Adopt what somebody who reads whole Runs said of one that is on record here."""
        known = self._runs.get(uid)
        if known is not None:
            self._runs[uid] = msgspec.structs.replace(known, mode=mode)

    def run_gone(self, uid: RunUID) -> None:
        """The Run was deleted: 404 at once from now on."""
        self._runs.pop(uid, None)
        self._tombstones[uid] = None
        if len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)

    def listed(self, namespace: str | None, runtime: str | None, present: frozenset[RunUID] | set[RunUID]) -> None:
        """A list is complete: what it does not hold, in that namespace and Runtime (None = any), is gone."""
        gone = [
            uid
            for uid, fact in self._runs.items()
            if uid not in present and namespace in (None, fact.namespace) and runtime in (None, fact.runtime)
        ]
        for uid in gone:
            self.run_gone(uid)

    def pod_seen(self, fact: PodFact) -> None:
        """Adopt a Pod's address and readiness."""
        self._pods[fact.uid] = fact
        self._by_runtime.setdefault((fact.namespace, fact.runtime), {})[fact.uid] = fact

    def pod_gone(self, uid: PodUID) -> None:
        """The Pod left the Service: never dialled again under this UID."""
        fact = self._pods.pop(uid, None)
        if fact is not None:
            pods = self._by_runtime[fact.namespace, fact.runtime]
            pods.pop(uid, None)
            if not pods:
                del self._by_runtime[fact.namespace, fact.runtime]

    def look_up(self, namespace: str, runtime: str, uid: RunUID) -> Owner | Miss:
        """Who owns this Run, as far as the facts go."""
        run = self._runs.get(uid)
        if run is None:
            return Miss.DELETED if uid in self._tombstones else Miss.UNKNOWN
        if run.namespace != namespace or run.runtime != runtime:
            return Miss.ELSEWHERE
        pod = None if run.pod_uid is None or run.phase in ENDED else self._pods.get(run.pod_uid)
        return Owner(run, pod)

    def run(self, uid: RunUID) -> RunFact | None:
        """The fact on record for this UID."""
        return self._runs.get(uid)

    def runs(self) -> tuple[RunFact, ...]:
        """Every Run on record."""
        return tuple(self._runs.values())

    def pod(self, uid: PodUID) -> PodFact | None:
        """The Pod of that UID, if it is part of its Runtime's Service."""
        return self._pods.get(uid)

    def ready_pods(self, namespace: str, runtime: str) -> list[PodFact]:
        """The ready endpoints of a Runtime's Service."""
        return [pod for pod in self._by_runtime.get((namespace, runtime), {}).values() if pod.ready]

    def pods(self, namespace: str, runtime: str) -> list[PodFact]:
        """Every known endpoint of a Runtime's Service, ready or not."""
        return list(self._by_runtime.get((namespace, runtime), {}).values())
