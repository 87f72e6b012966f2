"""Runs the suite against one server and says of each case whether it holds. Next: `krt conformance`.

A server that somebody else has started is judged on everything but what needs its death (C8, C9): for those the suite
has to start it, by a command that takes KRUNTIMES_SOCKET and KRUNTIMES_WORK_DIR from the environment.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from runtimes.conformance import functions, server, tasks
from runtimes.conformance.dialects import Dialect, NoProgram
from runtimes.conformance.explaining import explained
from runtimes.conformance.kit import Bench
from runtimes.contract.calls import CallError
from runtimes.contract.client import RuntimeClient
from runtimes.contract.messages import UNKNOWN_METHOD

CASE_MAX_S: Final = 90.0  # the longest one logs 150,000 lines
START_MAX_S: Final = 20.0
STOP_MAX_S: Final = 15.0
STDERR_SHOWN_MAX_BYTES: Final = 1000  # of a server that does not listen: its last words

Parts = Literal["server", "functions", "tasks"]
PARTS: Final = {"server": server, "functions": functions, "tasks": tasks}


class NotListening(Exception):
    """No server is at the socket; the message says which one, and what became of the one that was started."""


@dataclass
class Outcome:
    """Of one case. `why` is empty when it holds."""

    lines: str
    name: str
    verdict: Literal["ok", "failed", "skipped"]
    why: str = ""
    seconds: float = 0.0


@dataclass
class Running:
    """A server that runs already, or that `command` starts. Its work folder is where sources are put."""

    dialect: Dialect
    socket: Path
    folder: Path
    command: tuple[str, ...] = ()
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        """Of whoever listens, as the kernel says."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self.socket))
            packed = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid: int = struct.unpack("3i", packed)[0]
            return pid

    def start(self) -> None:
        environ = os.environ | {
            "KRUNTIMES_SOCKET": str(self.socket),
            "KRUNTIMES_WORK_DIR": str(self.folder),
        }
        with self._log.open("ab") as log:
            self.started.append(subprocess.Popen(self.command, env=environ, stdout=log, stderr=log))

    def kill(self) -> None:
        self.started[-1].kill()
        self.started[-1].wait(STOP_MAX_S)

    def stop(self) -> int:
        process = self.started[-1]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait(STOP_MAX_S)

    def end(self) -> None:
        """Leave nothing that was started here."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait(STOP_MAX_S)

    def homes(self) -> list[Path]:
        return list(self.folder.glob("runs/*/*/home"))

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    async def connect(self) -> RuntimeClient:
        """A client, as soon as the server listens. Raises NotListening."""
        until = time.monotonic() + START_MAX_S
        while True:
            code = self.started[-1].poll() if self.started else None
            try:
                return await RuntimeClient.connect(self.socket)
            except OSError as error:
                if code is not None:
                    message = f"server ended with {code} before it listened on {self.socket}; {self._last_words()}"
                    raise NotListening(message) from error
                if not self.started:
                    raise NotListening(f"nothing listens on {self.socket}: {error.strerror}") from error
                if time.monotonic() > until:
                    message = f"server did not listen on {self.socket} within {START_MAX_S:g} s; {self._last_words()}"
                    raise NotListening(message) from error
                await asyncio.sleep(0.02)

    def _last_words(self) -> str:
        said = self._log.read_bytes()[-STDERR_SHOWN_MAX_BYTES:].decode("utf-8", "replace").strip()
        return f"its stderr: {said}" if said else "its stderr is empty"

    def await_listening(self) -> None:
        """Wait until it listens. Raises NotListening."""

        async def once() -> None:
            client = await self.connect()
            client.close()
            await client.connection.closed

        asyncio.run(once())


def run(
    subject: Running,
    *,
    parts: tuple[Parts, ...],
    only: str = "",
    without: tuple[str, ...] = (),
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run every case whose name or lines contain `only`, but nothing of `without`; `told` hears of each as it ends."""
    outcomes = []
    for part in parts:
        for name, lines, case, values in _cases(part):
            if only and only not in name and only not in lines.split(", "):
                continue
            if any(part_of_name in name for part_of_name in without):
                continue
            began = time.monotonic()
            verdict, why = asyncio.run(_judge(subject, case, values))
            outcome = Outcome(lines, name, verdict, why, time.monotonic() - began)
            outcomes.append(outcome)
            told(outcome)
    return outcomes


def _cases(part: Parts) -> Iterator[tuple[str, str, Callable[..., Any], dict[str, Any]]]:
    """(name, lines, case, its values) in the order of the file."""
    for name, case in vars(explained(PARTS[part])).items():
        if not name.startswith("test_"):
            continue
        lines, shown = (case.__doc__ or "").strip(), name.removeprefix("test_").replace("_", " ")
        names, rows = getattr(case, "each", ((), [()]))
        for row in rows:
            values = {names: row} if isinstance(names, str) else dict(zip(names, row, strict=True))
            label = f"{shown} {str(row)[:40]}" if values else shown
            yield label, lines, case, values


async def _judge(
    subject: Running, case: Callable[..., Any], values: dict[str, Any]
) -> tuple[Literal["ok", "failed", "skipped"], str]:
    wanted = inspect.signature(case).parameters
    mine = "fresh" in wanted or "own" in wanted
    if mine and not subject.command:
        return "skipped", "it ends the server: give the command that starts one"
    with tempfile.TemporaryDirectory(prefix="kr-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        used = subject
        if mine:
            (folder / "w").mkdir()
            used = Running(subject.dialect, folder / "s", folder / "w", subject.command)
        try:
            async with asyncio.timeout(CASE_MAX_S):
                await _run(used, case, values, folder, fresh=mine)
        except NoProgram as missing:
            return "skipped", str(missing)
        except CallError as error:
            if error.error.reason == UNKNOWN_METHOD and "Task" in error.error.message:
                return "skipped", "this Runtime has no tasks"
            return "failed", str(error)
        except TimeoutError:
            return "failed", f"not within {CASE_MAX_S:g} s"
        except NotListening as error:
            return "failed", str(error)
        except Exception as error:
            return "failed", _where(error)
        finally:
            if mine:
                used.end()
    return "ok", ""


async def _run(
    subject: Running, case: Callable[..., Any], values: dict[str, Any], folder: Path, *, fresh: bool
) -> None:
    given = dict(values)
    wanted = inspect.signature(case).parameters
    if fresh:
        subject.start()
    if "tmp_path" in wanted:
        given["tmp_path"] = folder
    if "fresh" in wanted:
        given["fresh"] = subject
        await case(**given)
        return
    client = await subject.connect()
    try:
        given["own" if "own" in wanted else "bench"] = Bench(client, subject, folder)
        await case(**given)
    finally:
        client.close()
        await client.connection.closed


def _where(error: Exception) -> str:
    """The last line of the suite that the error passed."""
    trace, last = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "conformance" in code.co_filename and Path(code.co_filename).name != "runner.py":
            last = f"{Path(code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    said = f"{kind}{error}" if str(error) else type(error).__name__
    return f"{last}: {said}"[:600]


def split_command(text: str) -> tuple[str, ...]:
    """A command line as a shell splits it."""
    return tuple(shlex.split(text))
