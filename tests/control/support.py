"""What the control plane's tests share: alarms moved by hand, an API that loses answers, and a plane over both."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from controlplane.kube.resources import PODS, RUNS, RUNTIMES, Kind
from controlplane.kube.types import Pod, RunObject
from controlplane.plane import ControlPlane
from controlplane.runtimecontroller.template import Settings
from statemachine.commands import Command
from statemachine.events import Event
from statemachine.run import RunUID
from statemachine.step import Refusal
from tests.kit.builders import runtime_object, runtime_pod
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube, lost

SETTINGS = Settings(
    daemon_image="kruntimes/runtimed",
    signer_url="https://signer:8444",
    gateway_url="https://gateway",
    root_pem="-----BEGIN CERTIFICATE-----\nroot\n-----END CERTIFICATE-----\n",
)


class ManualAlarm:
    """One armed call."""

    def __init__(self, fire: Callable[[], None]) -> None:
        self.fire = fire
        self.live = True

    def cancel(self) -> None:
        self.live = False


class ManualAlarms:
    """`call_later` over a ManualClock. Calls in no time go through the running loop, as they would anyway."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, ManualAlarm]] = []
        self._count = itertools.count()

    def call_later(self, delay_s: float, fire: Callable[[], None]) -> Any:
        if delay_s <= 0:
            return asyncio.get_running_loop().call_soon(fire)
        alarm = ManualAlarm(fire)
        heapq.heappush(self._heap, (self.clock.monotonic() + delay_s, next(self._count), alarm))
        return alarm

    @property
    def armed(self) -> int:
        return sum(alarm.live for _, _, alarm in self._heap)

    def pass_time(self, seconds: float) -> None:
        """Let time pass as on an idle machine: every alarm rings when it is due. Synchronous."""
        end = self.clock.monotonic() + seconds
        while self._heap and self._heap[0][0] <= end + 1e-9:
            due, _, alarm = heapq.heappop(self._heap)
            if alarm.live:
                self.clock.advance(max(0.0, due - self.clock.monotonic()))
                alarm.fire()
        self.clock.advance(max(0.0, end - self.clock.monotonic()))

    def stand_still(self, seconds: float) -> None:
        """The whole process stops for so long, then every alarm that is due rings late."""
        self.clock.advance(seconds)
        self.pass_time(0)

    async def live_through(self, seconds: float, step: float = 0.5) -> None:
        """`pass_time` in small steps, with the loop running in between."""
        left = seconds
        while left > 0:
            self.pass_time(min(step, left))
            left -= step
            await settle()


async def settle(turns: int = 60) -> None:
    """Let everything that needs no time to pass happen."""
    for _ in range(turns):
        await asyncio.sleep(0)


class Api(FakeKube):
    """A FakeKube that can also lose answers of writes that have happened."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._lose: list[str] = []
        self.patches: list[tuple[str, str, list[Mapping[str, Any]]]] = []
        self.before_patch: Callable[[], None] | None = None

    def lose_answer(self, plural: str = "runs") -> None:
        """The next patch of this kind happens, and its answer is lost."""
        self._lose.append(plural)

    async def json_patch(
        self,
        kind: Kind[Any],
        namespace: str | None,
        name: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> Any:
        if self.before_patch is not None:
            change, self.before_patch = self.before_patch, None
            change()
        self.patches.append((kind.plural, subresource, list(ops)))
        answer = await super().json_patch(kind, namespace, name, ops, subresource=subresource)
        if kind.plural in self._lose:
            self._lose.remove(kind.plural)
            raise lost()
        return answer

    def show(self, name: str, namespace: str = "default") -> RunObject:
        """A Run as it is stored."""
        return self._typed(RUNS, self.store.find(RUNS, namespace, name))

    def set_status(self, name: str, status: dict[str, Any], namespace: str = "default") -> None:
        """What a runtimed wrote: the whole status."""
        obj = self.store.find(RUNS, namespace, name)
        self.store.change(RUNS, namespace, name, {**obj, "status": status}, "status")

    def set_pod(self, pod: Pod) -> None:
        """What a node wrote: the Pod as it stands, deletion included."""
        content = msgspec.to_builtins(pod)
        key = (PODS.plural, pod.metadata.namespace, pod.metadata.name)
        self.store.put(PODS, key, self.store.objects.get(key), content)

    def remove_pod(self, name: str, namespace: str = "default") -> None:
        """What a node wrote at the end."""
        self.store.delete(PODS, namespace, name, None, 0)

    def run_writes(self) -> list[Any]:
        """Writes to Runs so far."""
        return [request for request in self.writes() if request.plural == "runs"]


class Records:
    """A journal in memory."""

    def __init__(self) -> None:
        self.records: list[tuple[RunUID, Event, tuple[Command, ...], Refusal | None, bool, bool]] = []

    def append(
        self,
        run_uid: RunUID,
        event: Event,
        commands: tuple[Command, ...],
        refusal: Refusal | None,
        gap: bool,
        *,
        fresh: bool,
    ) -> None:
        self.records.append((run_uid, event, commands, refusal, gap, fresh))

    def names(self) -> list[str]:
        return [type(event).__name__ for _, event, _, _, _, _ in self.records]


class Notes:
    """A recorder in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def emit(self, about: Any, type_: str, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))


class World:
    """An API, time, and what the control plane said."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.alarms = ManualAlarms(self.clock)
        self.api = Api(self.clock)
        self.journal = Records()
        self.notes = Notes()
        self.registry = CollectorRegistry()
        self.successor = False

    async def successor_awaited(self) -> bool:
        return self.successor

    def runtime(self, *, runs: int = 2, pods: int = 1, name: str = "python") -> None:
        """A Runtime with ready Pods `runtime-<name>-1`… of UID `pod-1`…"""
        self.api.seed(RUNTIMES, runtime_object(name, runs=runs, replicas=pods))
        for number in range(1, pods + 1):
            self.api.set_pod(runtime_pod(f"runtime-{name}-{number}", uid=f"pod-{number}", runtime=name))

    def plane(self) -> ControlPlane:
        """A control plane that knows nothing yet."""
        return ControlPlane(
            kube=self.api,
            clock=self.clock,
            call_later=self.alarms.call_later,
            recorder=self.notes,
            journal=self.journal,
            settings=SETTINGS,
            registry=CollectorRegistry(),
            successor_awaited=self.successor_awaited,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ControlPlane]:
        """A control plane at work; leaving ends it as a crash would, with no farewell."""
        plane = self.plane()
        task = asyncio.get_running_loop().create_task(plane.run())
        await settle()
        try:
            yield plane
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
