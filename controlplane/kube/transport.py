"""Connections to one API server and the credential on them: kubernetes_asyncio's transport, kept fresh.

A `Generation` is one TLS configuration and its connection pool. When a CA, a client certificate or the kubeconfig
itself changes on disk, a new generation takes the next request, and the old one closes once its last answer is read.
Tokens are re-read when their file changes. `client.py` is the only caller.
"""

import asyncio
import base64
import contextlib
import logging
import os
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from controlplane.kube.clock import Clock
from controlplane.kube.errors import Unavailable, unavailable
from controlplane.kube.kubeconfig import Access, ConfigError
from controlplane.kube.library import pieces
from controlplane.kube.memfiles import memory_file
from controlplane.kube.plugin import Credential, Plugin

CHECK_INTERVAL_S: Final = 1.0  # files are looked at this often at most: a rotated token is used within a second
CONNECTIONS_MAX: Final = 64  # at once; watches hold one each, and a burst of calls need not mean a burst of handshakes
KEEP_ALIVE_S: Final = 75.0  # below the 90 s and more after which API servers and their proxies close an idle connection
READ_BUFFER_BYTES: Final = 2 * 1024 * 1024  # above etcd's 1.5 MiB, so that one object needs no second wake-up

_log = logging.getLogger(__name__)


