"""One process below the zygote, as this side holds it: its channel, its output pipes, its end.

It is made before the process is (`spawner` asks the zygote for the fork), so that a job can be written to it at once.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable


class Child:
    """One process, from before its fork until nothing of its group is left.

    `channel`, `stdout` and `stderr` are this side's non-blocking ends; whoever takes the child closes them.
    `on_exit(child)` is called once, when the whole group is gone; `exit_code` is then set (None: it never ran, or
    nobody saw its end; `failure` says why).
    """

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        self._loop = loop
        self._outgoing: list[bytes | memoryview] = []
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.failure = ""
        self.gone = False
        self.on_exit: Callable[[Child], None] | None = None
        self.kill_wanted = False
        self.channel, theirs = socket.socketpair()
        self.stdout, out = os.pipe2(os.O_CLOEXEC)
        self.stderr, err = os.pipe2(os.O_CLOEXEC)
        self.channel.setblocking(False)
        os.set_blocking(self.stdout, False)
        os.set_blocking(self.stderr, False)
        self.theirs: tuple[int, ...] = (theirs.detach(), out, err)

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)
        self.theirs = ()

    def send(self, data: bytes) -> None:
        """Write to its channel, buffering what the socket does not take. A child that is dying takes nothing."""
        if not self._outgoing:
            try:
                sent = self.channel.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return
            if sent == len(data):
                return
            self._loop.add_writer(self.channel, self._writable)
            self._outgoing.append(memoryview(data)[sent:])
        else:
            self._outgoing.append(data)

    def _writable(self) -> None:
        data = self._outgoing[0]
        try:
            sent = self.channel.send(data)
        except BlockingIOError:
            return
        except OSError:
            self._outgoing = [data]
            sent = len(data)
        if sent < len(data):
            self._outgoing[0] = memoryview(data)[sent:]
            return
        del self._outgoing[0]
        if not self._outgoing:
            self._loop.remove_writer(self.channel)

    def close_channel(self) -> None:
        """Close this side of the channel, and read and write it no more. Repeating it is allowed."""
        if self.channel.fileno() != -1:
            self._loop.remove_reader(self.channel)
            self._loop.remove_writer(self.channel)
            self.channel.close()

    def close(self) -> None:
        """Close this side's ends (for a child that nobody took over)."""
        self.close_channel()
        os.close(self.stdout)
        os.close(self.stderr)
