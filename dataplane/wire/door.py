"""A listening port whose unfinished TLS handshakes are few and short: who does not finish one keeps nobody else out.

Here: accepting sockets, and the bounds of what has not proved anything yet. `loop.create_server` has none: it takes
every socket and lets each handshake last. Not here: what is spoken behind the handshake, how many connections there may
be (each protocol's own). Next: `gateway.process` opens one for its clients, `wire.listener` one for gateways and peers.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final

from runtimes.contract.deadlines import EARLY_S

HANDSHAKE_TIMEOUT_S: Final = 10.0  # as long as a head may take
HANDSHAKES_MAX: Final = 512  # unfinished at once; then the kernel's queue holds who comes
HANDSHAKE_PRESSED_S: Final = (
    1.0  # older ones are given up while that many are unfinished: a good one takes milliseconds
)
BACKLOG: Final = 1024  # connections that the kernel holds while none is accepted
ACCEPTS_A_TURN: Final = 64  # then the loop serves others first
ACCEPT_AGAIN_S: Final = 0.1  # after an error that is none of one connection's

_log = logging.getLogger(__name__)


class Door:
    """Connections of one or several addresses, each made by `factory` when its handshake is done."""

    def __init__(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None,
        handshakes_max: int = HANDSHAKES_MAX,
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self._factory = factory
        self._tls = tls
        self._handshakes_max = handshakes_max
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._handshakes: dict[asyncio.Task[None], float] = {}  # in the order in which they began
        self._accepting = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def handshakes(self) -> int:
        """Unfinished ones."""
        return len(self._handshakes)

    @property
    def port(self) -> int:
        """Of the first address."""
        bound: int = self._listeners[0].getsockname()[1]
        return bound

    async def open(self, host: str | None, port: int, *, share: bool = False) -> int:
        """Listen at every address of `host` (None = all of this machine); the port. Raises OSError.

        `share`: several processes listen there, and the kernel deals connections out.
        """
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            if self._listeners and not port:
                address = (address[0], self.port, *address[2:])
            try:
                self._listeners.append(_listen(family, address, share=share))
            except OSError as error:
                # A machine may name an address of a family that it does not speak.
                if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) or len(found) == 1:
                    self.close()
                    raise
        if not self._listeners:
            raise OSError(errno.EADDRNOTAVAIL, f"no address of {host} can be listened at")
        self._accept_on()
        return self.port

    def stop(self) -> None:
        """Listen no more; what was accepted goes on."""
        self._accept_off()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        """Stop, and give up the unfinished handshakes; connections that were made go on."""
        self.stop()
        for handshake in list(self._handshakes):
            handshake.cancel()

    # --- accepting

    def _accept_on(self) -> None:
        if not self._accepting:
            self._accepting = True
            for listener in self._listeners:
                self._loop.add_reader(listener, self._accept, listener)

    def _accept_off(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._accepting:
            self._accepting = False
            for listener in self._listeners:
                self._loop.remove_reader(listener)

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        self._accept_off()
        self._timer = self._loop.call_later(max(0.0, seconds), then)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_A_TURN):
            if len(self._handshakes) >= self._handshakes_max:
                oldest = next(iter(self._handshakes.values()))
                self._pause(oldest + HANDSHAKE_PRESSED_S - self._loop.time(), self._give_up_the_old)
                return
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or memory is left, or the network is down
                _log.error("no connection can be accepted: %s", error.strerror)
                self._pause(ACCEPT_AGAIN_S, self._accept_on)
                return
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        handshake = self._loop.create_task(self._shake(accepted))
        self._handshakes[handshake] = self._loop.time()
        handshake.add_done_callback(partial(self._ended, accepted))

    async def _shake(self, accepted: socket.socket) -> None:
        timeout = self._timeout_s if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                self._factory, accepted, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except OSError as error:  # ssl.SSLError too: whoever came speaks no TLS, shows a bad certificate, or is gone
            _log.debug("a handshake failed: %s", error)

    def _ended(self, accepted: socket.socket, handshake: "asyncio.Task[None]") -> None:
        del self._handshakes[handshake]
        if handshake.cancelled():
            accepted.close()  # its transport has, unless it was cancelled before it had one
        elif (error := handshake.exception()) is not None:
            _log.error("a connection could not be taken", exc_info=error)
        if self._listeners and not self._accepting and len(self._handshakes) < self._handshakes_max:
            self._accept_off()  # its timer
            self._accept_on()

    def _give_up_the_old(self) -> None:
        """As many as it takes are unfinished: those that should have been done by now make room."""
        self._timer = None
        until = self._loop.time() - HANDSHAKE_PRESSED_S + EARLY_S
        for handshake, since in list(self._handshakes.items()):
            if since > until:
                break
            handshake.cancel()


def _listen(family: int, address: object, *, share: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if share:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)  # type: ignore[arg-type]
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
