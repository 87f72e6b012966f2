"""RuntimeClient: the contract's methods, typed, over one connection. runtimed, the liveness probe and the tests use it.

It neither reconnects nor retries: whoever holds it decides that by the exceptions of `mux`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self, TypeVar

from runtimes.contract import messages as m
from runtimes.contract.endpoint import connect_unix
from runtimes.contract.limits import PROTOCOL_VERSION, STATUS_WAIT_MAX_MS
from runtimes.contract.mux import Connection, Done

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 5.0
"""For calls that the server answers at once."""
KILL_GRACE_S: Final = 3.0
"""Beyond a deadline: until a killed group is gone and the answer is here."""


class RuntimeClient:
    """Every method raises CallError (the server's answer), Refused, ConnectionLost or CallTimeout; see `mux`."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    async def connect(cls, path: str | Path) -> Self:
        """Dial the server's socket. Raises OSError or TimeoutError."""
        return cls(await connect_unix(path))

    def close(self) -> None:
        self.connection.close()

    async def _call(
        self, method: str, head: m.Head, reply: type[T], timeout: float = CALL_TIMEOUT_S, grace: float = 0.0
    ) -> T:
        return (await self.connection.call(method, head, timeout=timeout, grace=grace)).decode(reply)

    async def hello(self, client: str = "") -> m.HelloReply:
        return await self._call(m.HELLO, m.HelloRequest(versions=(PROTOCOL_VERSION,), client=client), m.HelloReply)

    async def alive(self, *, condemn: str = "", timeout: float = CALL_TIMEOUT_S) -> m.AliveReply:
        return await self._call(m.ALIVE, m.AliveRequest(condemn=condemn), m.AliveReply, timeout)

    async def register_function(self, request: m.RegisterRequest, *, timeout: float) -> m.RegisterReply:
        """Load a handler within `timeout` seconds. Errors: ImportFailed, HandlerNotFound, SourceInvalid,
        RegistrationTimedOut, AlreadyExists, FailedPrecondition."""
        return await self._call(m.REGISTER_FUNCTION, request, m.RegisterReply, timeout, KILL_GRACE_S)

    def start_invocation(self, request: m.InvokeRequest, body: bytes, done: Done, *, timeout: float) -> None:
        """As `invoke_function`, without a task: `done` gets the Reply (head: an InvokeReply), or what is raised there.

        Raises Refused or ConnectionLost when nothing was sent; `done` is not called then.
        """
        self.connection.start(m.INVOKE_FUNCTION, request, body, done, timeout=timeout, grace=KILL_GRACE_S)

    async def invoke_function(
        self, request: m.InvokeRequest, body: bytes | memoryview, *, timeout: float
    ) -> tuple[m.InvokeReply, bytes]:
        """One invocation with `timeout` seconds as its deadline; returns the reply's head and the answer's raw JSON.

        It waits a little longer than that: the server answers InvocationTimeout once the worker's group is gone.
        """
        reply = await self.connection.call(m.INVOKE_FUNCTION, request, body, timeout=timeout, grace=KILL_GRACE_S)
        return reply.decode(m.InvokeReply), reply.body

    async def unregister_function(self, request: m.UnregisterRequest) -> m.UnregisterReply:
        timeout = CALL_TIMEOUT_S + request.wait_ms / 1000
        return await self._call(m.UNREGISTER_FUNCTION, request, m.UnregisterReply, timeout)

    async def function_status(
        self, registration_id: str, *, wait_ms: int = 0, restart_idle: bool = False
    ) -> m.FunctionStatusReply:
        wait_ms = min(wait_ms, STATUS_WAIT_MAX_MS)
        request = m.FunctionStatusRequest(registration_id=registration_id, wait_ms=wait_ms, restart_idle=restart_idle)
        return await self._call(m.FUNCTION_STATUS, request, m.FunctionStatusReply, CALL_TIMEOUT_S + wait_ms / 1000)

    async def execute_task(
        self, request: m.ExecuteTaskRequest, *, timeout: float = CALL_TIMEOUT_S
    ) -> m.ExecuteTaskReply:
        """Start a task. Errors: SourceInvalid, AlreadyExists, FailedPrecondition."""
        return await self._call(m.EXECUTE_TASK, request, m.ExecuteTaskReply, timeout, KILL_GRACE_S)

    async def cancel_task(self, request: m.CancelTaskRequest) -> m.CancelTaskReply:
        return await self._call(m.CANCEL_TASK, request, m.CancelTaskReply, CALL_TIMEOUT_S + request.wait_ms / 1000)

    async def task_status(self, epoch: m.Epoch, *, wait_ms: int = 0) -> m.TaskStatusReply:
        wait_ms = min(wait_ms, STATUS_WAIT_MAX_MS)
        request = m.TaskStatusRequest(epoch=epoch, wait_ms=wait_ms)
        return await self._call(m.TASK_STATUS, request, m.TaskStatusReply, CALL_TIMEOUT_S + wait_ms / 1000)

    async def forget(self, epoch: m.Epoch) -> m.ForgetReply:
        return await self._call(m.FORGET, m.ForgetRequest(epoch=epoch), m.ForgetReply)
