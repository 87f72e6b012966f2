"""Requests and their answers as bytes: one way out for every call and every stream.

Bounded in time and size; refusals become `errors`, what aiohttp raises becomes `Unavailable`. Nothing is retried but a
401, once, with a credential that changed meanwhile. `client.py` is the only caller.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from controlplane.kube import wire
from controlplane.kube.errors import Unauthorized, unavailable
from controlplane.kube.transport import Transport, translate

CONNECT_TIMEOUT_S: Final = 5.0  # a server that does not take a connection for this long is down
POOL_TIMEOUT_S: Final = 30.0  # waiting for a free connection included
LINE_MAX_BYTES: Final = 8 * 1024 * 1024  # etcd bounds an object at 1.5 MiB; JSON escapes may take more
ANSWER_MAX_BYTES: Final = 256 * 1024 * 1024  # a page of the largest objects that fit their bound

_JSON: Final = "application/json"
_SUCCESS: Final = range(200, 300)


class Exchange:
    """Sends as `user_agent` over one transport; a call may take `request_timeout` seconds, its answer read."""

    def __init__(self, transport: Transport, *, user_agent: str, request_timeout: float) -> None:
        self._transport = transport
        self._user_agent = user_agent
        self._timeout = aiohttp.ClientTimeout(total=request_timeout, sock_connect=CONNECT_TIMEOUT_S)

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = _JSON,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of a 2xx answer. `headers` replace those that are sent anyway."""
        async with self._send(method, path, query, body, content_type, headers, self._timeout) as answer:
            return await _read(answer, method, path)

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str,
        headers: Mapping[str, str] | None,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request and its 2xx answer, unread. After a 401 once more, if the credential on disk is another one."""
        target = f"{path}?{urlencode(query)}" if query else path
        for last in (False, True):
            generation = await self._transport.current()
            sent = {"Accept": _JSON, "User-Agent": self._user_agent}
            authorization = self._transport.authorization
            if authorization is not None:
                sent["Authorization"] = authorization
            if body is not None:
                sent["Content-Type"] = content_type
            if headers is not None:
                sent.update(headers)
            async with generation.use():
                try:
                    answer = await generation.session.request(
                        method,
                        URL(generation.server + target, encoded=True),
                        data=body,
                        headers=sent,
                        timeout=timeout,
                        allow_redirects=False,
                        proxy=generation.proxy,
                        server_hostname=generation.server_hostname,
                    )
                except (aiohttp.ClientError, OSError, RuntimeError) as error:
                    raise translate(error, method, path) from error
                async with answer:
                    if answer.status in _SUCCESS:
                        yield answer
                        return
                    refusal = wire.error_from(
                        answer.status, await _read(answer, method, path), answer.headers.get("Retry-After")
                    )
            again = not last and isinstance(refusal, Unauthorized)
            if not (again and await self._transport.refresh(generation, authorization)):
                raise refusal

    async def lines(
        self,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str] | None,
        idle: float,
        on_open: Callable[[], None] | None,
    ) -> AsyncGenerator[tuple[bytes, ...], None]:
        """The lines of a GET, complete and not empty, as many at once as one read brought.

        Unavailable after `idle` seconds without a byte, for a line without end, and for an end within a line."""
        timeout = aiohttp.ClientTimeout(
            total=None, connect=POOL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle
        )
        async with self._send("GET", path, query, None, _JSON, headers, timeout) as answer:
            if on_open is not None:
                on_open()
            rest = b""
            try:
                async for chunk in answer.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > LINE_MAX_BYTES:
                        raise unavailable(f"GET {path}: a line is longer than {LINE_MAX_BYTES} bytes", sent=True)
                    if complete := tuple(line for line in lines if line):
                        yield complete
            except (aiohttp.ClientError, OSError) as error:
                raise translate(error, "GET", path) from error
            if rest.strip():
                raise unavailable(f"GET {path}: the stream ended within a line", sent=True)


async def _read(answer: aiohttp.ClientResponse, method: str, path: str) -> bytes:
    """The whole body, bounded."""
    try:
        if (answer.content_length or 0) > ANSWER_MAX_BYTES:
            raise unavailable(f"{method} {path}: the answer is larger than {ANSWER_MAX_BYTES} bytes", sent=True)
        if answer.content_length is not None:
            return await answer.read()
        parts, size = [], 0
        async for chunk in answer.content.iter_any():
            parts.append(chunk)
            size += len(chunk)
            if size > ANSWER_MAX_BYTES:
                raise unavailable(f"{method} {path}: the answer is larger than {ANSWER_MAX_BYTES} bytes", sent=True)
        return b"".join(parts)
    except (aiohttp.ClientError, OSError) as error:
        raise translate(error, method, path) from error
