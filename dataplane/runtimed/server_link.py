"""The connection to the Runtime Server: it is dialled again for ever, and every call's failure is said in our words.

Here: which process is at the other end (R5), and when what it held is known to be gone. Not here: what to do about it.
A refused dial proves that the server is dead, as its socket is in this Pod; a new instance id proves it too. A lost
connection alone proves nothing. Next: `worker.py` and `serving.py` call, `daemon.py` runs it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, Protocol

from dataplane.runtimed.failures import EpochClosed, PreparationFailed, ServerLost
from runtimes.contract import messages as m
from runtimes.contract.limits import STATUS_WAIT_MAX_MS
from runtimes.contract.mux import CallError, CallTimeout, ConnectionLost, Done, Refused
from statemachine.reasons import REGISTRATION_FAILURES, TASK_FAILURES, Reason
from statemachine.run import Epoch, Mode, PodUID, RunUID

DIAL_FIRST_S: Final = 0.01  # a container that restarts is met again at once
DIAL_MAX_S: Final = 0.5
CLEAR_WAIT_MS: Final = 30_000  # one waiting Unregister; repeated until everything is gone
HANGS_MAX: Final = 3  # unanswered calls in a row of 5 s each, after which the container is to be restarted
TASK_GRACE_MS: Final = 10_000  # between TERM and KILL of a task: L12's 10 s

_log = logging.getLogger(__name__)


class Client(Protocol):
    """`runtimes.contract.client.RuntimeClient`, as far as it is used here."""

    connection: Any

    def close(self) -> None: ...
    async def hello(self, client: str = "") -> m.HelloReply: ...
    async def alive(self, *, condemn: str = "", timeout: float = 5.0) -> m.AliveReply: ...
    async def register_function(self, request: m.RegisterRequest, *, timeout: float) -> m.RegisterReply: ...
    def start_invocation(self, request: m.InvokeRequest, body: bytes, done: Done, *, timeout: float) -> None: ...
    async def unregister_function(self, request: m.UnregisterRequest) -> m.UnregisterReply: ...
    async def function_status(
        self, registration_id: str, *, wait_ms: int = 0, restart_idle: bool = False
    ) -> m.FunctionStatusReply: ...
    async def execute_task(self, request: m.ExecuteTaskRequest, *, timeout: float = 5.0) -> m.ExecuteTaskReply: ...
    async def cancel_task(self, request: m.CancelTaskRequest) -> m.CancelTaskReply: ...
    async def task_status(self, epoch: m.Epoch, *, wait_ms: int = 0) -> m.TaskStatusReply: ...
    async def forget(self, epoch: m.Epoch) -> m.ForgetReply: ...


Connect = Callable[[], Awaitable[Client]]
"""Dials the socket; raises OSError when nobody listens, TimeoutError when nobody answers."""


def wire_epoch(epoch: Epoch) -> m.Epoch:
    """The epoch as the contract spells it."""
    return m.Epoch(run_uid=epoch.run_uid, attempt=epoch.attempt, pod_uid=epoch.pod_uid)


class ServerLink:
    """`hello` is what the server said last, None while there is none. Callbacks run on the loop and must be quick.

    `on_up(hello, replaced)` follows every Hello; `replaced`: the process is another one than before. `on_gap` says that
    the connection is gone, `on_dead` that the process is, and all it held.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        name: str,
        on_up: Callable[[m.HelloReply, bool], None],
        on_gap: Callable[[], None],
        on_dead: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._name = name
        self._on_up = on_up
        self._on_gap = on_gap
        self._on_dead = on_dead
        self._client: Client | None = None
        self._instance = ""
        self._dead = True
        self._changed = asyncio.Event()
        self.hello: m.HelloReply | None = None

    @property
    def up(self) -> bool:
        """Whether calls can be made."""
        return self._client is not None and not self._client.connection.closed.done()

    async def settled(self) -> str:
        """The instance that answers, after a lost connection has been made again; empty when the server is dead."""
        while not self.up and not self._dead:
            self._changed.clear()
            await self._changed.wait()
        return "" if self._dead else self._instance

    async def until_up(self) -> str:
        """Wait until calls can be made; the instance that takes them."""
        while not self.up:
            self._changed.clear()
            await self._changed.wait()
        return self._instance

    @property
    def instance(self) -> str:
        """The instance id of the last Hello."""
        return self._instance

    @property
    def client(self) -> Client:
        """The client in use; raises ServerLost when there is none."""
        if self._client is None:
            raise ServerLost("there is no connection to the Runtime Server")
        return self._client

    async def run(self) -> NoReturn:
        """Dial, say Hello, wait for the connection's end, and again."""
        delay = 0.0
        while True:
            try:
                client = await self._connect()
            except (ConnectionRefusedError, FileNotFoundError) as error:
                self._died(error)
            except (OSError, TimeoutError) as error:
                _log.warning("the Runtime Server cannot be dialled: %s", error or "no answer in time")
            else:
                if await self._greet(client):
                    delay = 0.0
                    await asyncio.shield(client.connection.closed)
                    self._client = None
                    self._on_gap()
                    _log.warning("the connection to the Runtime Server is gone")
                    continue
            await asyncio.sleep(delay)
            delay = min(DIAL_MAX_S, delay * 2 or DIAL_FIRST_S)

    async def _greet(self, client: Client) -> bool:
        try:
            hello = await client.hello(self._name)
        except (CallError, Refused, ConnectionLost, CallTimeout) as error:
            _log.warning("the Runtime Server did not answer Hello: %s", error)
            client.close()
            return False
        replaced = hello.instance_id != self._instance
        self._client, self._instance, self._dead, self.hello = client, hello.instance_id, False, hello
        self._on_up(hello, replaced)
        self._changed.set()
        return True

    def _died(self, error: OSError) -> None:
        if not self._dead:
            self._dead = True
            _log.warning("the Runtime Server is gone: %s", error.strerror or error)
            self._on_dead()
            self._changed.set()

    def close(self) -> None:
        """End the connection (at the end of the process)."""
        if self._client is not None:
            self._client.close()

    async def held(self) -> dict[Epoch, m.HeldEpoch]:
        """What the server holds now. Raises ServerLost."""
        try:
            reply = await self.client.hello(self._name)
        except (CallError, Refused, ConnectionLost, CallTimeout) as error:
            raise ServerLost(str(error)) from error
        self.hello = reply
        return held_by_epoch(reply)

    async def register(self, request: m.RegisterRequest, *, timeout: float) -> str:
        """Load a function within `timeout` seconds; its registration id.

        Raises PreparationFailed with a reason of REGISTRATION_FAILURES, EpochClosed, or ServerLost.
        """
        try:
            reply = await self.client.register_function(request, timeout=timeout)
        except CallError as error:
            raise _failure(error.error, REGISTRATION_FAILURES) from error
        except Refused as error:
            raise PreparationFailed(Reason.RUNTIME_SERVER_ERROR, str(error)) from error
        except CallTimeout as error:
            message = f"source and import took more than {timeout:g} s"
            raise PreparationFailed(Reason.REGISTRATION_TIMED_OUT, message) from error
        except ConnectionLost as error:
            raise ServerLost(str(error)) from error
        return reply.registration_id

    async def execute(self, request: m.ExecuteTaskRequest) -> None:
        """Start a task. Raises PreparationFailed with a reason of TASK_FAILURES, EpochClosed, or ServerLost."""
        try:
            await self.client.execute_task(request)
        except CallError as error:
            raise _failure(error.error, TASK_FAILURES) from error
        except Refused as error:
            raise PreparationFailed(Reason.RUNTIME_SERVER_ERROR, str(error)) from error
        except (ConnectionLost, CallTimeout) as error:
            raise ServerLost(str(error)) from error

    async def task_exit(self, epoch: Epoch) -> m.TaskResult | None:
        """Wait until a task has exited; None when the server holds no such task. Raises ServerLost."""
        while True:
            try:
                reply = await self.client.task_status(wire_epoch(epoch), wait_ms=STATUS_WAIT_MAX_MS)
            except CallError as error:
                _log.warning("the task's status is unknown: %s", error)
                return None
            except (ConnectionLost, CallTimeout, Refused) as error:
                raise ServerLost(str(error)) from error
            if reply.result is not None:
                return reply.result

    async def function_loss(self, registration_id: str) -> str:
        """Wait until the server has lost a function (its workers cannot be replaced): why. Raises ServerLost."""
        while True:
            try:
                reply = await self.client.function_status(registration_id, wait_ms=STATUS_WAIT_MAX_MS)
            except CallError as error:
                return error.error.message
            except (ConnectionLost, CallTimeout, Refused) as error:
                raise ServerLost(str(error)) from error
            if reply.state != "ready":
                return reply.message or f"the registration is {reply.state}"

    async def restart_idle(self, registration_id: str) -> None:
        """Start the idle clock anew: Ready has been written just now (L5). A failure is met by the next call."""
        try:
            await self.client.function_status(registration_id, restart_idle=True)
        except (CallError, ConnectionLost, CallTimeout, Refused, ServerLost) as error:
            _log.warning("the idle clock was not restarted: %s", error)

    async def unregister_idle(self, epoch: Epoch, registration_id: str, idle_ms: int) -> int:
        """Close the epoch if it has been idle for `idle_ms`: 0 when it is closed, else milliseconds until it can be.

        Raises ServerLost.
        """
        try:
            await self.client.unregister_function(m.UnregisterRequest(epoch=wire_epoch(epoch), if_idle_for_ms=idle_ms))
        except CallError as error:
            if error.error.reason != m.STILL_ACTIVE:
                raise ServerLost(str(error)) from error
        except (ConnectionLost, CallTimeout, Refused) as error:
            raise ServerLost(str(error)) from error
        else:
            return 0
        try:
            status = await self.client.function_status(registration_id)
        except (CallError, ConnectionLost, CallTimeout, Refused) as error:
            raise ServerLost(str(error)) from error
        return max(1, idle_ms - status.idle_for_ms)

    async def close_epoch(self, epoch: Epoch, mode: Mode) -> None:
        """No new calls, tombstone at once; for a task: TERM. Returns too when the server is dead."""
        await self._until_done(lambda client: _close(client, epoch, mode, wait_ms=0, drain_ms=None))

    async def clear_epoch(self, epoch: Epoch, mode: Mode, *, drain_ms: int | None) -> None:
        """Close, wait until no call or process of the epoch is left, forget it. Returns too when the server is dead.

        Calls in flight are ended after `drain_ms`; None lets them finish.
        """
        while not await self._until_done(
            lambda client: _close(client, epoch, mode, wait_ms=CLEAR_WAIT_MS, drain_ms=drain_ms)
        ):
            pass
        if mode is Mode.TASK:
            await self._until_done(lambda client: _forget(client, epoch))

    async def condemn(self, why: str) -> None:
        """Have the container restarted: its liveness probe fails from now on (R5)."""
        try:
            await self.client.alive(condemn=why)
        except (CallError, ConnectionLost, CallTimeout, Refused, ServerLost) as error:
            _log.warning("the Runtime Server could not be condemned: %s", error)

    async def _until_done(self, call: Callable[[Client], Awaitable[bool]]) -> bool:
        """Make the call, again after each lost connection; True at once when the server is dead."""
        hangs = 0
        while True:
            if self._dead:
                return True
            self._changed.clear()
            if self._client is None:
                await self._changed.wait()
                continue
            try:
                return await call(self._client)
            except CallError as error:
                _log.warning("the Runtime Server did not end an epoch: %s", error)
                return True
            except Refused as error:
                _log.warning("the Runtime Server is busy: %s", error)
                await asyncio.sleep(DIAL_MAX_S)
            except CallTimeout as error:
                _log.warning("the Runtime Server hangs: %s", error)
                hangs += 1
                if hangs == HANGS_MAX:
                    await self.condemn("it does not answer calls that end an epoch")
            except ConnectionLost:
                await asyncio.sleep(0)  # `run` sees the end of the connection next


