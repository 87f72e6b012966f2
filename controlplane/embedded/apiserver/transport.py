"""aiohttp as the HTTP server: one handler, no routing, and errors as Status before a request reaches it.

Lives here: limits of heads and bodies, what a malformed request gets. May not live here: answers. `main.py` listens
with it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from controlplane.embedded.apiserver import errors, limits

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Protocol(RequestHandler):
    """A connection whose own refusals (bad framing, too long a header) are Status objects too."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        error = errors.of_code(status, message or "the request could not be read")
        response = web.Response(
            body=msgspec.json.encode(error.status()), status=status, content_type="application/json"
        )
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    maximum = limits.REQUEST_BODY_MAX_BYTES
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=maximum)


def server(handler: Handler) -> web.Server:
    """A protocol factory for `loop.create_server`. A handler whose client is gone is cancelled: its watch ends."""
    return _Server(
        handler,
        request_factory=_request,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=limits.KEEPALIVE_SECONDS,
        max_line_size=limits.HEADER_FIELD_MAX_BYTES,
        max_field_size=limits.HEADER_FIELD_MAX_BYTES,
    )
