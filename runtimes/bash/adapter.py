"""Bash for the Runtime Server: a worker runs `driver.sh`, which has sourced the file and starts a subshell a call.

Of each call: the request is a file, what the handler prints comes through a named pipe made for it alone (`CallFiles`,
ready before the call comes), the answer is read here from that, or from $KRUNTIME_OUTPUTS. JSON is checked here before
the handler runs: Bash has no parser.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

from runtimes.bash.files import CallFiles
from runtimes.contract.limits import (
    INVOKE_RESULT_MAX_BYTES,
    STDERR_TAIL_MAX_BYTES,
)
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError
from runtimes.server import channel
from runtimes.server.checks import check_numbers
from runtimes.server.child import Child
from runtimes.server.environment import find_script, make_folder, remove_tree
from runtimes.server.language import Call, FunctionSpec, TaskSpec, Worker, WorkerListener, function_job, task_job
from runtimes.server.logs import RunLog
from runtimes.server.outputs import OutputsInvalid, parse_outputs
from runtimes.server.spawner import Spawner

DRIVER: Final = (Path(__file__).parent / "driver.sh").read_bytes()
"""Read once, when this process starts: an upgrade that replaces the file does not change what a worker speaks."""
CALLS_AHEAD: Final = 2
"""Calls whose files are there before they come: the next subshell opens its own as soon as the last one has ended."""
PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""What keeps a call's files from being made and is no user code's doing: the next call may have them."""
LINE_MAX_BYTES: Final = 64
"""Of what the driver reports."""
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

    def __init__(
        self, spec: FunctionSpec, spawner: Spawner, log: RunLog, listener: WorkerListener, *, command: list[str]
    ) -> None:
        self._command = command
        super().__init__(spec, spawner, log, listener)

    def begin(self) -> None:
        spec = self.spec
        self._file, self._function = _split(spec.handler)
        self._lines = b""
        self._number = 0
        """Of the call that is running or was the last."""
        self._reported = 0
        """Of the last call whose subshell has ended."""
        self._folder = spec.folders.calls / str(self.child.number)
        self._folder_fd = -1
        self._token = secrets.token_hex(8)
        self._ahead: deque[CallFiles] = deque()
        self._current: CallFiles | None = None
        try:
            self._folder_fd = make_folder(self._folder)
            for number in range(1, CALLS_AHEAD + 1):
                self._prepare(number)
        except OSError as error:
            message = f"the worker's files: {error.strerror}"
            raise CallError(ErrorHead(reason="RuntimeServerError", message=message)) from error
        self.child.send(
            channel.job(
                {
                    **function_job(spec, self.artifacts),
                    "kind": "exec",
                    "readable": self._command,
                    "argv": [*self._command, self._file, self._function],
                    "channel": True,
                    "told": f"{self._token} {self._folder}\n",  # Not in argv: command lines are there for all to read.
                }
            )
        )

    def _prepare(self, number: int) -> None:
        self._ahead.append(CallFiles(self._folder_fd, number, self._token))

    def dispatch(self, call: Call) -> None:
        try:
            check_numbers(call.body)
        except CallError as refused:
            self.answered(None, refused.error)
            return
        try:
            if not self._ahead:
                self._prepare(self._number + 1)
            files = self._ahead[0]
            files.write_request(call.body)
        except OSError as error:
            if error.errno in PASSING:
                self.answered(None, ErrorHead(reason="InternalError", message=f"the call's files: {error.strerror}"))
            else:
                self.give_up()
            return
        self._number += 1
        self._current = self._ahead.popleft()
        self._loop.add_reader(files.answer_fd, self._printed_something)
        deadline = time.time() + call.deadline - self._loop.time()
        said = f"{call.invocation_id} {deadline:.3f} {call.traceparent}"
        self.child.send(f"{len(said):03}{said}".encode())

    def received(self, data: bytes) -> None:
        if not self.ready and data[0] == channel.FAILED:  # No shell yet: the child could not become one.
            try:
                failed = channel.decode(data)
                head = msgspec.json.decode(failed[0][2] if failed else b"", type=ErrorHead)
            except (channel.ChannelBroken, msgspec.MsgspecError):
                self.give_up()
            else:
                self.start_failed(head)
            return
        *lines, self._lines = (self._lines + data).split(b"\n")
        if len(self._lines) > LINE_MAX_BYTES:
            self.give_up()
            return
        for line in lines:
            word, _, status = line.decode("ascii", "replace").partition(" ")
            if not self.ready and word in (STARTED, MISSING) and status.isdigit():
                self._sourced(word, int(status))
            elif word == str(self._reported + 1) and self._reported < self._number and status.isdigit():
                self._reported += 1
                if self._current is not None and self._reported == self._number:
                    self._finished(self._current, int(status))
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

    def _printed_something(self) -> None:
        files = self._current
        assert files is not None
        if not files.read_answer():
            self._loop.remove_reader(files.answer_fd)
        if files.status is not None:
            self._finished(files, files.status)

    def _finished(self, files: CallFiles, status: int) -> None:
        """The handler has ended; what it printed is in the pipe at the latest now."""
        self._loop.remove_reader(files.answer_fd)
        self._current = None
        outputs = files.read_outputs()
        printed, size = files.end()
        stderr = self.stderr_tail
        self._loop.call_soon(self._turn_over, files)
        if status:
            message = f"{self._function} ended with status {status}"
            last = stderr.splitlines()[-1] if stderr else ""
            error = _error("HandlerFailed", f"{message}: {last}" if last else message, stderr)
            self.answered(None, error, why=message)  # Its last line is in the log already.
            return
        if outputs:
            self._stdout_to_log(printed)
            body, invalid = _answer_of_outputs(outputs)
        else:
            body, invalid = _answer_of_stdout(printed, size)
        self.answered(body, invalid, why=invalid.message if invalid is not None else "")

    def _turn_over(self, files: CallFiles) -> None:
        """Once the answer is out: the call's files go, and those of a later one come."""
        files.remove()
        if self.live:
            try:
                self._prepare(self._number + len(self._ahead) + 1)
            except OSError as error:
                # The call that needs them tries again, and says it; but what user code did to the folder stays.
                if error.errno not in PASSING:
                    self.give_up()

    def _stdout_to_log(self, printed: bytes) -> None:
        if printed:
            self.log_lines(printed.rstrip(b"\n").split(b"\n"))

    def died_before_start(self, child: Child, stderr: str) -> ErrorHead:
        if child.exit_code is None:
            return ErrorHead(reason="RuntimeServerError", message=child.failure or "the worker could not be started")
        message = f"sourcing {self._file} ended the shell with status {child.exit_code}"
        last = stderr.splitlines()[-1] if stderr else ""
        return _error("ImportFailed", f"{message}: {last}" if last else message, stderr)

    def cleanup(self) -> None:
        if self._current is not None:
            self._loop.remove_reader(self._current.answer_fd)
            self._ahead.append(self._current)
        for files in self._ahead:
            files.remove()
        self._ahead.clear()
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
        remove_tree(self._folder)


class Bash:
    """The Bash language. Its processes are forked by a zygote too, under this server's own interpreter."""

    name = "bash"
    default_script = "main.sh"

    def __init__(self, interpreter: str, work: Path) -> None:
        """Writes the driver to the work folder. Raises OSError."""
        self.interpreter = sys.executable
        self.shell = interpreter
        self._driver = work / "driver.sh"
        self._driver.unlink(missing_ok=True)
        self._driver.write_bytes(DRIVER)

    def start_worker(self, spec: FunctionSpec, spawner: Spawner, log: RunLog, listener: WorkerListener) -> Worker:
        find_script(spec.folders, _split(spec.handler)[0])
        return BashWorker(spec, spawner, log, listener, command=[self.shell, str(self._driver)])

    def task_job(self, spec: TaskSpec) -> dict[str, object]:
        return {
            **task_job(spec),
            "kind": "exec",
            "argv": [self.shell, "--", spec.entrypoint, *spec.args],
            "channel": False,
            "told": "",
        }


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
