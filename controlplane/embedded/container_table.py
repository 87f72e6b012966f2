"""Containers as the supervisor sees them: processes with an id that the node chose, and the records of their ends.

Lives here: the bookkeeping behind the spawn protocol. May not live here: sockets, waiting, what a container is for.
`supervisor` calls it next.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, assert_never

import msgspec

from controlplane.embedded.spawning import (
    Enumerate,
    Enumerated,
    Exited,
    Forget,
    Refused,
    Report,
    Request,
    Signal,
    Spawn,
    Started,
)

CONTAINERS_MAX: Final = 4_096
"""Processes that one node may have at once; far above what one machine runs, below its pid limit."""

ENDED_MAX: Final = 8_192
"""Ends that no node has taken note of; the oldest go first (the node then takes them for lost, which they are)."""


class Container(msgspec.Struct, frozen=True):
    """A container process that lives, or ended and was not reaped yet."""

    id: str
    pid: int
    title: str
    log: Path
    started_us: int


class ContainerTable:
    """Answers the node's requests. `spawn` forks a process and returns its pid, or raises OSError."""

    def __init__(self, spawn: Callable[[Spawn], int]) -> None:
        self._spawn = spawn
        self._by_pid: dict[int, Container] = {}
        self._by_id: dict[str, Container] = {}
        self._ended: dict[str, Exited] = {}

    def __contains__(self, pid: int) -> bool:
        return pid in self._by_pid

    def __iter__(self) -> Iterator[Container]:
        return iter(self._by_pid.values())

    def __len__(self) -> int:
        return len(self._by_pid)

    def answer(self, request: Request) -> list[Report]:
        """Do what the node asks for; what it should be told at once."""
        match request:
            case Spawn():
                return [self._start(request)]
            case Signal(id=id, number=number):
                if (container := self._by_id.get(id)) is not None:
                    os.kill(container.pid, signal.Signals(number))  # unreaped, so the pid is still its own
                return []
            case Forget(id=id):
                self._ended.pop(id, None)
                return []
            case Enumerate():
                living = [Started(c.id, c.pid, c.started_us) for c in self._by_pid.values()]
                return [*living, *self._ended.values(), Enumerated()]
            case _:
                assert_never(request)

    def reaped(self, pid: int, code: int) -> Exited:
        """Process `pid` of a container is gone. The record is kept until the node forgets it."""
        container = self._by_pid.pop(pid)
        del self._by_id[container.id]
        ended = Exited(container.id, code, container.started_us, time.time_ns() // 1_000)
        self._ended[container.id] = ended
        if len(self._ended) > ENDED_MAX:
            del self._ended[next(iter(self._ended))]
        return ended

    def _start(self, request: Spawn) -> Report:
        if (living := self._by_id.get(request.id)) is not None:
            return Started(living.id, living.pid, living.started_us)
        if len(self._by_pid) >= CONTAINERS_MAX:
            return Refused(request.id, f"{CONTAINERS_MAX} containers run already")
        try:
            pid = self._spawn(request)
        except OSError as exc:
            return Refused(request.id, f"cannot start a process: {exc.strerror or exc}")
        container = Container(request.id, pid, request.title, Path(request.log), time.time_ns() // 1_000)
        self._by_pid[pid] = self._by_id[request.id] = container
        self._ended.pop(request.id, None)
        return Started(container.id, pid, container.started_us)
