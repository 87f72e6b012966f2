"""What the Runtime Server must know of a language, and the worker base class that each language completes.

A `Worker` is one process that answers one invocation at a time. The base holds what no language changes: the process,
its captured output, its channel's bytes, its end. A language says how a job begins and what the bytes mean.
"""

from __future__ import annotations

import abc
import asyncio
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from runtimes.contract.messages import Epoch, ErrorHead
from runtimes.contract.mux import CallError
from runtimes.server.artifacts import ArtifactsFolder
from runtimes.server.child import Child
from runtimes.server.environment import Folders, any_job, find_script
from runtimes.server.logs import Capture, RunLog
from runtimes.server.spawner import Spawner

CHANNEL_READ_BYTES: Final = 262_144
_inbox: Final = memoryview(bytearray(CHANNEL_READ_BYTES))
"""Every channel is read into this, on the loop's one thread: allocating so much for each answer costs page faults."""


class FunctionSpec(msgspec.Struct, frozen=True):
    """What every worker of one function is started with."""

    epoch: Epoch
    handler: str
    folders: Folders
    env: Mapping[str, str]


class TaskSpec(msgspec.Struct, frozen=True):
    """What a task's process is started with.

    `outputs` is the file behind $KRUNTIME_OUTPUTS, `artifacts` the folder behind $KRUNTIME_ARTIFACTS_DIR.
    """

    epoch: Epoch
    entrypoint: str
    args: tuple[str, ...]
    folders: Folders
    env: Mapping[str, str]
    outputs: Path
    artifacts: ArtifactsFolder


def function_job(spec: FunctionSpec, artifacts: ArtifactsFolder) -> dict[str, object]:
    """What the zygote is told of every worker."""
    return any_job(spec.epoch, spec.folders, spec.env, KRUNTIME_ARTIFACTS_DIR=str(artifacts.path))


def task_job(spec: TaskSpec) -> dict[str, object]:
    """What the zygote is told of every task. Raises CallError where its entrypoint is not there."""
    find_script(spec.folders, spec.entrypoint)
    variables = {"KRUNTIME_OUTPUTS": str(spec.outputs), "KRUNTIME_ARTIFACTS_DIR": str(spec.artifacts.path)}
    return any_job(spec.epoch, spec.folders, spec.env, **variables)


class Call:
    """One invocation, from admission to its one answer. `deadline` is loop time; `answer` is called exactly once,
    with the answer's JSON or an error."""

    __slots__ = (
        "answer",
        "artifacts",
        "body",
        "deadline",
        "invocation_id",
        "overdue",
        "started_us",
        "timer",
        "traceparent",
        "worker",
    )

    def __init__(
        self,
        invocation_id: str,
        traceparent: str,
        body: bytes,
        deadline: float,
        answer: Callable[[Call, bytes | None, ErrorHead | None], None],
    ) -> None:
        self.invocation_id = invocation_id
        self.traceparent = traceparent
        self.body = body
        self.deadline = deadline
        self.answer = answer
        self.timer: asyncio.TimerHandle | None = None
        """While it waits for a worker."""
        self.overdue = False
        """Its deadline has passed and its worker is being killed."""
        self.worker: Worker | None = None
        self.artifacts = ""
        """Name of the folder that its files were moved to."""
        self.started_us = 0
        """When a worker got it; monotonic, microseconds (the loop's clock only moves between callbacks)."""


class WorkerListener(Protocol):
    """The owner of a worker. `broken`: it takes no more calls. `ended` comes once, at last: its group is gone."""

    def worker_ready(self, worker: Worker) -> None: ...

    def worker_failed(self, worker: Worker, error: ErrorHead) -> None: ...

    def worker_answered(self, worker: Worker, call: Call, body: bytes | None, error: ErrorHead | None) -> None: ...

    def worker_broken(self, worker: Worker) -> None: ...

    def worker_ended(self, worker: Worker) -> None: ...


