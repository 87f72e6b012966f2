"""Connections with TLS on them: whose certificates are believed, for which names, and which way the bytes go.

May not live here: requests (`https` puts them on the connection).
"""

import contextlib
import http.client
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from controlplane.cli.credentials import Credential
from controlplane.cli.failure import CANNOT_CONNECT, Failure
from controlplane.kube.kubeconfig import Access

CONNECT_TIMEOUT_S: Final = 10.0
_NAME_MISMATCH: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

Dial = Callable[[str, int], Any]
"""Makes what TLS goes over: a socket, straight to the host or through a proxy, or a `forward.Tunnel`."""


class Unresolved(Failure):
    """The host's name means nothing here."""


class Trust(NamedTuple):
    """Whose certificates are believed, and for which names, tried in order; none: the URL's host."""

    ca_file: str | None = None
    ca_pem: bytes | None = None
    system: bool = True
    insecure: bool = False
    names: tuple[str, ...] = ()


def api_trust(access: Access) -> Trust:
    """What the kubeconfig says of the API server's certificate."""
    own = access.ca_file is not None or access.ca_pem is not None
    names = (access.tls_server_name,) if access.tls_server_name else ()
    return Trust(access.ca_file, access.ca_pem, not own, access.insecure, names)


def split(url: str, what: str) -> SplitResult:
    """The parts of a URL; Failure when it is none."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname or (parts.port or 443) > 65535:
            raise ValueError(url)
    except ValueError as error:
        raise Failure("InvalidURL", f"{what}: {url[:256]!r} is no URL") from error
    return parts


def address(parts: SplitResult) -> tuple[str, int]:
    """Host and port of a URL."""
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def route(parts: SplitResult, proxy: str | None = None) -> Dial:
    """Through `proxy`, or the one that the environment names for this host, or straight to it."""
    if proxy is None:
        names = ("HTTPS_PROXY", "https_proxy") if parts.scheme == "https" else ("http_proxy",)
        if not any(os.environ.get(variable) for variable in names):
            return direct
        import urllib.request  # 20 ms, for those who have a proxy

        if urllib.request.proxy_bypass(parts.hostname or ""):
            return direct
        proxy = urllib.request.getproxies().get(parts.scheme)
    return through_proxy(proxy) if proxy else direct


def direct(host: str, port: int) -> socket.socket:
    """A connection to the host itself."""
    return socket.create_connection((host, port), CONNECT_TIMEOUT_S)


def through_proxy(proxy: str) -> Dial:
    """Connections through an HTTP proxy, by CONNECT."""
    parts = split(proxy, "proxy")

    def dial(host: str, port: int) -> socket.socket:
        sock = socket.create_connection((parts.hostname or "", parts.port or 3128), CONNECT_TIMEOUT_S)
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        answer = http.client.HTTPResponse(sock, method="CONNECT")
        try:
            sock.sendall(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode("ascii", "replace"))
            answer.begin()
            if answer.status != 200:
                raise OSError(f"the proxy {parts.hostname} answered {answer.status} {answer.reason}")
        except BaseException:
            sock.close()
            raise
        finally:
            answer.close()
        return sock

    return dial


def connect(parts: SplitResult, credential: Credential, trust: Trust, dial: Dial) -> tuple[Any, dict[str, str]]:
    """A connection with TLS on it, the server's certificate checked for the first name that fits, and facts of it.

    Failure, exit code 9, when it cannot be made."""
    host, port = address(parts)
    names = list(dict.fromkeys(trust.names)) or [host]
    try:
        if parts.scheme == "http":
            return dial(host, port), {}
        with _context(credential, trust) as context:
            for last, name in ((name == names[-1], name) for name in names):
                try:
                    return _secured(context, dial(host, port), name)
                except ssl.SSLCertVerificationError as error:
                    if last or error.verify_code not in _NAME_MISMATCH:
                        raise
    except socket.gaierror as error:
        raise Unresolved("CannotConnect", f"the name {host} does not resolve here", CANNOT_CONNECT) from error
    except ssl.SSLError as error:
        what = getattr(error, "verify_message", "") or error.reason or error
        raise Failure("CannotConnect", f"TLS with {host}:{port} failed: {what}", CANNOT_CONNECT) from error
    except (OSError, http.client.HTTPException) as error:
        what = getattr(error, "strerror", None) or error
        raise Failure("CannotConnect", f"cannot connect to {host}:{port}: {what}", CANNOT_CONNECT) from error
    raise AssertionError("a name was tried")


def _secured(context: ssl.SSLContext, sock: Any, name: str) -> tuple[Any, dict[str, str]]:
    wrap = getattr(sock, "secured", None)  # what is no socket brings its own way of putting TLS on it
    try:
        secured = wrap(context, name) if wrap is not None else context.wrap_socket(sock, server_hostname=name)
    except BaseException:
        sock.close()
        raise
    cipher = secured.cipher()
    facts = {"version": secured.version() or "", "cipher": cipher[0] if cipher else "", "name": name}
    peer: Any = secured.getpeercert()
    if peer:
        subject = dict(pair for group in peer.get("subject", ()) for pair in group)
        facts["certificate"] = f"{subject.get('commonName', '')} until {peer.get('notAfter', '')}".strip()
        facts["hosts"] = ", ".join(value for _, value in peer.get("subjectAltName", ()))
    return secured, facts


@contextlib.contextmanager
def _context(credential: Credential, trust: Trust) -> Iterator[ssl.SSLContext]:
    """A client context. The system's certificates are read only where they count: 20 ms."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if trust.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif trust.ca_pem is not None:
            context.load_verify_locations(cadata=trust.ca_pem.decode("ascii"))
        elif trust.ca_file is not None:
            context.load_verify_locations(cafile=trust.ca_file)
        if trust.system and not trust.insecure:
            context.load_default_certs()
        with contextlib.ExitStack() as files:
            certificate = credential.cert_file or _file(files, credential.cert_pem)
            if certificate is not None:
                context.load_cert_chain(certificate, credential.key_file or _file(files, credential.key_pem))
    except (ssl.SSLError, OSError, ValueError) as error:
        paths = ", ".join(path for path in (trust.ca_file, credential.cert_file, credential.key_file) if path)
        what = getattr(error, "strerror", None) or error
        where = f" of {paths}" if paths else ""
        raise Failure("ConfigInvalid", f"the certificates{where} cannot be used: {what}") from error
    yield context


def _file(files: contextlib.ExitStack, pem: bytes | None) -> str | None:
    """OpenSSL reads certificates from files only; this one is in memory, so that no key is written to a disk."""
    if pem is None:
        return None
    descriptor = os.memfd_create("krt", os.MFD_CLOEXEC)
    files.callback(os.close, descriptor)
    os.write(descriptor, pem)
    return f"/proc/self/fd/{descriptor}"
