"""A server that speaks the Kubernetes API's HTTP badly on purpose: each test says what happens to a request.

Real sockets, real TLS if asked. A handler is a coroutine that gets the request; unanswered paths are 404.
"""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BadApiServer:
    """Routes by path to handlers that a test may replace at any time; counts connections and keeps every request."""

    def __init__(self) -> None:
        self.routes: dict[str, Handler] = {}
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.connections = 0
        self.url = ""
        self._runner: web.ServerRunner | None = None

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> "BadApiServer":
        server = web.Server(self._handle, access_log=None)
        made = server.__call__

        def count() -> Any:
            self.connections += 1
            return made()

        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(count, "127.0.0.1", port, ssl=tls)
        number = self._listener.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{number}"
        return self

    async def stop(self) -> None:
        self._listener.close()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append((request.method, request.path_qs, dict(request.headers)))
        handler = self.routes.get(request.path)
        if handler is None:
            return status(404, "NotFound", f"no {request.path}")
        return await handler(request)  # type: ignore[arg-type]


def answer(body: Any, code: int = 200, **headers: str) -> web.Response:
    """A JSON answer."""
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return web.Response(status=code, body=text, headers={"Content-Type": "application/json", **headers})


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    """A Status, as the API refuses."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }
    return answer(body, code, **headers)


async def stream(request: web.Request) -> web.StreamResponse:
    """The head of a watch; the handler writes what it wants and returns it."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


def config_map(name: str, version: int, **data: str) -> dict[str, Any]:
    """The smallest object that an informer can follow."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)},
        "data": data,
    }


def line(type_: str, obj: dict[str, Any]) -> bytes:
    """One line of a watch."""
    return json.dumps({"type": type_, "object": obj}).encode() + b"\n"


def listed(version: int, *items: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A list."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMapList",
        "metadata": {"resourceVersion": str(version), **metadata},
        "items": list(items),
    }


def kubeconfig(
    folder: Path, url: str, *, name: str = "config", user: dict[str, Any] | None = None, **cluster: Any
) -> Path:
    """A kubeconfig for that server."""
    path = folder / name
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(json.dumps(document))
    return path
