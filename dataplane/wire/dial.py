"""How a runtimed is dialled: TCP, mutual TLS by name, and the identity in its certificate.

Here: one connection attempt and the translation of what can go wrong. Not here: sharing and keeping (`pool`), frames
(`runtimes.contract.mux`). Next: the gateway and runtimed give `tls_dial` to their `Pool`.
"""

import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from dataplane.wire.errors import ConnectFailed, ConnectRefused, ConnectTimedOut, PeerUntrusted
from dataplane.wire.identity import RuntimedIdentity, peer_identity, server_hostname
from dataplane.wire.pool import CONNECT_TIMEOUT_S, Dial, Peer
from runtimes.contract.endpoint import connect_tcp
from runtimes.contract.mux import Connection

DEAD_PEER_MS: Final = 20_000
"""Unacknowledged bytes for this long end a connection: a node that vanished sends no FIN."""

PROBE_IDLE_S: Final = 15
"""An idle connection is probed by the kernel after this, then every PROBE_INTERVAL_S, PROBE_COUNT times."""
PROBE_INTERVAL_S: Final = 5
PROBE_COUNT: Final = 3

_GONE: Final = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})


def tls_dial(context: Callable[[], ssl.SSLContext]) -> Dial:
    """Dial with the context in force at that moment: certificates are renewed without a restart."""

    async def dial(peer: Peer) -> Connection:
        expected = RuntimedIdentity(peer.namespace, peer.runtime, peer.pod_uid)

        def on_connect(connection: Connection) -> None:
            identity = peer_identity(connection.get_extra_info("ssl_object"))
            if identity != expected:
                raise PeerUntrusted(f"{peer.address} is {identity}, dialled was {expected}")
            connection.peer = identity

        try:
            connection = await connect_tcp(
                peer.address,
                peer.port,
                tls=context(),
                server_hostname=server_hostname(peer.pod_uid),
                on_connect=on_connect,
                timeout=CONNECT_TIMEOUT_S,
            )
        except TimeoutError as error:
            raise ConnectTimedOut(f"no connection to {peer.address} within {CONNECT_TIMEOUT_S:g} s") from error
        except ssl.SSLError as error:
            raise PeerUntrusted(f"TLS with {peer.address} failed: {error.reason or error}") from error
        except OSError as error:
            if error.errno in _GONE:
                raise ConnectRefused(f"nobody listens at {peer.address}:{peer.port}") from error
            raise ConnectFailed(f"the connection to {peer.address} broke while it was made: {error}") from error
        if connection.peer is None:
            raise PeerUntrusted(f"{peer.address} did not prove to be Pod {peer.pod_uid}")
        _watch_for_death(connection)
        return connection

    return dial


def _watch_for_death(connection: Connection) -> None:
    sock = connection.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBE_COUNT)