async def _close(client: Client, epoch: Epoch, mode: Mode, *, wait_ms: int, drain_ms: int | None) -> bool:
    wire = wire_epoch(epoch)
    if mode is Mode.TASK:
        request = m.CancelTaskRequest(epoch=wire, grace_ms=TASK_GRACE_MS, wait_ms=wait_ms)
        return (await client.cancel_task(request)).gone
    return (await client.unregister_function(m.UnregisterRequest(epoch=wire, wait_ms=wait_ms, drain_ms=drain_ms))).gone


async def _forget(client: Client, epoch: Epoch) -> bool:
    await client.forget(wire_epoch(epoch))
    return True


def held_by_epoch(hello: m.HelloReply) -> dict[Epoch, m.HeldEpoch]:
    """What a Hello lists, by our epoch."""
    return {
        Epoch(RunUID(held.epoch.run_uid), held.epoch.attempt, PodUID(held.epoch.pod_uid)): held for held in hello.held
    }


def _failure(error: m.ErrorHead, known: frozenset[Reason]) -> Exception:
    """A failed registration or execution as an exception of ours; the details a person needs go into the message."""
    if error.reason == m.FAILED_PRECONDITION:
        return EpochClosed(error.message)
    message = error.message
    tail = error.details.get("frames") or error.details.get("stderr")
    if tail and tail not in message:
        message = f"{message}\n{tail}"
    try:
        reason = Reason(error.reason)
    except ValueError:
        reason = Reason.RUNTIME_SERVER_ERROR
    return PreparationFailed(reason if reason in known else Reason.RUNTIME_SERVER_ERROR, message)
