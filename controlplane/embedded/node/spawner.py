"""The node's end of the spawn protocol: asks the supervisor for processes and passes its reports on.

Lives here: the `Spawner` Protocol that Pods see, and the client on the inherited socket. May not live here: policy.
"""

import asyncio
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

from controlplane.embedded import spawning


class Spawner(Protocol):
    """Starts and signals processes by id. Reports (Started, Exited, Refused) come to whoever registered for the id."""

    def spawn(self, request: spawning.Spawn) -> None:
        """Ask for a process; the answer is a report. Raises spawning.MessageTooLong."""
        ...

    def signal(self, id: str, number: signal.Signals) -> None:
        """Signal a process; nothing happens if it is gone."""
        ...

    def forget(self, id: str) -> None:
        """Its end was taken note of."""
        ...


class SupervisorGone(Exception):
    """The supervisor closed the socket: the node is of no use any more."""


class SpawnerClient:
    """A `Spawner` over a SOCK_SEQPACKET descriptor. Writes never block: what does not fit waits here."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._waiting: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._on_report: Callable[[spawning.Report], None] | None = None

    def spawn(self, request: spawning.Spawn) -> None:
        self._send(request)

    def signal(self, id: str, number: signal.Signals) -> None:
        self._send(spawning.Signal(id, number))

    def forget(self, id: str) -> None:
        self._send(spawning.Forget(id))

    def close(self) -> None:
        """Nothing is sent or heard any more."""
        self._loop.remove_writer(self._socket)
        self._socket.close()

    async def run(self, on_report: Callable[[spawning.Report], None]) -> None:
        """Enumerate, then pass on every report until the supervisor is gone (SupervisorGone)."""
        self._send(spawning.Enumerate())
        while data := await self._loop.sock_recv(self._socket, spawning.MESSAGE_MAX_BYTES):
            on_report(spawning.decode_report(data))
        raise SupervisorGone

    def _send(self, request: spawning.Request) -> None:
        self._waiting.append(spawning.encode(request))
        if len(self._waiting) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._resume)
                return
            except OSError:
                self._waiting.clear()  # the supervisor is gone; `run` says so
                return
            self._waiting.popleft()

    def _resume(self) -> None:
        self._loop.remove_writer(self._socket)
        self._flush()
