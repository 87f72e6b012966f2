"""A Runtime Server in memory, alarms that ring by hand, and a Pod to put a daemon into.

The server keeps the contract's rules of epochs (R1, R2) as `runtimes.server` does; the daemon is tested against both.
"""

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
from runtimes.contract import messages as m
from runtimes.contract.mux import CallError, CallTimeout, ConnectionLost
from tests.kit.builders import runtime_object, runtime_pod
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually

NAMESPACE = "default"
POD = "runtime-python-1"
POD_UID = "pod-1"


def failing(reason: str, message: str = "because") -> CallError:
    """An answer of the server that is an error."""
    return CallError(m.ErrorHead(reason=reason, message=message))


class Epoch:
    """What the server holds of one epoch."""

    def __init__(self, epoch: m.Epoch, kind: str, registration_id: str, digest: str) -> None:
        self.epoch = epoch
        self.kind = kind
        self.registration_id = registration_id
        self.digest = digest
        self.open = True
        self.calls = 0
        self.lost = ""
        self.result: m.TaskResult | None = None
        self.changed = asyncio.Event()


class FakeServer:
    """One Runtime Server over all its lives: `restart` is a new process, `stop` and `start` the two halves of it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.up = True
        self.lives = 1
        self.dialled = 0
        self.started_us = int(clock.monotonic() * 1e6)
        self.held: dict[str, Epoch] = {}
        self.tombs: dict[str, int] = {}
        self.registered: list[m.RegisterRequest] = []
        self.executed: list[m.ExecuteTaskRequest] = []
        self.condemned = ""
        self.idle_ms = 0
        self.register_error: Exception | None = None
        self.hang_register = False
        self.hang_clear = False
        self.point: Callable[[str], Any] = _pass
        self.finish_calls = asyncio.Event()
        self.finish_calls.set()
        self._clients: list[FakeClient] = []

    async def connect(self) -> "FakeClient":
        if not self.up:
            raise ConnectionRefusedError(111, "Connection refused")
        self.dialled += 1
        client = FakeClient(self)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        self.up = False
        self.held.clear()
        self.tombs.clear()
        self.drop()

    def start(self) -> None:
        self.up = True
        self.lives += 1
        self.condemned = ""
        self.started_us = int(self.clock.monotonic() * 1e6)

    def restart(self) -> None:
        self.stop()
        self.start()

    def drop(self) -> None:
        """Every connection breaks; what is held stays."""
        for client in self._clients:
            client.lose()
        self._clients.clear()

    def exit_task(self, uid: str, exit_code: int = 0, **more: Any) -> None:
        held = self.held[uid]
        held.result = m.TaskResult(exit_code=exit_code, **more)
        held.open = False
        held.changed.set()

    def lose_function(self, uid: str, why: str) -> None:
        self.held[uid].lost = why
        self.held[uid].open = False
        self.held[uid].changed.set()

    def admit(self, epoch: m.Epoch, digest: str) -> Epoch | None:
        if epoch.attempt <= self.tombs.get(epoch.run_uid, 0):
            raise failing(m.FAILED_PRECONDITION, "closed")
        held = self.held.get(epoch.run_uid)
        if held is None or held.epoch.attempt < epoch.attempt:
            return None
        if held.epoch.attempt > epoch.attempt:
            raise failing(m.FAILED_PRECONDITION, "older")
        if held.digest != digest:
            raise failing(m.ALREADY_EXISTS)
        return held

    def bury(self, epoch: m.Epoch) -> Epoch | None:
        self.tombs[epoch.run_uid] = max(epoch.attempt, self.tombs.get(epoch.run_uid, 0))
        held = self.held.get(epoch.run_uid)
        if held is None or held.epoch.attempt > epoch.attempt:
            return None
        held.open = False
        held.changed.set()
        return held


class FakeConnection:
    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class FakeClient:
    """One connection to a `FakeServer`."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.connection = FakeConnection()

    def lose(self) -> None:
        if not self.connection.closed.done():
            self.connection.closed.set_result(None)

    def close(self) -> None:
        self.lose()

    async def _enter(self, name: str) -> None:
        await self.server.point(f"before {name}")
        if self.connection.closed.done():
            raise ConnectionLost("closed", dispatched=False)
        await asyncio.sleep(0)

    async def _leave(self, name: str) -> None:
        if self.connection.closed.done():
            raise ConnectionLost("closed", dispatched=True)
        await self.server.point(f"after {name}")

    async def _until(self, event: asyncio.Event, timeout: float) -> None:
        """Wait for an event, the connection's end, or the timeout."""
        waiter = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((waiter, self.connection.closed), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        if self.connection.closed.done():
            raise ConnectionLost("closed", dispatched=True)

    async def hello(self, client: str = "") -> m.HelloReply:
        await self._enter("Hello")
        server = self.server
        return m.HelloReply(
            version=1,
            language="python",
            default_script="main.py",
            instance_id=f"life-{server.lives}",
            started_boottime_us=server.started_us,
            held=tuple(
                m.HeldEpoch(epoch=h.epoch, kind=h.kind, open=h.open, registration_id=h.registration_id)  # type: ignore[arg-type]
                for h in server.held.values()
            ),
        )

    async def alive(self, *, condemn: str = "", timeout: float = 5.0) -> m.AliveReply:
        self.server.condemned = condemn
        raise failing(m.UNHEALTHY, condemn)

    async def register_function(self, request: m.RegisterRequest, *, timeout: float) -> m.RegisterReply:
        await self._enter("Register")
        server = self.server
        server.registered.append(request)
        if server.hang_register:
            try:
                await self._until(asyncio.Event(), timeout)
            finally:
                server.bury(request.epoch)
            raise CallTimeout("no answer")
        if server.register_error is not None:
            raise server.register_error
        held = server.admit(request.epoch, request.digest)
        if held is None:
            assert _is_folder(request.directory)
            name = f"{request.epoch.run_uid}/{request.epoch.attempt}/{server.lives}"
            held = server.held[request.epoch.run_uid] = Epoch(request.epoch, "function", name, request.digest)
        await self._leave("Register")
        return m.RegisterReply(registration_id=held.registration_id)

    async def invoke_function(
        self, request: m.InvokeRequest, body: bytes | memoryview, *, timeout: float
    ) -> tuple[m.InvokeReply, bytes]:
        await self._enter("Invoke")
        held = next((h for h in self.server.held.values() if h.registration_id == request.registration_id), None)
        if held is None or not held.open:
            raise failing(m.FAILED_PRECONDITION, "stale")
        held.calls += 1
        try:
            await self._until(self.server.finish_calls, timeout)
        finally:
            held.calls -= 1
            held.changed.set()
        return m.InvokeReply(worker_us=5), bytes(body)

    async def unregister_function(self, request: m.UnregisterRequest) -> m.UnregisterReply:
        await self._enter("Unregister")
        server = self.server
        held = server.held.get(request.epoch.run_uid)
        if request.if_idle_for_ms is not None and held is not None and server.idle_ms < request.if_idle_for_ms:
            raise failing(m.STILL_ACTIVE)
        held = server.bury(request.epoch)
        if held is None:
            return m.UnregisterReply(held=False, gone=True)
        wait = request.wait_ms / 1000
        while held.calls and wait:
            held.changed.clear()
            await self._until(held.changed, wait)
        if server.hang_clear:
            if wait:
                await self._until(asyncio.Event(), 60)
            return m.UnregisterReply(held=True, gone=False)
        if not held.calls and server.held.get(request.epoch.run_uid) is held:
            del server.held[request.epoch.run_uid]
        await self._leave("Unregister")
        return m.UnregisterReply(held=True, gone=not held.calls)

    async def function_status(
        self, registration_id: str, *, wait_ms: int = 0, restart_idle: bool = False
    ) -> m.FunctionStatusReply:
        await self._enter("FunctionStatus")
        held = next((h for h in self.server.held.values() if h.registration_id == registration_id), None)
        if held is None:
            raise failing(m.FAILED_PRECONDITION, "no such registration")
        if restart_idle:
            self.server.idle_ms = 0
        while wait_ms and held.open:
            held.changed.clear()
            await self._until(held.changed, wait_ms / 1000)
        state = "ready" if held.open else "lost" if held.lost else "closing"
        return m.FunctionStatusReply(
            state=state,  # type: ignore[arg-type]
            in_flight=held.calls,
            idle_for_ms=self.server.idle_ms,
            workers=1,
            message=held.lost,
        )

    async def execute_task(self, request: m.ExecuteTaskRequest, *, timeout: float = 5.0) -> m.ExecuteTaskReply:
        await self._enter("Execute")
        server = self.server
        held = server.admit(request.epoch, request.digest)
        if held is None:
            server.executed.append(request)
            server.held[request.epoch.run_uid] = Epoch(request.epoch, "task", "", request.digest)
        await self._leave("Execute")
        return m.ExecuteTaskReply(started_us=1)

    async def cancel_task(self, request: m.CancelTaskRequest) -> m.CancelTaskReply:
        await self._enter("Cancel")
        held = self.server.bury(request.epoch)
        if held is not None and held.result is None:
            held.result = m.TaskResult(exit_code=143, cancelled=True)
            held.changed.set()
        await self._leave("Cancel")
        return m.CancelTaskReply(held=held is not None, gone=True)

    async def task_status(self, epoch: m.Epoch, *, wait_ms: int = 0) -> m.TaskStatusReply:
        await self._enter("TaskStatus")
        held = self.server.held.get(epoch.run_uid)
        if held is None or held.epoch != epoch:
            raise failing(m.FAILED_PRECONDITION, "no such task")
        while held.result is None and wait_ms:
            held.changed.clear()
            await self._until(held.changed, wait_ms / 1000)
        return m.TaskStatusReply(state="exited" if held.result else "running", result=held.result)

    async def forget(self, epoch: m.Epoch) -> m.ForgetReply:
        await self._enter("Forget")
        held = self.server.held.get(epoch.run_uid)
        if held is not None and held.epoch == epoch:
            del self.server.held[epoch.run_uid]
        await self._leave("Forget")
        return m.ForgetReply()


def _is_folder(path: str) -> bool:
    return Path(path).is_dir()


async def _pass(name: str) -> None:
    return None


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
        self.clock = ManualClock()
        self.alarms = ManualAlarms(self.clock)
        self.kube = kube or FakeKube(self.clock)
        self.server = FakeServer(self.clock)
        self.events = Emitted()
        self.config = config(work, uid)
        self.daemon: Daemon | None = None
        self._running: asyncio.Task[Any] | None = None
        if kube is None:
            self.kube.seed(PODS, runtime_pod(POD, uid=uid))
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
