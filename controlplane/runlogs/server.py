"""The aggregated API's HTTP: the API server's front proxy asks, `api.RunLogsApi` answers.

Lives here: paths, statuses, streams, bounds. May not live here: who the front proxy is (`frontproxy`). Whether the
caller may is decided: the API server authorises `runs/log` and `runs/journal` before it passes a request on, and nobody
else gets through to here.
"""

import contextlib
import logging
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from controlplane.kube.errors import KubeError
from controlplane.runlogs.api import Answer, RunLogsApi, refusal
from controlplane.runlogs.documents import ROOT, document
from controlplane.runlogs.frontproxy import FrontProxy

REQUESTS_MAX: Final = (
    32  # at once, followers included: each holds some MiB, and a follower asks the API again and again
)
SHUTDOWN_S: Final = 2.0
_JSON: Final = "application/json"

_log = logging.getLogger(__name__)


class AggregatedApi:
    """Serves the group over TLS. `served` and `refused` count requests."""

    def __init__(self, api: RunLogsApi, front_proxy: FrontProxy) -> None:
        self._api = api
        self._front_proxy = front_proxy
        self._runner: web.ServerRunner | None = None
        self._busy = 0
        self.served = 0
        self.refused = 0

    async def start(self, host: str, port: int) -> int:
        """Listen at host:port (0 = any); the port. Raises OSError."""
        # A handler whose client is gone is cancelled: what it follows ends.
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        context = self._front_proxy.context
        await web.TCPSite(self._runner, host, port, ssl_context=context, reuse_address=True).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop; streams end."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        tls = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        try:
            user = self._front_proxy.user(tls.getpeercert() if tls is not None else None, request.headers)
            if self._busy >= REQUESTS_MAX:
                raise refusal(503, "ServiceUnavailable", f"{REQUESTS_MAX} requests are being answered")
            self._busy += 1
            try:
                answer = await self._answer(request.method, path, query)
                self.served += 1
                _log.debug("served", extra={"path": path, "user": user})
                return await _send(request, answer)
            finally:
                self._busy -= 1
        except KubeError as error:
            self.refused += 1
            return _refused(error)
        except Exception as error:
            _log.exception("a request failed", extra={"path": path})
            return _refused(refusal(500, "InternalError", f"Internal error occurred: {type(error).__name__}"))

    async def _answer(self, method: str, path: str, query: str) -> Answer:
        if method != "GET":
            raise refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        if (found := document(path)) is not None:
            return Answer(_JSON, msgspec.json.encode(found))
        parts = [urllib.parse.unquote(part) for part in path.removeprefix(f"{ROOT}/").split("/")]
        match parts:
            case ["namespaces", namespace, "runs", name, subresource] if path.startswith(f"{ROOT}/"):
                if not namespace or not name or {".", ".."} & {namespace, name} or "/" in namespace + name:
                    raise refusal(404, "NotFound", "the server could not find the requested resource")
                values = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
                return await self._api.serve(namespace, name, subresource, values)
            case _:
                raise refusal(404, "NotFound", "the server could not find the requested resource")


def _refused(error: KubeError) -> web.Response:
    status = error.status
    body: Mapping[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure", **msgspec.to_builtins(status)}
    headers = {"Retry-After": str(seconds)} if (seconds := error.retry_after_seconds) else {}
    code = status.code or 500
    return web.Response(status=code, body=msgspec.json.encode(body), content_type=_JSON, headers=headers)


async def _send(request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
    headers = {"Content-Type": answer.content_type, "Cache-Control": "no-cache, private"}
    if answer.stream is None:
        return web.Response(body=answer.body, headers=headers)
    response = web.StreamResponse(headers=headers)
    async with contextlib.aclosing(answer.stream) as chunks:  # type: ignore[type-var]
        try:
            await response.prepare(request)
            async for chunk in chunks:
                await response.write(chunk)
            await response.write_eof()
        except (TimeoutError, ConnectionError):
            pass
        except KubeError as error:  # too late for a status: a broken stream is asked for again from its last cursor on
            _log.info("a followed log is broken off: %s", error)
            if request.transport is not None:
                request.transport.abort()
    return response
