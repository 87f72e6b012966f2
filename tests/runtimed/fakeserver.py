"""A Runtime Server in memory: the contract's rules of epochs (R1, R2) without processes.

Tests of the daemon run against it and against `runtimes.server`; tests make it fail, hang, restart and lose.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtimes.contract import messages as m
from runtimes.contract.mux import CallError, CallTimeout, ConnectionLost
from tests.kit.clock import ManualClock


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
        self.witness: Callable[[m.Epoch], None] = lambda epoch: None
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
            server.witness(request.epoch)
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
            server.witness(request.epoch)
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