class Generation:
    """One pool of connections with one TLS configuration."""

    def __init__(self, access: Access, certificate: tuple[str, str] | None) -> None:
        configuration = pieces().Configuration(host=access.server)
        configuration.verify_ssl = not access.insecure
        configuration.tls_server_name = access.tls_server_name
        configuration.connection_pool_maxsize = CONNECTIONS_MAX
        with _as_files(access, certificate) as (ca, cert, key):
            configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file = ca, cert, key
            self._rest = pieces().RESTClientObject(configuration)
        # The library leaves the default of 15 s; API servers keep idle connections for minutes; a call after a while
        # should not begin with a handshake.
        self._rest.pool_manager.connector._keepalive_timeout = KEEP_ALIVE_S
        # The library's own session asks two threads about proxies and netrc before each request; this one uses the
        # library's connector, with its TLS configuration, and a proxy that was looked up once.
        self.session = aiohttp.ClientSession(
            connector=self._rest.pool_manager.connector,
            connector_owner=False,
            read_bufsize=READ_BUFFER_BYTES,
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Content-Type"),
        )
        self.server = access.server
        self.server_hostname = access.tls_server_name
        self.proxy = access.proxy or _proxy_of(access.server)
        self.closed = False
        self._users = 0
        self._retired = False

    @contextlib.asynccontextmanager
    async def use(self) -> Any:
        """Hold the pool open for one request."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1
            if self._retired and self._users == 0:
                await self.close()

    async def retire(self) -> None:
        """Close now if idle, else after the last request."""
        self._retired = True
        if self._users == 0:
            await self.close()

    async def close(self) -> None:
        """Close every connection."""
        self.closed = True
        await self.session.close()
        await self._rest.close()


class Transport:
    """The current generation and the current Authorization header. Not thread-safe: one loop owns it."""

    def __init__(self, load: Callable[[], Access], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._access = load()
        self._stamps: dict[str, Any] = {}
        self._checked_at = clock.monotonic()
        self._plugin: Plugin | None = None
        self._credential = Credential()
        self._generation: Generation | None = None
        self._retired: set[Generation] = set()
        self._looking = asyncio.Lock()
        self._complaint = ""

    @property
    def access(self) -> Access:
        """Where this transport leads."""
        return self._access

    @property
    def authorization(self) -> str | None:
        """The Authorization header of the next request."""
        return self._credential.authorization

    async def open(self) -> None:
        """Read every credential and make the first generation. ConfigError when that cannot be used."""
        self._stamps = _stamps(self._access)
        await self._rebuild()

    async def current(self) -> Generation:
        """The generation to use now, after a look at the files if the last one is a second old."""
        if self._generation is not None and self._clock.monotonic() - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = self._clock.monotonic()
            await self._look()
        if self._generation is None:
            raise unavailable("the client is closed", sent=False)
        return self._generation

    async def refresh(self, used: Generation, authorization: str | None) -> bool:
        """The server said 401 to this credential: read and ask everything again. True if there is another one now."""
        if self._is_current(used, authorization):
            await self._look(refused=self._plugin is not None and self._plugin.refused())
        return not self._is_current(used, authorization)

    async def close(self) -> None:
        """Close; requests in flight fail."""
        current, self._generation = self._generation, None
        for generation in (*self._retired, *([current] if current is not None else [])):
            await generation.close()
        self._retired.clear()

    def _is_current(self, used: Generation, authorization: str | None) -> bool:
        return self._generation is used and self._credential.authorization == authorization

    async def _look(self, *, refused: bool = False) -> None:
        async with self._looking:
            try:
                stamps = _stamps(self._access)
                changed = {path for path in stamps if stamps[path] != self._stamps.get(path)}
                if changed - {self._access.token_file}:
                    self._access = self._load()
                    await self._rebuild()
                    stamps = _stamps(self._access)
                elif changed:
                    self._credential = Credential(_authorization(self._access))
                elif self._plugin is not None and (refused or self._plugin.due()):
                    await self._take(await self._plugin.ask())
            except ConfigError as error:
                # A file is just being replaced, or a plugin fails: what we hold may still be good; the server decides.
                if self._complaint != str(error):
                    self._complaint = str(error)
                    _log.warning("kept the credential for %s: %s", self._access.server, error)
                return
            self._stamps, self._complaint = stamps, ""

    async def _rebuild(self) -> None:
        """Everything anew, from the configuration as it now is."""
        if self._access.plugin is None:
            plugin, credential = None, Credential(_authorization(self._access))
        else:
            plugin = Plugin(self._access, self._clock)
            credential = await plugin.ask()
        await self._replace(credential)
        self._plugin = plugin

    async def _take(self, credential: Credential) -> None:
        if credential.certificate != self._credential.certificate:
            await self._replace(credential)
        self._credential = credential

    async def _replace(self, credential: Credential) -> None:
        try:
            generation = Generation(self._access, credential.certificate)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificates for {self._access.server} cannot be used: {error}") from error
        self._credential = credential
        old, self._generation = self._generation, generation
        if old is not None:
            self._retired = {kept for kept in self._retired if not kept.closed} | {old}
            await old.retire()


def translate(error: Exception, method: str, path: str) -> Unavailable:
    """What aiohttp, ssl or the operating system raised, as ours."""
    never_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL)
    text = str(error) or type(error).__name__
    if isinstance(error, TimeoutError) and not never_sent:
        text = "no answer in time"
    return unavailable(f"{method} {path}: {text}", sent=not never_sent)


def _authorization(access: Access) -> str | None:
    token = access.bearer()
    if token:
        if not token.isascii() or any(ch <= " " for ch in token):
            raise ConfigError(f"the token for {access.server} holds characters that no token has")
        return f"Bearer {token}"
    if access.basic is not None:
        return "Basic " + base64.b64encode(":".join(access.basic).encode()).decode()
    return None


def _stamps(access: Access) -> dict[str, Any]:
    """What changes when one of the files that `access` rests on is replaced or written."""
    files = (*access.sources, access.token_file, access.ca_file, access.cert_file, access.key_file)
    stamps: dict[str, Any] = {}
    for path in files:
        if path is not None:
            try:
                found = os.stat(path)  # noqa: PTH116 - on the path of requests, where a Path costs more than the call
            except OSError:
                stamps[path] = None
            else:
                stamps[path] = (found.st_mtime_ns, found.st_size, found.st_ino)
    return stamps


def _proxy_of(server: str) -> str | None:
    """The proxy that the environment names for this server, as HTTPS_PROXY and NO_PROXY say."""
    url = urlsplit(server)
    if url.hostname is None or urllib.request.proxy_bypass(url.hostname):
        return None
    return urllib.request.getproxies().get(url.scheme)


@contextlib.contextmanager
def _as_files(
    access: Access, certificate: tuple[str, str] | None
) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Paths of CA, certificate and key for a library that reads files only. What is in the kubeconfig itself becomes an
    anonymous file in memory, so that no key is written to a disk."""
    with contextlib.ExitStack() as stack:

        def path_of(file: str | None, pem: bytes | None) -> str | None:
            if pem is None:
                return file
            return stack.enter_context(memory_file(pem))

        ca = path_of(access.ca_file, access.ca_pem)
        if certificate is not None:
            yield ca, *certificate
        else:
            yield ca, path_of(access.cert_file, access.cert_pem), path_of(access.key_file, access.key_pem)
