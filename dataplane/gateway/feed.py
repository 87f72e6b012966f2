"""How the projection learns: Runtimes say which namespaces matter, Tables bring Runs, EndpointSlices bring Pods.

Here: which watches run, and EndpointSlices as `PodFact`s. Not here: the list-and-watch loops themselves (`runfeed`,
`controlplane.kube.informer`), decisions (`routing`). A gateway reads no Pods, no Run objects, no Secrets.
Next: `main` runs one Feed; `metrics` asks it how stale it is.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import ENDPOINTSLICES, RUNTIMES
from controlplane.kube.types import EndpointSlice, RuntimeObject
from dataplane.gateway.holding import Changes
from dataplane.gateway.runfeed import RunFeed
from statemachine.ownership import PodFact, Projection
from statemachine.run import PodUID

RUNTIME_LABEL: Final = "kruntimes.io/runtime"
SERVICE_LABEL: Final = "kubernetes.io/service-name"
SERVICE_PREFIX: Final = "runtime-"
PORT_NAME: Final = "runtimed"


def runtime_of(endpoint_slice: EndpointSlice) -> str | None:
    """The Runtime whose Service this slice belongs to: by its label, else by the Service's name."""
    labels = endpoint_slice.metadata.labels
    service = labels.get(SERVICE_LABEL, "")
    by_service = service.removeprefix(SERVICE_PREFIX) if service.startswith(SERVICE_PREFIX) else None
    return labels.get(RUNTIME_LABEL) or by_service or None


def pods_of(endpoint_slice: EndpointSlice) -> Iterator[PodFact]:
    """The Pods of a slice, with the port that runtimed serves."""
    runtime = runtime_of(endpoint_slice)
    port = next((port.port for port in endpoint_slice.ports or () if port.name == PORT_NAME and port.port), None)
    if runtime is None or port is None:
        return
    for endpoint in endpoint_slice.endpoints or ():
        target = endpoint.target_ref
        if target is not None and target.uid and endpoint.addresses:
            yield PodFact(
                uid=PodUID(target.uid),
                namespace=endpoint_slice.metadata.namespace,
                runtime=runtime,
                address=endpoint.addresses[0],
                port=port,
                ready=endpoint.ready,
                serving=endpoint.serving,
            )


class _Namespace(NamedTuple):
    """The two watches of one namespace."""

    runs: RunFeed
    slices: Informer[EndpointSlice]
    tasks: tuple[asyncio.Task[None], asyncio.Task[None]]
    runtimes: set[str]


class Feed:
    """Keeps one Projection current. `on_pod` hears of every Pod that came, changed or went (`None` second)."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        projection: Projection,
        changes: Changes,
        *,
        on_pod: Callable[[PodFact, PodFact | None], None],
        rng: random.Random | None = None,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._projection = projection
        self._changes = changes
        self._on_pod = on_pod
        self._rng = rng or random.Random()
        self._namespaces: dict[str, _Namespace] = {}
        self._slices_of: dict[PodUID, set[str]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._listed = asyncio.Event()
        self._runtimes = Informer(
            kube, RUNTIMES, on_change=self._runtime_changed, clock=clock, on_listed=self._listed.set, rng=rng
        )

    async def run(self) -> None:
        """Follow for ever; cancelled at the end. What a watch raises is a defect and ends all of them."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._runtimes.run())

    async def synced(self) -> None:
        """Return when Runtimes, and the Runs and endpoints of each of their namespaces, have been listed once."""
        await self._listed.wait()
        for namespace in list(self._namespaces.values()):
            await namespace.runs.synced.wait()
            await namespace.slices.synced.wait()

    def stale_seconds(self) -> float:
        """How long the least current of the watches has not been open; 0 when all are."""
        now = self._clock.monotonic()
        since = [self._runtimes.stale_since()]
        for namespace in self._namespaces.values():
            since += (namespace.runs.stale_since(), namespace.slices.stale_since())
        return max((now - moment for moment in since if moment is not None), default=0.0)

    def _runtime_changed(self, change: Change[RuntimeObject]) -> None:
        if change.current is not None:
            metadata = change.current.metadata
            self._follow(metadata.namespace).runtimes.add(metadata.name)
        elif change.previous is not None:
            metadata = change.previous.metadata
            self._follow(metadata.namespace).runtimes.discard(metadata.name)
            self._leave_if_empty(metadata.namespace)

    def _follow(self, name: str) -> _Namespace:
        known = self._namespaces.get(name)
        if known is not None:
            return known
        runs = RunFeed(
            self._kube,
            name,
            self._projection,
            self._changes,
            self._clock,
            self._rng,
            on_fewer=lambda: self._leave_if_empty(name),
        )
        slices = Informer(
            self._kube, ENDPOINTSLICES, namespace=name, on_change=self._slice_changed, clock=self._clock, rng=self._rng
        )
        assert self._group is not None, "informers run inside run()"
        tasks = (self._group.create_task(runs.run()), self._group.create_task(slices.run()))
        self._namespaces[name] = _Namespace(runs, slices, tasks, set())
        return self._namespaces[name]

    def _leave_if_empty(self, name: str) -> None:
        """A namespace is left with its last Runtime and Run: Runs of a deleted Runtime wait for it, and are still
        refused and released until then."""
        namespace = self._namespaces.get(name)
        if namespace is None or namespace.runtimes or namespace.runs.count or not namespace.runs.synced.is_set():
            return
        del self._namespaces[name]
        for task in namespace.tasks:
            task.cancel()
        for endpoint_slice in list(namespace.slices.store.values()):
            self._slice_changed(Change(endpoint_slice, None))

    def _slice_changed(self, change: Change[EndpointSlice]) -> None:
        before = {pod.uid: pod for pod in pods_of(change.previous)} if change.previous else {}
        now = {pod.uid: pod for pod in pods_of(change.current)} if change.current else {}
        slice_uid = (change.current or change.previous).metadata.uid  # type: ignore[union-attr]
        for uid, pod in now.items():
            self._slices_of.setdefault(uid, set()).add(slice_uid)
            if self._projection.pod(uid) != pod:
                self._projection.pod_seen(pod)
                self._on_pod(pod, pod)
        for uid in before.keys() - now.keys():
            holders = self._slices_of.get(uid, set())
            holders.discard(slice_uid)
            if not holders:
                self._slices_of.pop(uid, None)
                self._projection.pod_gone(uid)
                self._on_pod(before[uid], None)
        self._changes.all_changed()
