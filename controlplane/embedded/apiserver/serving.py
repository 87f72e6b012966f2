"""The server's own certificate and its TLS context.

Lives here: what the address is called. May not live here: signing (`controlplane.pki.ca`). `main.py` calls it once.
"""

import ipaddress
import ssl
from pathlib import Path
from typing import Final

from controlplane.pki.ca import create_installation, ensure_server_certificate

_NAME: Final = "apiserver"
_HOSTS: Final = (
    "localhost",
    "127.0.0.1",
    "::1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


def server_context(pki_dir: Path, host: str) -> ssl.SSLContext:
    """A context with `apiserver.crt` and `.key` of the folder, made where absent. Raises OSError, PkiError."""
    create_installation(pki_dir)
    hosts = _HOSTS if host in _HOSTS or _is_unspecified(host) else (*_HOSTS, host)
    ensure_server_certificate(pki_dir, _NAME, hosts)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(pki_dir / f"{_NAME}.crt", pki_dir / f"{_NAME}.key")
    context.set_alpn_protocols(["http/1.1"])
    return context


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
