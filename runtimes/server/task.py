"""One task: a process that is started once, cancelled with TERM then KILL, and whose result is kept until Forget."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import msgspec

from runtimes.contract.limits import OUTPUTS_FILE_MAX_BYTES
from runtimes.contract.messages import ErrorHead, TaskResult
from runtimes.contract.mux import CallError
from runtimes.server import channel
from runtimes.server.child import Child
from runtimes.server.environment import read_regular_file, remove_folders
from runtimes.server.language import TaskSpec
from runtimes.server.logs import Capture, RunLog
from runtimes.server.outputs import OutputsInvalid, parse_outputs
from runtimes.server.spawner import Spawner


class _Failure(msgspec.Struct):
    reason: str
    message: str


class Task:
    """Holds one epoch. `start` runs it; `result` is there when `gone` is done: no process and no folder is left."""

    def __init__(
        self,
        *,
        spec: TaskSpec,
        digest: str,
        spawner: Spawner,
        log: RunLog,
        on_gone: Callable[[Task], None],
    ) -> None:
        self.spec = spec
        self.epoch = spec.epoch
        self.digest = digest
        self.result: TaskResult | None = None
        self.closed = False
        self.started_us = 0
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._spawner = spawner
        self._log = log
        self._on_gone = on_gone
        self._child: Child | None = None
        self._error: ErrorHead | None = None
        self._incoming = b""
        self._kill_timer: asyncio.TimerHandle | None = None
        self._finishing: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        return not self.closed and self.result is None

    @property
    def ending(self) -> bool:
        """It could not be started: it will be gone, and dropped, without anybody's doing."""
        return self._error is not None

    async def start(self, job: dict[str, object], timeout: float) -> None:
        """Start the process and return when it runs the user's code. Raises CallError; nothing is left then."""
        self.spec.outputs.touch(mode=0o600)
        self.spec.artifacts.create()
        self._child = child = self._spawner.take()
        child.on_exit = self._exited
        self._stdout = Capture(self._loop, child.stdout, "stdout", self._log)
        self._stderr = Capture(self._loop, child.stderr, "stderr", self._log)
        self._loop.add_reader(child.channel, self._readable)
        self.started_us = time.time_ns() // 1000
        child.send(channel.job(job))
        await self.until_started(timeout)

    async def until_started(self, timeout: float) -> None:
        """Return when the process runs the user's code, or did. Raises CallError; nothing is left then."""
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self.started)
        except TimeoutError:
            self._error = ErrorHead(reason="RuntimeServerError", message=f"no process started within {timeout:.1f} s")
            if self._child is not None:
                self._spawner.kill(self._child)
        if self._error is not None:
            await asyncio.shield(self.gone)
            raise CallError(self._error)

    def cancel(self, grace_ms: int) -> None:
        """TERM to its group now, KILL after the grace. Repeated: a shorter grace counts."""
        self.closed = True
        child = self._child
        if child is None or self._finishing is not None:
            return
        if self._kill_timer is None:
            self._spawner.terminate(child)
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._kill_timer = self._loop.call_later(grace_ms / 1000, self._spawner.kill, child)

    def _readable(self) -> None:
        """STARTED, FAILED, or the end of the channel, which closes when the process becomes another program."""
        child = self._child
        assert child is not None
        try:
            data = child.channel.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._incoming += data
        try:
            decoded = channel.decode(self._incoming)
        except channel.ChannelBroken:
            decoded = None
        if decoded is not None and decoded[0][0] == channel.FAILED:
            failure = msgspec.json.decode(decoded[0][2], type=_Failure)
            self._error = ErrorHead(reason=failure.reason, message=failure.message)
        if not data or decoded is not None:
            self._loop.remove_reader(child.channel)
            if not self.started.done():
                self.started.set_result(None)

    def _exited(self, child: Child) -> None:
        self._readable_to_the_end()
        self._stdout.close()
        self._stderr.close()
        child.close_channel()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if child.exit_code is None and self._error is None and not self.started.done():
            self._error = ErrorHead(reason="RuntimeServerError", message=child.failure or "the process did not start")
        self._finishing = self._loop.create_task(self._finish(child))

    def _readable_to_the_end(self) -> None:
        while not self.started.done():
            before = len(self._incoming)
            self._readable()
            if len(self._incoming) == before:
                break

    async def _finish(self, child: Child) -> None:
        finished_us = time.time_ns() // 1000
        outputs: dict[str, str] = {}
        outputs_error = ""
        try:
            outputs = parse_outputs(self._read_outputs())
        except OutputsInvalid as error:
            outputs_error = str(error)
        except OSError as error:
            outputs_error = f"$KRUNTIME_OUTPUTS cannot be read: {error.strerror}"
        artifacts, artifacts_error = self._take_artifacts()
        tail = self._stderr.tail
        await asyncio.to_thread(self._remove_folders)
        self._log.close()
        self.result = TaskResult(
            exit_code=child.exit_code if child.exit_code is not None else 128 + signal.SIGKILL,
            outputs=outputs,
            outputs_error=outputs_error,
            artifacts=artifacts,
            artifacts_error=artifacts_error,
            stderr_tail=tail,
            started_us=self.started_us,
            finished_us=finished_us,
            cancelled=self.closed,
        )
        if not self.started.done():
            self.started.set_result(None)
        if self._error is not None:
            self._on_gone(self)
        self.gone.set_result(None)

    def _take_artifacts(self) -> tuple[str, str]:
        """Name of the folder with what the task left, or why that cannot be had."""
        if not self.spec.artifacts.touched:
            return "", ""
        try:
            return self.spec.artifacts.take(), ""
        except OSError as error:
            return "", f"the task's artifacts cannot be handed over: {error.strerror}"

    def _remove_folders(self) -> None:
        self.spec.artifacts.remove()
        remove_folders(self.spec.folders)

    def _read_outputs(self) -> bytes:
        return read_regular_file(self.spec.outputs, OUTPUTS_FILE_MAX_BYTES + 1)
