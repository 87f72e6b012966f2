"""The server side of the internal hop: who may connect is decided by certificate before a single frame is read.

Here: the admission of one connection, how many one peer may have. Not here: contexts
(`controlplane.kube.certificates`), unfinished handshakes (`door`), frames and calls (`runtimes.contract`), what a role
may ask for (the `admit` of the process that listens).
Next: `dataplane.runtimed` listens on its Pod's address and admits gateways and peers of its own Runtime.
"""

import ssl
from collections.abc import Callable
from typing import Final

from dataplane.wire.door import Door
from dataplane.wire.identity import Identity, RuntimedIdentity, peer_identity
from runtimes.contract.endpoint import Server
from runtimes.contract.mux import Connection, Handler

PEER_CONNECTIONS_MAX: Final = 4  # of one Pod: it needs one, and a second while the first ends
SHARED_NAME_CONNECTIONS_MAX: Final = 1_024  # of all gateway processes together, which have one name

Admit = Callable[[Identity], bool]


class NotAdmitted(Exception):
    """The peer's certificate names nobody that this listener serves; its connection is closed without an answer."""


class WireServer(Server):
    """A server whose requests carry the peer's `Identity` as `request.peer`.

    `listen_tcp(host, port, tls=context)` starts it; `context` must require a certificate of the installation CA, since
    a connection without one has no identity and is closed. What one peer can make a process keep is bounded by what one
    connection may hold (`runtimes.contract.limits`) times the connections that it may have.
    """

    def __init__(self, handler: Handler, *, admit: Admit) -> None:
        super().__init__(handler, on_connect=self._admit)
        self._may_connect = admit
        self._door: Door | None = None

    async def listen_tcp(self, host: str, port: int, *, tls: ssl.SSLContext | None) -> int:
        """Listen at host:port (0 = any); the port."""
        self._door = Door(self._make, tls=tls)
        return await self._door.open(host, port)

    def stop_listening(self) -> None:
        """Take no new connections; open ones go on."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def _admit(self, connection: Connection) -> None:
        tls = connection.get_extra_info("ssl_object")
        if tls is None or connection.get_extra_info("sslcontext").verify_mode is not ssl.CERT_REQUIRED:
            raise NotAdmitted("the listener does not require certificates")
        identity = peer_identity(tls)
        if identity is None or not self._may_connect(identity):
            raise NotAdmitted(f"peer {connection.get_extra_info('peername')} is {identity}")
        most = PEER_CONNECTIONS_MAX if isinstance(identity, RuntimedIdentity) else SHARED_NAME_CONNECTIONS_MAX
        if sum(other.peer == identity for other in self.connections) >= most:
            raise NotAdmitted(f"{identity} has {most} connections already")
        connection.peer = identity


def wire_server(handler: Handler, *, admit: Admit) -> WireServer:
    """The server of one runtimed."""
    return WireServer(handler, admit=admit)
