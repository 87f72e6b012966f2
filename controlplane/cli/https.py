"""One HTTPS request with the kubeconfig's credential, over the standard library.

`krt invoke` is a process per call: what it imports is what it costs, so it does without the Kubernetes client. Nothing
is ever sent twice.
"""

import contextlib
import http.client
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from controlplane.cli.failure import CANNOT_CONNECT, TIMED_OUT, Failure
from controlplane.kube.kubeconfig import Access, ConfigError

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_MAX_BYTES: Final = 16 * 1024 * 1024  # an answer is at most 1 MiB, a Run at most a few


class Answer(msgspec.Struct, frozen=True):
    """What came back. `tls` says protocol and cipher, `seconds` how long it took from the connection on."""

    status: int
    headers: dict[str, str]
    body: bytes
    tls: str
    seconds: float


def credential_headers(access: Access) -> dict[str, str]:
    """The Authorization header of the kubeconfig's user; none with a client certificate."""
    if access.plugin is not None:
        return _ask_plugin(access)
    try:
        token = access.bearer()
    except ConfigError as error:
        raise Failure("ConfigInvalid", str(error)) from error
    return {"Authorization": f"Bearer {token}"} if token else {}


def request(
    access: Access,
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    ca_pem: bytes | None = None,
    timeout: float = 30.0,
) -> Answer:
    """Send it and read the answer. `ca_pem` replaces the kubeconfig's CA for a URL that is not the API server's.

    Failure, exit code 9, when no connection is made or it is lost; 8 when no answer comes in `timeout` seconds.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with _tls(access, ca_pem) as context:
        connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=context)
        try:
            began = time.monotonic()
            _connect(connection, host, port)
            assert isinstance(connection.sock, ssl.SSLSocket)
            connection.sock.settimeout(timeout)
            cipher = connection.sock.cipher()
            tls = f"{connection.sock.version()} {cipher[0] if cipher else ''}"
            connection.request(method, target, body=body, headers={**credential_headers(access), **(headers or {})})
            answer = connection.getresponse()
            content = answer.read(ANSWER_MAX_BYTES)
        except TimeoutError as error:
            raise Failure("TimedOut", f"{host}:{port} did not answer within {timeout:g} s", TIMED_OUT) from error
        except (OSError, http.client.HTTPException) as error:
            message = f"the connection to {host}:{port} was lost before the answer: {error}"
            raise Failure("OutcomeUnknown", message, CANNOT_CONNECT) from error
        finally:
            connection.close()
    found = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, found, content, tls, time.monotonic() - began)


def _connect(connection: http.client.HTTPSConnection, host: str, port: int) -> None:
    try:
        connection.connect()
    except socket.gaierror as error:
        message = f"the name {host} does not resolve here; name the gateway with --gateway-url"
        raise Failure("CannotConnect", message, CANNOT_CONNECT) from error
    except ssl.SSLError as error:
        raise Failure("CannotConnect", f"TLS with {host}:{port} failed: {error}", CANNOT_CONNECT) from error
    except OSError as error:
        raise Failure("CannotConnect", f"cannot connect to {host}:{port}: {error}", CANNOT_CONNECT) from error


@contextlib.contextmanager
def _tls(access: Access, ca_pem: bytes | None) -> Iterator[ssl.SSLContext]:
    """A client context with the CA and the client certificate, which OpenSSL reads from files only."""
    context = ssl.create_default_context()
    try:
        if ca_pem is not None:
            context = ssl.create_default_context(cadata=ca_pem.decode())
        elif access.ca_pem is not None or access.ca_file is not None:
            cadata = access.ca_pem.decode() if access.ca_pem is not None else None
            context = ssl.create_default_context(cafile=access.ca_file, cadata=cadata)
        if access.insecure and ca_pem is None:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        with contextlib.ExitStack() as files:
            certificate = access.cert_file or _file(files, access.cert_pem)
            key = access.key_file or _file(files, access.key_pem)
            if certificate is not None:
                context.load_cert_chain(certificate, key)
            yield context
    except (ssl.SSLError, OSError) as error:
        raise Failure("ConfigInvalid", f"the kubeconfig's certificates cannot be used: {error}") from error


def _file(files: contextlib.ExitStack, content: bytes | None) -> str | None:
    if content is None:
        return None
    descriptor, path = tempfile.mkstemp(prefix="krt-")
    files.callback(os.unlink, path)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path


def _ask_plugin(access: Access) -> dict[str, str]:
    """A credential plugin is run by the Kubernetes client library."""
    import asyncio

    from controlplane.kube.clock import SystemClock
    from controlplane.kube.transport import Transport

    async def ask() -> str | None:
        transport = Transport(lambda: access, SystemClock())
        try:
            await transport.open()
            return transport.authorization
        finally:
            await transport.close()

    try:
        authorization = asyncio.run(ask())
    except ConfigError as error:
        raise Failure("ConfigInvalid", str(error)) from error
    return {"Authorization": authorization} if authorization else {}
