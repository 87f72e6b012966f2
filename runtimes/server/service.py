"""The contract's methods: heads in, rules checked, functions and tasks told, heads out.

InvokeFunction is answered by callback, without a task of its own: it is the hot path. What a method means in words is
docs/runtime-contract.md; which epochs may do what is `registry`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from runtimes.contract import messages as m
from runtimes.contract.limits import (
    INVOCATION_ID_MAX_BYTES,
    INVOKE_BODY_MAX_BYTES,
    INVOKE_TIMEOUT_DEFAULT_MS,
    INVOKE_TIMEOUT_MAX_MS,
    PROTOCOL_VERSION,
    REGISTER_TIMEOUT_MAX_MS,
    STATUS_WAIT_MAX_MS,
)
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError, Reply, Request, encode_head
from runtimes.server.artifacts import ArtifactsFolder
from runtimes.server.checks import check_execute, check_register, check_request, printable
from runtimes.server.confinement import isolation
from runtimes.server.environment import Folders, boottime_us
from runtimes.server.function import Function
from runtimes.server.language import Call, FunctionSpec, Language, TaskSpec
from runtimes.server.logs import RunLog, prune_logs
from runtimes.server.modes import Modes
from runtimes.server.pool import Wear
from runtimes.server.registry import Registry
from runtimes.server.spawner import Spawner
from runtimes.server.task import Task

logger = logging.getLogger(__name__)

TASK_START_TIMEOUT_S: Final = 20.0
PRUNE_INTERVAL_S: Final = 30.0
ZYGOTE_DOWN_MAX_S: Final = 30.0
"""Without a zygote for so long no worker can be replaced: the liveness probe fails, a new container may do better."""


class Service:
    """Answers requests (`handle`); holds the registry. One for each Runtime Server."""

    def __init__(
        self, *, language: Language, spawner: Spawner, work: Path, wear: Wear, links: Path | None = None
    ) -> None:
        """`links`: see `Folders.of`."""
        self.instance_id = secrets.token_hex(16)
        self._started_us = boottime_us()
        self._language = language
        self._spawner = spawner
        self._work = work
        self._links = links
        self._wear = wear
        self._logs = work / "logs"
        self._modes = Modes()
        self._registry: Registry[Function | Task] = Registry()
        self._functions: dict[str, Function] = {}
        self._condemned = ""
        self._loop = asyncio.get_running_loop()
        self._pruned = time.monotonic()
        self._methods: dict[str, Callable[[Request], Coroutine[Any, Any, Reply]]] = {
            m.HELLO: self._hello,
            m.ALIVE: self._alive,
            m.REGISTER_FUNCTION: self._register,
            m.UNREGISTER_FUNCTION: self._unregister,
            m.FUNCTION_STATUS: self._function_status,
            m.EXECUTE_TASK: self._execute,
            m.CANCEL_TASK: self._cancel,
            m.TASK_STATUS: self._task_status,
            m.FORGET: self._forget,
        }

    def handle(self, request: Request) -> Awaitable[Reply] | None:
        """The `mux.Handler` of this server."""
        if request.method == m.INVOKE_FUNCTION:
            self._invoke(request)
            return None
        method = self._methods.get(request.method)
        if method is None:
            raise _error(m.UNKNOWN_METHOD, f"no method {request.method[:64]!r} in version {PROTOCOL_VERSION}")
        return method(request)

    def keep_modes(self, path: Path) -> None:
        """User code does not shut this path for others by chmod."""
        work = self._work.resolve()
        self._modes.keep(path, below=work if path.is_relative_to(work) else path)

    # --- the server itself

    async def _hello(self, request: Request) -> Reply:
        versions = request.decode(m.HelloRequest).versions
        if PROTOCOL_VERSION not in versions:
            raise _error(m.UNSUPPORTED_VERSION, f"this server speaks {PROTOCOL_VERSION}, the caller {list(versions)}")
        held = tuple(
            m.HeldEpoch(epoch=h.epoch, kind="function", open=h.open, registration_id=h.registration_id)
            if isinstance(h, Function)
            else m.HeldEpoch(epoch=h.epoch, kind="task", open=h.open)
            for h in self._registry
        )
        return Reply(
            m.HelloReply(
                version=PROTOCOL_VERSION,
                language=self._language.name,
                default_script=self._language.default_script,
                instance_id=self.instance_id,
                started_boottime_us=self._started_us,
                held=held,
                isolation=isolation(self._spawner.landlock_abi),
            )
        )

    async def _alive(self, request: Request) -> Reply:
        condemn = request.decode(m.AliveRequest).condemn
        if condemn and not self._condemned:
            logger.error("condemned: %s", condemn)
            self._condemned = condemn
        if self._condemned:
            raise _error(m.UNHEALTHY, self._condemned)
        if self._spawner.down_for() > ZYGOTE_DOWN_MAX_S:
            raise _error(m.UNHEALTHY, f"no process can be started: {self._spawner.interpreter} does not run")
        return Reply(m.AliveReply(instance_id=self.instance_id))

    # --- functions

    async def _register(self, request: Request) -> Reply:
        head = request.decode(m.RegisterRequest)
        check_register(head)
        await self._failed_one_is_gone(head.epoch, _seconds_left(request, REGISTER_TIMEOUT_MAX_MS / 1000))
        held = self._registry.admit(head.epoch, head.digest)
        if held is None:
            held = self._new_function(head)
            await held.load(_seconds_left(request, REGISTER_TIMEOUT_MAX_MS / 1000))
        elif not isinstance(held, Function):
            raise _error(m.ALREADY_EXISTS, "this epoch is a task")
        else:
            await _within(held.loaded, _seconds_left(request, REGISTER_TIMEOUT_MAX_MS / 1000))
            if held.error is not None:
                raise CallError(held.error)
        return Reply(m.RegisterReply(registration_id=held.registration_id))

    async def _failed_one_is_gone(self, epoch: m.Epoch, timeout: float) -> None:
        """What failed to start under this very epoch, or was lost, is still being removed: its folders are shared."""
        held = self._registry.find(epoch)
        if held is not None and held.ending and not held.gone.done():
            await _within(held.gone, timeout)

    def _new_function(self, head: m.RegisterRequest) -> Function:
        folders = Folders.of(head.directory, self._work, self._links)
        self._supersede(head.epoch)
        self.keep_modes(folders.source.parent)
        folders.create()
        function = Function(
            spec=FunctionSpec(epoch=head.epoch, handler=head.handler, folders=folders, env=head.env),
            digest=head.digest,
            concurrency=head.concurrency,
            idle_timeout_ms=head.idle_timeout_ms,
            language=self._language,
            spawner=self._spawner,
            log=self._log(head.epoch),
            wear=self._wear,
            on_gone=self._function_gone,
        )
        self._registry.hold(function)
        function.gone.add_done_callback(lambda _: self._modes.let_go(folders.source.parent))
        self._functions[function.registration_id] = function
        return function

    def _function_gone(self, function: Function) -> None:
        self._registry.drop(function)
        del self._functions[function.registration_id]
        self._prune_logs()

    def _invoke(self, request: Request) -> None:
        head = request.decode(m.InvokeRequest)
        function = self._functions.get(head.registration_id)
        if function is None:
            raise _error(m.FAILED_PRECONDITION, "no such registration")
        if len(request.body) > INVOKE_BODY_MAX_BYTES:
            message = f"the request body has {len(request.body)} bytes; at most {INVOKE_BODY_MAX_BYTES} are taken"
            raise _error("RequestTooLarge", message)
        if not printable(head.invocation_id) or not (head.traceparent == "" or printable(head.traceparent)):
            message = f"invocationId and traceparent are at most {INVOCATION_ID_MAX_BYTES} bytes of visible ASCII"
            raise _error(m.INVALID_ARGUMENT, message)
        check_request(request.body)
        now = request.connection.loop.time()
        deadline = request.deadline if request.deadline is not None else now + INVOKE_TIMEOUT_DEFAULT_MS / 1000
        deadline = min(deadline, now + INVOKE_TIMEOUT_MAX_MS / 1000)

        def answer(call: Call, body: bytes | None, error: ErrorHead | None) -> None:
            if error is not None:
                request.fail(error)
            else:
                spent = time.monotonic_ns() // 1000 - call.started_us
                head = {"workerUs": spent, "artifacts": call.artifacts} if call.artifacts else {"workerUs": spent}
                request.respond(Reply(encode_head(head), body or b""))

        function.invoke(Call(head.invocation_id, head.traceparent, request.body or b"{}", deadline, answer))

    async def _unregister(self, request: Request) -> Reply:
        head = request.decode(m.UnregisterRequest)
        self._registry.find(head.epoch)  # Another Pod's epoch is refused before anything is closed.
        closing = self._registry.up_to(head.epoch)
        if head.if_idle_for_ms is not None:
            for held in closing:
                if isinstance(held, Function) and held.open and held.idle_for() * 1000 < head.if_idle_for_ms:
                    message = f"{held.in_flight} calls in flight, idle for {held.idle_for() * 1000:.0f} ms"
                    raise _error(m.STILL_ACTIVE, message)
        self._registry.bury(head.epoch)
        for held in closing:
            _close(held, head.drain_ms)
        gone = await _all_gone(closing, head.wait_ms)
        in_flight = sum(held.in_flight for held in closing if isinstance(held, Function))
        return Reply(m.UnregisterReply(held=bool(closing), gone=gone, in_flight=in_flight))

    async def _function_status(self, request: Request) -> Reply:
        head = request.decode(m.FunctionStatusRequest)
        function = self._functions.get(head.registration_id)
        if function is None or function.state == "loading":
            raise _error(m.FAILED_PRECONDITION, "no such registration")
        if head.restart_idle:
            function.restart_idle()
        if head.wait_ms:
            await function.wait_for_change(min(head.wait_ms, STATUS_WAIT_MAX_MS) / 1000)
        error = function.error
        return Reply(
            m.FunctionStatusReply(
                state="ready" if function.open else "lost" if function.state == "lost" else "closing",
                in_flight=function.in_flight,
                idle_for_ms=int(function.idle_for() * 1000),
                workers=function.workers,
                reason=error.reason if error else "",
                message=error.message if error else "",
            )
        )

    # --- tasks

    async def _execute(self, request: Request) -> Reply:
        head = request.decode(m.ExecuteTaskRequest)
        check_execute(head)
        await self._failed_one_is_gone(head.epoch, _seconds_left(request, TASK_START_TIMEOUT_S))
        held = self._registry.admit(head.epoch, head.digest)
        if held is None:
            held = await self._new_task(head, _seconds_left(request, TASK_START_TIMEOUT_S))
        elif not isinstance(held, Task):
            raise _error(m.ALREADY_EXISTS, "this epoch is a function")
        else:
            await held.until_started(_seconds_left(request, TASK_START_TIMEOUT_S))
        return Reply(m.ExecuteTaskReply(started_us=held.started_us))

    async def _new_task(self, head: m.ExecuteTaskRequest, timeout: float) -> Task:
        folders = Folders.of(head.directory, self._work, self._links)
        spec = TaskSpec(
            epoch=head.epoch,
            entrypoint=head.entrypoint or self._language.default_script,
            args=head.args,
            folders=folders,
            env=head.env,
            outputs=folders.calls / "outputs",
            artifacts=ArtifactsFolder(folders),
        )
        job = self._language.task_job(spec)
        self._supersede(head.epoch)
        self.keep_modes(folders.source.parent)
        folders.create()
        log = self._log(head.epoch)
        task = Task(spec=spec, digest=head.digest, spawner=self._spawner, log=log, on_gone=self._registry.drop)
        task.gone.add_done_callback(lambda _: self._modes.let_go(folders.source.parent))
        self._registry.hold(task)
        await task.start(job, timeout)
        return task

    async def _cancel(self, request: Request) -> Reply:
        head = request.decode(m.CancelTaskRequest)
        self._registry.find(head.epoch)
        closing = self._registry.up_to(head.epoch)
        self._registry.bury(head.epoch)
        for held in closing:
            _close(held, head.grace_ms)
        return Reply(m.CancelTaskReply(held=bool(closing), gone=await _all_gone(closing, head.wait_ms)))

    async def _task_status(self, request: Request) -> Reply:
        head = request.decode(m.TaskStatusRequest)
        held = self._registry.find(head.epoch)
        if not isinstance(held, Task):
            raise _error(m.FAILED_PRECONDITION, "no such task")
        if held.result is None and head.wait_ms:
            await _all_gone([held], min(head.wait_ms, STATUS_WAIT_MAX_MS))
        return Reply(m.TaskStatusReply(state="exited" if held.result else "running", result=held.result))

    async def _forget(self, request: Request) -> Reply:
        head = request.decode(m.ForgetRequest)
        held = self._registry.find(head.epoch)
        if held is not None:
            if not held.gone.done():
                raise _error(m.FAILED_PRECONDITION, "it has not ended")
            self._registry.bury(head.epoch)
            self._registry.drop(held)
            self._prune_logs()
        return Reply(m.ForgetReply())

    # --- shared

    def _supersede(self, epoch: m.Epoch) -> None:
        for older in self._registry.older(epoch):
            self._registry.bury(older.epoch)
            _close(older, None)

    def _log(self, epoch: m.Epoch) -> RunLog:
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.keep_modes(self._logs.resolve())
        return RunLog(self._logs, epoch.run_uid, epoch.attempt)

    def _prune_logs(self) -> None:
        """Now and then, off the loop: the folder may hold thousands of files."""
        now = time.monotonic()
        if now - self._pruned < PRUNE_INTERVAL_S:
            return
        self._pruned = now
        keep = {held.epoch.run_uid for held in self._registry}
        self._loop.run_in_executor(None, prune_logs, self._logs, keep)

    @property
    def busy(self) -> bool:
        """Whether an epoch is open."""
        return any(held.open for held in self._registry)

    async def wait_for_release(self, timeout: float) -> None:
        """Return when something that is open has ended, at the latest after `timeout` seconds."""
        pending = [held.gone for held in self._registry if held.open]
        if pending:
            await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    async def drain(self, timeout: float) -> None:
        """Close everything held, letting calls in flight finish; returns when all is gone or `timeout` s passed."""
        held = list(self._registry)
        for holding in held:
            _close(holding, int(timeout * 1000))
        await _all_gone(held, int(timeout * 1000) + 2000)
        self._modes.close()


def _close(held: Function | Task, drain_ms: int | None) -> None:
    if isinstance(held, Function):
        held.close(drain_ms=drain_ms)
    else:
        held.cancel(drain_ms if drain_ms is not None else 10_000)


async def _all_gone(held: list[Function | Task] | list[Task], wait_ms: int) -> bool:
    pending = [holding.gone for holding in held if not holding.gone.done()]
    if pending and wait_ms:
        await asyncio.wait(pending, timeout=wait_ms / 1000)
    return all(future.done() for future in pending)


async def _within(future: asyncio.Future[None], timeout: float) -> None:
    try:
        async with asyncio.timeout(timeout):
            await asyncio.shield(future)
    except TimeoutError as error:
        raise _error("RegistrationTimedOut", f"the load did not end within {timeout:.1f} s") from error


def _seconds_left(request: Request, most: float) -> float:
    left = request.remaining()
    return most if left is None else min(left, most)


def _error(reason: str, message: str) -> CallError:
    return CallError(ErrorHead(reason=reason, message=message))
