"""Where connections come from: dial a unix socket or TLS address, or listen on one.

Nothing of the protocol lives here (that is `mux`), and no pooling (that is the data plane's).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

from runtimes.contract.limits import CONNECT_TIMEOUT_MS
from runtimes.contract.mux import Connection, Handler

_UCRED = struct.Struct("3i")


async def connect_unix(
    path: str | Path,
    *,
    handler: Handler | None = None,
    on_close: Callable[[Connection], None] | None = None,
    timeout: float = CONNECT_TIMEOUT_MS / 1000,
) -> Connection:
    """Dial a unix socket. Raises OSError (ConnectionRefusedError, FileNotFoundError) or TimeoutError."""
    loop = asyncio.get_running_loop()
    made = loop.create_unix_connection(lambda: Connection(handler=handler, on_close=on_close), os.fspath(path))
    async with asyncio.timeout(timeout):
        return (await made)[1]


async def connect_tcp(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None,
    server_hostname: str | None = None,
    handler: Handler | None = None,
    on_connect: Callable[[Connection], None] | None = None,
    on_close: Callable[[Connection], None] | None = None,
    timeout: float = CONNECT_TIMEOUT_MS / 1000,
) -> Connection:
    """Dial host:port. Raises OSError, ssl.SSLError or TimeoutError; `on_connect` may raise to refuse the peer."""
    loop = asyncio.get_running_loop()
    made = loop.create_connection(
        lambda: Connection(handler=handler, on_connect=on_connect, on_close=on_close),
        host,
        port,
        ssl=tls,
        server_hostname=server_hostname if tls else None,
    )
    async with asyncio.timeout(timeout):
        return (await made)[1]


class Server:
    """Listens, makes a Connection of each peer, knows those that are open."""

    def __init__(self, handler: Handler, *, on_connect: Callable[[Connection], None] | None = None) -> None:
        self._handler = handler
        self._on_connect = on_connect
        self._server: asyncio.Server | None = None
        self.connections: set[Connection] = set()

    def _make(self) -> Connection:
        return Connection(
            handler=self._handler, on_connect=self._connected, on_close=self.connections.discard, initiator=False
        )

    def _connected(self, connection: Connection) -> None:
        if self._on_connect is not None:
            self._on_connect(connection)
        self.connections.add(connection)

    async def listen_unix(self, path: str | Path, *, mode: int = 0o600) -> None:
        """Listen at `path`, replacing what a dead server left. Raises OSError (a live server, or no such folder)."""
        listener = _bind(Path(path), mode)
        self._server = await asyncio.get_running_loop().create_unix_server(self._make, sock=listener, backlog=1024)

    async def listen_tcp(self, host: str, port: int, *, tls: ssl.SSLContext | None) -> int:
        """Listen at host:port (0 = any); return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make, host, port, ssl=tls, backlog=1024)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def stop_listening(self) -> None:
        """Take no new connections; open ones go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def drain(self, *, timeout: float) -> bool:
        """Stop listening, GOAWAY everywhere, wait for what is in flight, close. False: something was cut off."""
        self.stop_listening()
        drained = await asyncio.gather(*(connection.drain(timeout=timeout) for connection in list(self.connections)))
        return all(drained)

    def close(self) -> None:
        """Stop listening and close every connection at once."""
        self.stop_listening()
        for connection in list(self.connections):
            connection.abort()


def peer_credentials(connection: Connection) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process at the other end of a unix socket."""
    sock = connection.get_extra_info("socket")
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid


def _bind(path: Path, mode: int) -> socket.socket:
    """A socket bound to `path`; a socket file there that nobody listens on is replaced."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(os.fspath(path))
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    else:
        raise OSError(f"another server listens on {path}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.fspath(path))
    path.chmod(mode)
    return listener