class Worker(abc.ABC):
    """One process of a function. Made by `Language.start_worker`; `kill` and `invoke` are its owner's only verbs."""

    def __init__(self, spec: FunctionSpec, spawner: Spawner, log: RunLog, listener: WorkerListener) -> None:
        self.spec = spec
        self.ready = False
        self.ended = False
        self.killed = False
        self.broken = False
        self.calls = 0
        self.born = time.monotonic()
        self.looked_at = 0.0
        """When its owner last looked whether it is worn."""
        self.call: Call | None = None
        self._listener = listener
        self._spawner = spawner
        self._loop = asyncio.get_running_loop()
        self._failed = False
        self.artifacts = _artifacts_folder(spec.folders)
        self.child = child = spawner.take()
        child.on_exit = self._exited
        self._stdout = Capture(self._loop, child.stdout, "stdout", log)
        self._stderr = Capture(self._loop, child.stderr, "stderr", log)
        self._printed = select.poll()
        for pipe in (child.stdout, child.stderr):
            self._printed.register(pipe, select.POLLIN)
        self._loop.add_reader(child.channel, self._readable)
        self.begin()

    # What a language says.

    @abc.abstractmethod
    def begin(self) -> None:
        """Send the job to the fresh child."""

    @abc.abstractmethod
    def received(self, data: bytes) -> None:
        """Bytes from the child. Calls `started`, `start_failed` or `answered` when a message is whole."""

    @abc.abstractmethod
    def dispatch(self, call: Call) -> None:
        """Send one call; `answered` follows, or the end of the process."""

    @abc.abstractmethod
    def died_before_start(self, child: Child, stderr: str) -> ErrorHead:
        """Why a worker that ended before it was ready did so: never an empty message."""

    def cleanup(self) -> None:  # noqa: B027 - most languages keep nothing outside of the process
        """Remove what was made for this worker outside of the process. The process is gone."""

    # What its owner does.

    def invoke(self, call: Call) -> None:
        """Give it a call; it must be ready and have none."""
        self.call = call
        self.calls += 1
        call.worker = self
        call.started_us = time.monotonic_ns() // 1000
        self._stdout.begin(call.invocation_id)
        self._stderr.begin(call.invocation_id)
        self.dispatch(call)

    @property
    def live(self) -> bool:
        """It serves, or will."""
        return not self.killed and not self.broken

    def kill(self) -> None:
        """End its process group; `worker_ended` follows when it is gone. What it still says is not heard."""
        self.killed = True
        self._spawner.kill(self.child)

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the process, 0 when it cannot be read."""
        try:
            # No Path: each would put the number into the interpreter's table of names, fifty times a second.
            with open(f"/proc/{self.child.pid}/statm", "rb") as statm:  # noqa: PTH123
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        except (OSError, IndexError, ValueError):
            return 0

    # What a language calls.

    @property
    def stderr_tail(self) -> str:
        """What was written to stderr since the call, or the start, began; at most STDERR_TAIL_MAX_BYTES."""
        self._stderr.drain()
        return self._stderr.tail

    def log_lines(self, lines: list[bytes]) -> None:
        """Log lines of the current call's stdout that did not come through the pipe."""
        self._stdout.log(lines)

    def started(self) -> None:
        self._finish_output()
        self.ready = True
        if not self.killed:
            self._listener.worker_ready(self)

    def start_failed(self, error: ErrorHead) -> None:
        self._failed = True
        if not self.killed:
            self._listener.worker_failed(self, error)
        self.kill()

    def give_up(self) -> None:
        """Hear nothing more from it and end it: its channel is closed, or somebody else has written on it."""
        self.child.close_channel()
        self.broken = True
        self._spawner.kill(self.child)
        self._listener.worker_broken(self)

    def answered(self, body: bytes | None, error: ErrorHead | None, *, why: str = "") -> None:
        """The current call's answer is here; its stderr log gets `why` it failed, behind all that it printed. Late
        ones, of a killed worker, are dropped."""
        call = self.call
        if call is None or not self.live:
            return
        self._finish_output(why)
        self.call = None
        if self.artifacts.touched:
            error = self._take_artifacts(call, error)
        self._listener.worker_answered(self, call, None if error is not None else body, error)

    def _take_artifacts(self, call: Call, error: ErrorHead | None) -> ErrorHead | None:
        """What the call put into its folder goes with its answer; what a failed one left goes away."""
        try:
            taken = self.artifacts.take()
        except OSError as broken:
            message = f"the call's artifacts cannot be handed over: {broken.strerror}"
            return error or ErrorHead(reason="ArtifactUploadFailed", message=message)
        if error is None:
            call.artifacts = taken
        elif taken:
            self._loop.run_in_executor(None, self.artifacts.discard, taken)
        return error

    # Bytes and the end.

    def _finish_output(self, why: str = "") -> None:
        """What was printed until now belongs to the call that ends. One look tells that nothing was, the usual case."""
        printed = bool(self._printed.poll(0))
        self._stdout.finish(drain=printed)
        self._stderr.finish(why, drain=printed)

    def _readable(self) -> None:
        try:
            size = self.child.channel.recv_into(_inbox)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size:
            self.received(_inbox[:size].tobytes())
            return
        self.give_up()  # Without a channel it is of no use, whether it knows that or not.

    def _exited(self, child: Child) -> None:
        while self._more():
            self._readable()  # What it said before it died, to the end.
        child.close_channel()
        stderr = self.stderr_tail
        self._stdout.close()
        self._stderr.close()
        self.ended = True
        if not self.ready and not self._failed and not self.killed:
            self._listener.worker_failed(self, self.died_before_start(child, stderr))
        self.cleanup()
        self.artifacts.remove()
        self._listener.worker_ended(self)

    def _more(self) -> bool:
        try:
            return bool(self.child.channel.recv(1, socket.MSG_PEEK))
        except OSError:
            return False  # Nothing, or it is closed.


def _artifacts_folder(folders: Folders) -> ArtifactsFolder:
    folder = ArtifactsFolder(folders)
    try:
        folder.create()
    except OSError as error:
        message = f"the worker's folder cannot be made: {error.strerror}"
        raise CallError(ErrorHead(reason="RuntimeServerError", message=message)) from error
    return folder


class Language(Protocol):
    """A language of the Runtime Server."""

    name: str
    default_script: str
    """File name that runtimed gives a task's inline source (A5)."""
    interpreter: str
    """Under which the zygote runs."""

    def start_worker(self, spec: FunctionSpec, spawner: Spawner, log: RunLog, listener: WorkerListener) -> Worker: ...

    def task_job(self, spec: TaskSpec) -> dict[str, object]:
        """The job that makes a fresh child this task. Raises CallError SourceInvalid."""
        ...
