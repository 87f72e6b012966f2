"""Bash for the Runtime Server: a worker runs `driver.sh`, which has sourced the file and starts a subshell a call.

Of each call: the request is a file, what the handler prints comes through a named pipe made for it alone, the answer
is read here from that, or from $KRUNTIME_OUTPUTS. JSON is checked here before the handler runs: Bash has no parser.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from runtimes.contract.limits import (
    INVOKE_RESULT_MAX_BYTES,
    OUTPUTS_FILE_MAX_BYTES,
    STDERR_TAIL_MAX_BYTES,
)
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError
from runtimes.server import channel
from runtimes.server.child import Child
from runtimes.server.environment import LIMITS, find_script, read_regular_file, user_environment
from runtimes.server.language import Call, FunctionSpec, TaskSpec, Worker, WorkerListener
from runtimes.server.logs import RunLog
from runtimes.server.outputs import OutputsInvalid, parse_outputs
from runtimes.server.spawner import Spawner

DRIVER: Final = Path(__file__).parent / "driver.sh"
READ_BYTES: Final = 65536
STARTED, MISSING = "started", "missing"
_SYNTAX_ERROR: Final = re.compile(r"line \d+: (syntax error|unexpected EOF)")
_EXPECTED: Final = 'expected one JSON object {"outputs": {...}, "artifactRefs": [{"name": ..., "uri": ...}]} on stdout'


class ArtifactRef(msgspec.Struct):
    name: str
    uri: str


class Answer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The shape of an answer; `outputs` holds any JSON."""

    outputs: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    artifact_refs: list[ArtifactRef] = []


_check_answer: Final = msgspec.json.Decoder(Answer).decode


