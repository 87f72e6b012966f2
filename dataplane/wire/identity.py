"""Who is at the other end of an internal connection, by its certificate.

Here: the identities that the installation CA signs as URI SANs, and how to read one from a finished TLS handshake.
Not here: TLS contexts and renewal (`controlplane.kube.certificates`), what an identity may do (each listener's own
`admit`). Next: `wire.pool` checks the Pod it dialled, `wire.listener` checks who came.
"""

import ssl
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

SCHEME = "kruntimes"
RUNTIMED_DOMAIN = "runtimed.kruntimes.internal"


class GatewayIdentity(Struct, frozen=True, tag="gateway"):
    """A gateway of this installation: may invoke any Run, as a user that it has authorised."""


class ControlPlaneIdentity(Struct, frozen=True, tag="controlplane"):
    """The control plane: it serves the signer, reads logs and journals, and invokes nothing."""


class RuntimedIdentity(Struct, frozen=True, tag="runtimed"):
    """The runtimed of one Pod: may pass calls on to peers of its own namespace and Runtime."""

    namespace: str
    runtime: str
    pod_uid: str


Identity = GatewayIdentity | ControlPlaneIdentity | RuntimedIdentity


class TLSObject(Protocol):
    """What `transport.get_extra_info("ssl_object")` returns, as far as it is asked here."""

    def getpeercert(self) -> dict[str, object] | None: ...


def server_hostname(pod_uid: str) -> str:
    """The DNS SAN of a Pod's runtimed: dialling is by address, the name is checked by TLS itself."""
    return f"{pod_uid.lower()}.{RUNTIMED_DOMAIN}"


def parse_identity(uri: str) -> Identity | None:
    """The identity that a URI SAN names; None when it is none of this installation's forms."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    if parts.scheme != SCHEME or parts.query or parts.fragment:
        return None
    path = parts.path.split("/")[1:] if parts.path else []
    match (parts.netloc, path):
        case ("gateway", []):
            return GatewayIdentity()
        case ("controlplane", []):
            return ControlPlaneIdentity()
        case ("runtimed", [namespace, runtime, pod_uid]) if namespace and runtime and pod_uid:
            return RuntimedIdentity(namespace, runtime, pod_uid)
        case _:
            return None


def peer_identity(tls: TLSObject | ssl.SSLObject | None) -> Identity | None:
    """The one identity of the peer's verified certificate; None without TLS, without one, or with more than one.

    A certificate that names two roles is not trusted for either.
    """
    certificate = tls.getpeercert() if tls is not None else None
    names = certificate.get("subjectAltName", ()) if certificate else ()
    assert isinstance(names, tuple)
    uris = [value for kind, value in names if kind == "URI"]
    return parse_identity(uris[0]) if len(uris) == 1 else None
