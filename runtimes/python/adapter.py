"""Python for the Runtime Server: what a worker is sent and what it answers. The worker itself is `function.py`.

Bodies pass through as bytes: only the worker parses JSON.
"""

from __future__ import annotations

import time
from typing import Final

import msgspec

from runtimes.contract.limits import INVOKE_RESULT_MAX_BYTES
from runtimes.contract.messages import ErrorHead
from runtimes.server import channel
from runtimes.server.child import Child
from runtimes.server.language import Call, FunctionSpec, TaskSpec, Worker, WorkerListener, function_job, task_job
from runtimes.server.logs import RunLog
from runtimes.server.spawner import Spawner

ASYNC_MODULES: Final = ("asyncio",)
"""Imported in the zygote once a function needs them: 15–40 ms and 7 MiB that each worker would pay for itself."""


class Failure(msgspec.Struct):
    """Why a load or a call failed, as the worker says it."""

    reason: str
    message: str
    type: str = ""
    frames: str = ""

    def head(self) -> ErrorHead:
        details = {key: value for key, value in (("type", self.type), ("frames", self.frames)) if value}
        return ErrorHead(reason=self.reason, message=self.message, details=details)

    def logged(self) -> str:
        """As an interpreter prints what nobody has caught; nothing of a request that was at fault itself."""
        if self.reason == "InvalidRequest":
            return ""
        return f"Traceback (most recent call last):\n{self.frames}{self.message}" if self.frames else self.message


class Started(msgspec.Struct):
    asynchronous: bool = False


_failure: Final = msgspec.json.Decoder(Failure).decode
_started: Final = msgspec.json.Decoder(Started).decode


class PythonWorker(Worker):
    """One process that has loaded the handler."""

    def begin(self) -> None:
        spec = self.spec
        self._parts: list[bytes] = []
        self._missing = 0
        self._sequence = 0
        self.child.send(
            channel.job(
                {
                    **function_job(spec, self.artifacts),
                    "kind": "function",
                    "artifacts": str(self.artifacts.path),
                    "handler": spec.handler,
                    "run": {"uid": spec.epoch.run_uid, "attempt": spec.epoch.attempt},
                    "result_max_bytes": INVOKE_RESULT_MAX_BYTES,
                }
            )
        )

    def dispatch(self, call: Call) -> None:
        self._sequence += 1
        deadline = time.time() + call.deadline - self._loop.time()
        meta = f"{call.invocation_id}\n{call.traceparent}\n{deadline:.6f}".encode()
        self.child.send(channel.invoke(self._sequence, meta, call.body))

    def received(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return  # In the midst of a large answer.
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            while (decoded := channel.decode(data)) is not None:
                message, size = decoded
                data = data[size:]
                self._message(message)
        except (channel.ChannelBroken, msgspec.DecodeError, msgspec.ValidationError):
            data = b""
            self.give_up()  # Something in the worker has written on the private channel.
        if data:
            self._parts.append(data)
            self._missing = channel.missing(data)

    def _message(self, message: channel.Message) -> None:
        """Raises ChannelBroken for what it may not say now: nothing before STARTED but that or FAILED, afterwards one
        answer to the call that it has."""
        kind, sequence, meta, body = message
        answers = kind in (channel.RESULT, channel.ERROR)
        if answers != self.ready or (answers and (self.call is None or sequence != self._sequence)):
            raise channel.ChannelBroken(f"kind {kind}, sequence {sequence}")
        if kind == channel.RESULT:
            if len(body) > INVOKE_RESULT_MAX_BYTES:
                raise channel.ChannelBroken(f"a result of {len(body)} bytes")
            self.answered(body, None)
        elif kind == channel.ERROR:
            failure = _failure(meta)
            self.answered(None, failure.head(), why=failure.logged())
        elif kind == channel.STARTED:
            if _started(meta).asynchronous:
                self._spawner.preload(ASYNC_MODULES)
            self.started()
        else:
            self.start_failed(_failure(meta).head())

    def died_before_start(self, child: Child, stderr: str) -> ErrorHead:
        if child.exit_code is None:
            return ErrorHead(reason="RuntimeServerError", message=child.failure or "the worker could not be started")
        message = f"the process ended with exit code {child.exit_code} while {self.spec.handler} was imported"
        return ErrorHead(reason="ImportFailed", message=message, details={"stderr": stderr} if stderr else {})


class Python:
    """The Python language; `interpreter` is the user's."""

    name = "python"
    default_script = "main.py"

    def __init__(self, interpreter: str) -> None:
        self.interpreter = interpreter

    def start_worker(self, spec: FunctionSpec, spawner: Spawner, log: RunLog, listener: WorkerListener) -> Worker:
        return PythonWorker(spec, spawner, log, listener)

    def task_job(self, spec: TaskSpec) -> dict[str, object]:
        return {
            **task_job(spec),
            "kind": "task",
            "entrypoint": spec.entrypoint,
            "args": spec.args,
        }
