"""Names in the certificates of an installation: URI SANs say who, DNS and IP SANs say where.

Pure text. `signer.py` decides who gets which; the data plane reads them back from a finished handshake.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

SCHEME: Final = "kruntimes"
INTERNAL_DOMAIN: Final = "kruntimes.internal"  # never resolves: only ever checked by TLS
HOSTS_MAX: Final = 32  # of one certificate; a gateway has a handful of names and addresses
HOST_MAX_CHARS: Final = 253

_DNS_NAME: Final = re.compile(r"(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)*[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PART: Final = re.compile(r"[A-Za-z0-9]([-.A-Za-z0-9]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a certificate names: `uri` for machines, `common_name` for people who read it, hosts that it may serve."""

    uri: str | None
    common_name: str
    hosts: tuple[str, ...]
    client: bool = True


def gateway(hosts: tuple[str, ...]) -> Subject:
    """A gateway of the installation, reachable under these hosts."""
    return Subject(f"{SCHEME}://gateway", "gateway", checked_hosts(hosts))


def control_plane(hosts: tuple[str, ...]) -> Subject:
    """The control plane, which serves the signer."""
    return Subject(f"{SCHEME}://controlplane", "controlplane", checked_hosts(hosts))


def runtimed(namespace: str, runtime: str, pod_uid: str) -> Subject:
    """The runtimed of one Pod. Its only host is a name that a dialler checks while it dials the Pod's address."""
    for part in (namespace, runtime, pod_uid):
        if _PART.fullmatch(part) is None:
            raise ValueError(f"{part[:64]!r} cannot stand in an identity")
    return Subject(f"{SCHEME}://runtimed/{namespace}/{runtime}/{pod_uid}", "runtimed", (runtimed_host(pod_uid),))


def runtimed_host(pod_uid: str) -> str:
    """The name that the certificate of a Pod's runtimed has: dialling is by address, TLS checks this."""
    return f"{pod_uid.lower()}.runtimed.{INTERNAL_DOMAIN}"


def is_control_plane(certificate: Mapping[str, Any] | None) -> bool:
    """Whether a verified peer certificate, as `getpeercert` gives it, names the control plane and nobody else."""
    found = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in found if kind == "URI"] == [f"{SCHEME}://controlplane"]


def server(name: str, hosts: tuple[str, ...]) -> Subject:
    """A server without an identity among ours, such as the embedded API server."""
    return Subject(None, name, checked_hosts(hosts), client=False)


def checked_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """DNS names and IP addresses in their canonical form; ValueError for anything else, and for our internal names."""
    if len(hosts) > HOSTS_MAX:
        raise ValueError(f"{len(hosts)} hosts, at most {HOSTS_MAX} fit one certificate")
    return tuple(dict.fromkeys(_checked(host) for host in hosts))


def _checked(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    name = host.lower().rstrip(".")
    if len(name) > HOST_MAX_CHARS or _DNS_NAME.fullmatch(name) is None:
        raise ValueError(f"{host[:64]!r} is neither a DNS name nor an IP address")
    if name == INTERNAL_DOMAIN or name.endswith(f".{INTERNAL_DOMAIN}"):
        raise ValueError(f"{name!r} is a name for the runtimed of a Pod")
    return name
