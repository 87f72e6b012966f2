"""Processes by recorded ids: started inside the node's namespaces, signalled and ended by the id that was written down.

An id counts only together with the start time of its process, so that a number that the kernel gave to another process
since is never touched.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from clusterlib.settings import STATE, ClusterError

POLL_S: Final = 0.02
RECORDS: Final = STATE / "processes.json"


@dataclass(frozen=True)
class Process:
    """A process of the node: its id in this machine's numbering, and when it started (clock ticks since boot)."""

    name: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal, unless it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if number == signal.SIGCONT:
                    os.kill(_parent(self.pid), number)  # its nsenter stops with it, and would never wait for it again
                os.kill(self.pid, number)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def start_time(pid: int) -> int | None:
    """When a process started; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def process(name: str, pid: int) -> Process:
    """What is running under this id now. Raises ClusterError when nothing is."""
    started = start_time(pid)
    if started is None:
        raise ClusterError(f"{name} ended as soon as it had started; its log is in {STATE / 'logs'}")
    return Process(name, pid, started)


def recorded() -> dict[str, Process]:
    """Every process that was written down, alive or not."""
    try:
        entries = json.loads(RECORDS.read_text())
    except FileNotFoundError:
        return {}
    return {entry["name"]: Process(**entry) for entry in entries}


def record(*processes: Process) -> None:
    """Write processes down; one of the same name is replaced."""
    known = recorded() | {each.name: each for each in processes}
    beside = RECORDS.with_suffix(".new")
    beside.write_text(json.dumps([asdict(each) for each in known.values()], indent=1))
    beside.replace(RECORDS)


def start(name: str, command: Sequence[str], *, holder: Process, env: Mapping[str, str] | None = None) -> Process:
    """Start a daemon inside the namespaces that `holder` keeps, its output in `logs/<name>.log`; written down."""
    entered = ["nsenter", "--target", str(holder.pid), "--mount", "--net", "--pid", "--", *command]
    with (STATE / "logs" / f"{name}.log").open("ab") as log:
        outer = subprocess.Popen(
            entered,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    # nsenter stays and waits for the daemon, which is its only child.
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    for _ in polls(5.0):
        with contextlib.suppress(FileNotFoundError):
            if inner := children.read_text().split():
                daemon = process(name, int(inner[0]))
                record(daemon)
                return daemon
        if outer.poll() is not None:
            break
    raise ClusterError(f"{name} did not start; see {STATE / 'logs' / name}.log")


def end(which: Sequence[Process], *, number: int = signal.SIGKILL, timeout_s: float = 20.0) -> None:
    """Signal processes and wait until all are gone. Raises ClusterError if one stays."""
    for each in which:
        each.signal(number)
    for _ in polls(timeout_s):
        if not any(each.alive for each in which):
            return
    left = ", ".join(f"{each.name} ({each.pid})" for each in which if each.alive)
    raise ClusterError(f"still running after {timeout_s:g} s: {left}")


def polls(timeout_s: float, pause_s: float = POLL_S) -> Iterator[None]:
    """Turns of a loop that waits for something, until the time is over."""
    deadline = time.monotonic() + timeout_s
    while True:
        yield
        if time.monotonic() >= deadline:
            return
        time.sleep(pause_s)
