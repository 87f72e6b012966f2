"""One end of a datagram pair in a selector loop: messages in, messages out, never blocking.

Lives here: receiving, queueing and closing. May not live here: what the messages mean. `supervisor` calls it next.
"""

import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

QUEUE_MAX: Final = 4_096
"""Messages that wait for a peer which does not read; beyond this it is given up."""


class Channel:
    """`on_message` gets each datagram, `on_closed` hears once that the peer is gone or was given up.

    It owns the socket. Raises nothing of what a peer may do to it."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sock: socket.socket,
        *,
        message_max_bytes: int,
        on_message: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._selector = selector
        self._socket = sock
        self._message_max_bytes = message_max_bytes
        self._on_message = on_message
        self._on_closed = on_closed
        self._waiting: deque[bytes] = deque()
        self._open = True
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, self._ready)

    def send(self, data: bytes) -> None:
        """Now, or when the peer reads again; never, once it is gone."""
        if self._open:
            self._waiting.append(data)
            self._flush()

    def read_all(self) -> None:
        """Take what is there already: the last words of a peer that has ended."""
        while self._open and self._receive():
            pass

    def close(self) -> None:
        """Without a word to `on_closed`."""
        if self._open:
            self._open = False
            self._selector.unregister(self._socket)
            self._socket.close()

    def _ready(self) -> None:
        if self._waiting:
            self._flush()
        if self._open:
            self._receive()

    def _receive(self) -> bool:
        """One datagram. False when there is none."""
        try:
            data = self._socket.recv(self._message_max_bytes)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._on_message(data)
            return True
        self._give_up()
        return False

    def _flush(self) -> None:
        try:
            while self._waiting:
                self._socket.send(self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            if len(self._waiting) > QUEUE_MAX:
                self._give_up()
                return
        except OSError:
            self._give_up()
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._waiting else 0)
        self._selector.modify(self._socket, events, self._ready)

    def _give_up(self) -> None:
        self.close()
        self._on_closed()
