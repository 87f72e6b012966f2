"""What surrounds a Pod in crash tests: the control plane's rows, played by the state machine itself, and crash points.

`World` binds, cancels and takes finalizers off as the table says. `CrashPoints` stops a daemon before or after any call
it makes, to the API or to the Runtime Server.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from controlplane.kube.errors import KubeError
from controlplane.kube.patches import status_patch, take_finalizer_patch
from controlplane.kube.resources import RUNS
from controlplane.kube.translate import run_from_object
from controlplane.kube.types import RunObject
from runtimes.contract import messages as m
from statemachine import commands as cmd
from statemachine.events import Bound, CancelRequested, DeletionRequested, Event, Role
from statemachine.invariants import violations
from statemachine.run import Phase, PodUID, Run
from statemachine.step import explained, step
from tests.kit.fakekube import FakeKube
from tests.runtimed.fakes import NAMESPACE, FakePod

TICK_S = 0.002
SERVING = (Phase.REGISTERING, Phase.READY)


class World:
    """The control plane for the Runs of some Pods. `eligible`: Pods may be bound to, by index `pick`."""

    def __init__(self, pod: FakePod, *others: FakePod) -> None:
        self.pod = pod
        self.pods = (pod, *others)
        self.eligible = True
        self.pick: Callable[[], int] = lambda: 0
        self.broken: list[str] = []
        self._last: dict[str, Run] = {}
        pod.kube.store.subscribers.append(self._watch)
        for each in self.pods:
            each.server.witness = self._begun

    def _watch(self, entry: Any) -> None:
        """Every revision of every Run keeps the invariants and is explained by one row."""
        if entry.plural != RUNS.plural:
            return
        if entry.after is None:
            self._gone(entry.before["metadata"]["uid"])
            return
        run = run_from_object(self.pod.kube._typed(RUNS, entry.after))
        before = self._last.get(run.uid)
        self.broken += violations(before, run)
        if before is not None and not explained(before, run):
            self.broken.append(f"no row leads from {before.phase} to {run.phase}")
        self._last[run.uid] = run
        for pod in self.pods:
            if pod.lets_in(run.uid) and not (run.epoch == pod.epoch_of(run.uid) and run.phase in SERVING):
                self.broken.append(f"{pod.config.pod_uid} lets calls in of an epoch that the API ended: {run.status}")

    def _begun(self, epoch: m.Epoch) -> None:
        """Nothing is registered or executed before the finalizer is on."""
        run = self._last.get(epoch.run_uid)
        if run is not None and run.status.attempt == epoch.attempt and run.status.pod_uid and not run.finalizer:
            self.broken.append(f"{epoch} is begun without the finalizer")

    def _gone(self, uid: str) -> None:
        """The object goes only after its registration."""
        for pod in self.pods:
            held = pod.server.held.get(uid)
            if held is not None and held.open:
                self.broken.append(f"{pod.config.pod_uid} still holds {uid}, whose object is gone")

    async def run(self) -> None:
        while True:
            for key in list(self.pod.kube.store.objects):
                if key[0] == RUNS.plural:
                    await self._look(key[2])
            await asyncio.sleep(TICK_S)

    async def _look(self, name: str) -> None:
        obj = self.pod.run(name)
        if obj is None:
            return
        run = run_from_object(obj)
        event = self._event(run)
        if event is not None:
            await self._perform(run, obj, step(run, event, Role.CONTROL_PLANE).commands)

    def _event(self, run: Run) -> Event | None:
        now = self.pod.clock.now_us()
        if run.deleting and run.finalizer and run.phase is not Phase.RELEASING:
            return DeletionRequested(at_us=now)
        if run.cancel_requested and run.phase in (Phase.PENDING, Phase.SCHEDULED) and not run.deleting:
            return CancelRequested(at_us=now)
        if run.phase is Phase.PENDING and self.eligible:
            pod = self.pods[self.pick()].config
            return Bound(at_us=now + 60_000_000, pod_name=pod.pod_name, pod_uid=PodUID(pod.pod_uid))
        return None

    async def _perform(self, run: Run, obj: RunObject, commands: tuple[cmd.Command, ...]) -> None:
        kube = self.pod.kube
        try:
            for command in commands:
                match command:
                    case cmd.PatchStatus():
                        ops = status_patch(run, command)
                        await kube.json_patch(RUNS, NAMESPACE, run.name, ops, subresource="status")
                    case cmd.TakeFinalizer():
                        await kube.json_patch(RUNS, NAMESPACE, run.name, take_finalizer_patch(obj, command))
                    case _:
                        pass
        except KubeError:
            pass  # somebody was faster: look again


class CrashPoints:
    """Counts the places where a daemon could stop, and stops it at the `at`-th."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen: list[str] = []
        self.hit = asyncio.Event()

    async def point(self, name: str) -> None:
        self.seen.append(name)
        if len(self.seen) - 1 == self.at:
            self.hit.set()
        if self.hit.is_set():
            await asyncio.get_running_loop().create_future()  # nothing more is done in this life


class CrashingKube:
    """A `FakeKube` seen by one daemon, with a crash point on both sides of each call."""

    def __init__(self, kube: FakeKube, points: CrashPoints) -> None:
        self._kube = kube
        self._points = points

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kube, name)
        if name == "watch":
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            what = f"{name} {args[0].plural} {kwargs.get('subresource', '')}".strip()
            await self._points.point(f"before {what}")
            answer = await method(*args, **kwargs)
            await self._points.point(f"after {what}")
            return answer

        return call


@asynccontextmanager
async def life_with_crash(pod: FakePod, at: int) -> AsyncIterator[tuple[CrashPoints, World]]:
    """A daemon that is stopped at the `at`-th point and followed by a healthy one, in a world that goes on."""
    points, world = CrashPoints(at), World(pod)
    pod.server.point = points.point
    tasks = [asyncio.ensure_future(world.run()), asyncio.ensure_future(_lives(pod, points))]
    try:
        yield points, world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pod.crash()


async def _lives(pod: FakePod, points: CrashPoints) -> None:
    first = asyncio.ensure_future(pod.boot(CrashingKube(pod.kube, points)))
    await points.hit.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await pod.crash()

    async def go_on(name: str) -> None:
        return None

    pod.server.point = go_on
    await pod.boot()
