"""Why no connection to a runtimed could be had: nothing of the call was written in any of these.

Here: the failures of getting a connection; `runtimes.contract.mux` has those of a call (`Refused`, `ConnectionLost`,
`CallTimeout`, `CallError`). Next: `dataplane.gateway.forward` and runtimed's peer hop translate.
"""


class DialError(Exception):
    """No connection could be had: nothing of the call was written."""


class ConnectRefused(DialError):
    """The address answered that nobody listens, or is unreachable: the owner is dead; recovery is told."""


class ConnectTimedOut(DialError):
    """No answer within the bound: the peer is busy or the network is slow. It proves nothing about the owner."""


class ConnectFailed(DialError):
    """The connection broke while it was made: the peer was starting, stopping or overloaded."""


class PeerDraining(DialError):
    """The peer said GOAWAY on the connection that it still has with us: it is leaving, not dead."""


class PeerUntrusted(DialError):
    """TLS failed, or the certificate names another identity than the one dialled."""


class PoolClosed(DialError):
    """The pool is shutting down."""
