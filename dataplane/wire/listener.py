"""The server side of the internal hop: who may connect is decided by certificate before a single frame is read.

Here: the admission of one connection. Not here: contexts (`controlplane.kube.certificates`), frames and calls
(`runtimes.contract`), what a role may ask for (the `admit` of the process that listens).
Next: `dataplane.runtimed` listens on its Pod's address and admits gateways and peers of its own Runtime.
"""

import ssl
from collections.abc import Callable

from dataplane.wire.identity import Identity, peer_identity
from runtimes.contract.endpoint import Server
from runtimes.contract.mux import Connection, Handler

Admit = Callable[[Identity], bool]


class NotAdmitted(Exception):
    """The peer's certificate names nobody that this listener serves; its connection is closed without an answer."""


def wire_server(handler: Handler, *, admit: Admit) -> Server:
    """A server whose requests carry the peer's `Identity` as `request.peer`.

    `listen_tcp(host, port, tls=context)` starts it; `context` must require a certificate of the installation CA, since
    a connection without one has no identity and is closed.
    """

    def on_connect(connection: Connection) -> None:
        tls = connection.get_extra_info("ssl_object")
        if tls is None or connection.get_extra_info("sslcontext").verify_mode is not ssl.CERT_REQUIRED:
            raise NotAdmitted("the listener does not require certificates")
        identity = peer_identity(tls)
        if identity is None or not admit(identity):
            raise NotAdmitted(f"peer {connection.get_extra_info('peername')} is {identity}")
        connection.peer = identity

    return Server(handler, on_connect=on_connect)
