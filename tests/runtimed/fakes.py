"""Alarms that ring by hand, and a Pod in memory for a daemon: an API, a clock and a Runtime Server around it."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from controlplane.kube.types import RunObject
from dataplane.runtimed.config import Config
from dataplane.runtimed.daemon import Daemon
from dataplane.runtimed.view import NoJournal
from tests.kit.builders import runtime_object, runtime_pod
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually
from tests.runtimed.fakeserver import FakeServer

NAMESPACE = "default"
POD = "runtime-python-1"
POD_UID = "pod-1"


class ManualAlarms:
    """A `CallLater` over a `ManualClock`: `advance` moves the clock and rings what is due."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._armed: list[_Armed] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> "_Armed":
        armed = _Armed(self._clock.monotonic() + delay, callback)
        self._armed.append(armed)
        return armed

    @property
    def armed(self) -> int:
        """Alarms that will still ring."""
        return sum(not alarm.cancelled for alarm in self._armed)

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)
        now = self._clock.monotonic()
        due = [alarm for alarm in self._armed if alarm.at <= now and not alarm.cancelled]
        self._armed = [alarm for alarm in self._armed if alarm.at > now and not alarm.cancelled]
        for alarm in due:
            alarm.callback()


class _Armed:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Emitted:
    """A recorder that keeps the reasons."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def emit(self, about: RunObject, type_: str, reason: str, message: str) -> None:
        self.reasons.append(reason)


class FakePod:
    """A Pod with a Runtime Server, in a namespace with an API; `boot` puts a daemon into it, `crash` takes it out."""

    def __init__(self, work: Path, *, runs: int = 2, kube: FakeKube | None = None, uid: str = POD_UID) -> None:
        self.clock = ManualClock() if kube is None else kube.store.clock
        self.alarms = ManualAlarms(self.clock)
        self.kube = kube or FakeKube(self.clock)
        self.server = FakeServer(self.clock)
        self.events = Emitted()
        self.config = config(work, uid, f"runtime-python-{uid.removeprefix('pod-')}")
        self.daemon: Daemon | None = None
        self._running: asyncio.Task[Any] | None = None
        self.kube.seed(PODS, runtime_pod(self.config.pod_name, uid=uid))
        if kube is None:
            self.kube.seed(RUNTIMES, runtime_object("python", runs=runs))

    async def boot(self, kube: Any = None, journal: Any = None) -> Daemon:
        """A new daemon, begun."""
        daemon = self.prepare(kube, journal)
        await daemon.begin()
        return daemon

    def prepare(self, kube: Any = None, journal: Any = None) -> Daemon:
        """A new daemon that follows and has not begun."""
        self.daemon = Daemon(
            self.config,
            kube=kube or self.kube,
            clock=self.clock,
            call_later=self.alarms.call_later,
            connect=self.server.connect,
            journal=journal or NoJournal(),
            recorder=self.events,
            ca_bundle=lambda: "ROOT",
            rng=random.Random(1),
        )
        self._running = asyncio.get_running_loop().create_task(self.daemon.run())
        return self.daemon

    async def crash(self) -> None:
        """End the daemon at once; whatever it held in memory is gone, the Runtime Server stays."""
        if self.daemon is not None:
            assert self._running is not None
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await self.daemon.stop()
            self.daemon = self._running = None
            self.server.drop()

    # --- what tests look at

    def run(self, name: str) -> RunObject | None:
        obj = self.kube.store.objects.get((RUNS.plural, NAMESPACE, name))
        return None if obj is None else self.kube._typed(RUNS, obj)

    def phase(self, name: str) -> str:
        run = self.run(name)
        return "gone" if run is None else run.status.phase

    async def until(self, name: str, phase: str, *, within: float = 5.0) -> RunObject | None:
        await eventually(lambda: self.phase(name) == phase, within=within)
        return self.run(name)

    async def bind(self, name: str, *, pod: str = POD, uid: str | None = None) -> None:
        """What the scheduler does to a Pending Run."""
        run = self.run(name)
        assert run is not None
        ops = [
            {"op": "test", "path": "/status/phase", "value": "Pending"},
            {"op": "add", "path": "/status/phase", "value": "Scheduled"},
            {"op": "add", "path": "/status/attempt", "value": run.status.attempt + 1},
            {"op": "add", "path": "/status/assignedPod", "value": pod},
            {"op": "add", "path": "/status/assignedPodUID", "value": uid or self.config.pod_uid},
        ]
        await self.kube.json_patch(RUNS, NAMESPACE, name, ops, subresource="status")

    async def cancel(self, name: str) -> None:
        await self.kube.merge_patch(RUNS, NAMESPACE, name, {"spec": {"cancelRequested": True}})

    async def delete(self, name: str) -> None:
        await self.kube.delete(RUNS, NAMESPACE, name)

    def epoch_of(self, uid: str) -> Any:
        local = self.daemon.here(uid).local if self.daemon is not None else None
        return None if local is None else local.epoch

    def lets_in(self, uid: str) -> bool:
        """Whether a call of this Run would be dispatched here now."""
        if self.daemon is None:
            return False
        here = self.daemon.here(uid)
        gate = None if here.local is None else self.daemon.gate(here.local)
        return here.fresh and here.local is not None and here.local.serves and gate is not None and not gate.closing

    def writes(self, name: str) -> list[str]:
        """Our own writes to one Run, in order."""
        return [
            request.subresource or "object"
            for request in self.kube.writes()
            if request.plural == "runs" and request.name == name
        ]


def config(work: Path, uid: str = POD_UID, name: str = POD) -> Config:
    return Config(
        namespace=NAMESPACE,
        runtime="python",
        pod_name=name,
        pod_uid=uid,
        pod_ip="127.0.0.1",
        port=8443,
        socket=work / "runtime.sock",
        work_dir=work,
        signer_url="https://signer.invalid",
        ca_file=work / "ca.crt",
        token_file=work / "token",
        gateway_url="https://gateway.example",
        kubeconfig=None,
        service_account_dir="",
        journal_dir=None,
    )