class BashWorker(Worker):
    """One bash that has sourced the file."""

    def begin(self) -> None:
        spec = self.spec
        self._file, self._function = _split(spec.handler)
        self._lines = b""
        self._sequence = 0
        self._answer_fd: int | None = None
        self._answer: list[bytes] = []
        self._answer_size = 0
        self._folder = spec.folders.calls / str(self.child.number)
        self._folder.mkdir(mode=0o700)
        self.child.send(
            channel.job(
                {
                    "kind": "exec",
                    "root": str(spec.folders.source),
                    "env": user_environment(
                        spec.epoch, spec.folders, spec.env, KRUNTIME_ARTIFACTS_DIR=str(self.artifacts.path)
                    ),
                    "limits": LIMITS,
                    "private": spec.folders.own,
                    "readable": (str(DRIVER),),
                    "argv": ["bash", str(DRIVER), self._file, self._function, str(self._folder)],
                    "channel": True,
                }
            )
        )

    def dispatch(self, call: Call) -> None:
        try:
            # The contract's JSON is UTF-8 and has no NaN: msgspec refuses the latter, decode the former.
            msgspec.json.decode(call.body.decode("utf-8"))
        except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
            self.answered(None, ErrorHead(reason="InvalidRequest", message=f"the request body is not JSON: {error}"))
            return
        self._sequence += 1
        number = self._sequence
        try:
            _write_new(self._folder / f"request.{number}", call.body)
            pipe = self._folder / f"answer.{number}"
            os.mkfifo(pipe, 0o600)
            self._answer_fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._end_call(number)
            self.answered(None, ErrorHead(reason="InternalError", message=f"the call's files: {error.strerror}"))
            return
        self._loop.add_reader(self._answer_fd, self._read_answer)
        deadline = time.time() + call.deadline - self._loop.time()
        self.child.send(f"{number} {call.invocation_id} {deadline:.3f} {call.traceparent}\n".encode())

    def received(self, data: bytes) -> None:
        if not self.ready and data[0] == channel.FAILED:  # No shell yet: the child could not become one.
            failed = channel.decode(data)
            meta = failed[0][2] if failed else b"{}"
            self.start_failed(msgspec.json.decode(meta, type=ErrorHead))
            return
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            word, _, status = line.decode("ascii", "replace").partition(" ")
            if not self.ready and word in (STARTED, MISSING) and status.isdigit():
                self._sourced(word, int(status))
            elif self.call is not None and word == str(self._sequence) and status.isdigit():
                self._finished(self._sequence, int(status))
            else:
                self.give_up()  # Not our driver's line.
                return

    def _sourced(self, word: str, status: int) -> None:
        stderr = self.stderr_tail
        if status and _SYNTAX_ERROR.search(stderr):
            self.start_failed(_error("ImportFailed", f"sourcing {self._file}: {stderr.splitlines()[0]}", stderr))
        elif word == MISSING:
            message = f"{self._file} defines no function {self._function} (handler {self.spec.handler})"
            self.start_failed(_error("HandlerNotFound", message, stderr))
        else:
            self.started()

    def _finished(self, number: int, status: int) -> None:
        outputs = self._read_outputs(number)
        printed, size = self._end_call(number)
        stderr = self.stderr_tail
        if status:
            message = f"{self._function} ended with status {status}"
            last = stderr.splitlines()[-1] if stderr else ""
            self.answered(None, _error("HandlerFailed", f"{message}: {last}" if last else message, stderr))
        elif outputs:
            self._stdout_to_log(printed)
            self.answered(*_answer_of_outputs(outputs))
        else:
            self.answered(*_answer_of_stdout(printed, size))

    def _stdout_to_log(self, printed: bytes) -> None:
        if printed:
            self.log_lines(printed.rstrip(b"\n").split(b"\n"))

    def _read_outputs(self, number: int) -> bytes:
        try:
            return read_regular_file(self._folder / f"outputs.{number}", OUTPUTS_FILE_MAX_BYTES + 1)
        except OSError:
            return b""

    def _read_answer(self) -> int:
        """Take what the handler has printed. What is beyond the bound is counted and dropped: it never blocks."""
        assert self._answer_fd is not None
        try:
            data = os.read(self._answer_fd, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._loop.remove_reader(self._answer_fd)
            return 0
        self._answer_size += len(data)
        if self._answer_size <= INVOKE_RESULT_MAX_BYTES + READ_BYTES:
            self._answer.append(data)
        return len(data)

    def _end_call(self, number: int) -> tuple[bytes, int]:
        """Close and remove what was made for the call; return what the handler printed, and its whole size."""
        if self._answer_fd is not None:
            for _ in range(16):  # A pipe's capacity: whoever still writes does not hold the answer up.
                if not self._read_answer():
                    break
            self._loop.remove_reader(self._answer_fd)
            os.close(self._answer_fd)
            self._answer_fd = None
        for name in ("request", "answer", "outputs"):
            (self._folder / f"{name}.{number}").unlink(missing_ok=True)
        printed, size = b"".join(self._answer), self._answer_size
        self._answer, self._answer_size = [], 0
        return printed, size

    def died_before_start(self, child: Child, stderr: str) -> ErrorHead:
        if child.exit_code is None:
            return ErrorHead(reason="RuntimeServerError", message=child.failure or "the worker could not be started")
        message = f"sourcing {self._file} ended the shell with status {child.exit_code}"
        last = stderr.splitlines()[-1] if stderr else ""
        return _error("ImportFailed", f"{message}: {last}" if last else message, stderr)

    def cleanup(self) -> None:
        if self._answer_fd is not None:
            self._end_call(self._sequence)
        shutil.rmtree(self._folder, ignore_errors=True)


class Bash:
    """The Bash language. Its processes are forked by a zygote too, under this server's own interpreter."""

    name = "bash"
    default_script = "main.sh"

    def __init__(self, interpreter: str) -> None:
        self.interpreter = sys.executable
        self.shell = interpreter

    def start_worker(self, spec: FunctionSpec, spawner: Spawner, log: RunLog, listener: WorkerListener) -> Worker:
        find_script(spec.folders, _split(spec.handler)[0])
        return BashWorker(spec, spawner, log, listener)

    def task_job(self, spec: TaskSpec) -> dict[str, object]:
        find_script(spec.folders, spec.entrypoint)
        return {
            "kind": "exec",
            "root": str(spec.folders.source),
            "env": user_environment(
                spec.epoch,
                spec.folders,
                spec.env,
                KRUNTIME_OUTPUTS=str(spec.outputs),
                KRUNTIME_ARTIFACTS_DIR=str(spec.artifacts.path),
            ),
            "limits": LIMITS,
            "private": spec.folders.own,
            "readable": (),
            "argv": [self.shell, "--", spec.entrypoint, *spec.args],
            "channel": False,
        }


def _write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist: user code may have put anything in its place, also what blocks."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
        file.write(data)


def _split(handler: str) -> tuple[str, str]:
    """`file.function`, dots before the last being folders -> (path of the file, function)."""
    file, _, function = handler.rpartition(".")
    parts = file.split(".")
    if not function or not all(parts) or "/" in handler:
        raise CallError(ErrorHead(reason="SourceInvalid", message=f"handler {handler!r} is not file.function"))
    return "/".join(parts) + ".sh", function


def _answer_of_outputs(data: bytes) -> tuple[bytes | None, ErrorHead | None]:
    try:
        return msgspec.json.encode({"outputs": parse_outputs(data)}), None
    except OutputsInvalid as error:
        return None, ErrorHead(reason="HandlerResultInvalid", message=f"$KRUNTIME_OUTPUTS: {error}")


def _answer_of_stdout(printed: bytes, size: int) -> tuple[bytes | None, ErrorHead | None]:
    if size > INVOKE_RESULT_MAX_BYTES:
        message = f"the handler printed {size} bytes; at most {INVOKE_RESULT_MAX_BYTES} are answered"
        return None, ErrorHead(reason="ResponseTooLarge", message=message)
    answer = printed.strip()
    try:
        answer.decode("utf-8")
        checked = _check_answer(answer)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as error:
        begin = answer[:80].decode("utf-8", "replace")
        message = f"{error}; {_EXPECTED}" + (f", got {begin!r}" if begin else ", got nothing")
        return None, ErrorHead(reason="HandlerResultInvalid", message=message)
    if checked.outputs is msgspec.UNSET:
        answer = msgspec.json.encode({"outputs": {}} | msgspec.json.decode(answer))
    return answer, None


def _error(reason: str, message: str, stderr: str) -> ErrorHead:
    details = {"stderr": stderr[-STDERR_TAIL_MAX_BYTES:]} if stderr else {}
    return ErrorHead(reason=reason, message=message, details=details)
