"""What the tests of `krt` stand on: a Kubernetes API (the embedded server, in a thread), a gateway that answers what a
test tells it to, and `krt` itself, run in this process.
"""

import asyncio
import base64
import gc
import json
import os
import ssl
import subprocess
import sys
import threading
import warnings
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from controlplane.cli.main import main
from controlplane.pki.names import gateway
from tests.apiserver.harness import MERGE_PATCH, RUNS, Api, Object, serving
from tests.wire.installation import Installation

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
DEADLINE_S: Final = 20.0
FOLLOWING: Final = ("wait", "delete", "run", "logs")  # they may watch, over a connection that they just drop


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def status(self) -> Any:
        """The Status object on stderr, which is its last line."""
        found = json.loads(self.err.splitlines()[-1])
        assert (found["kind"], found["apiVersion"], found["status"]) == ("Status", "v1", "Failure"), found
        return found

    def failed(self, code: int, reason: str) -> str:
        """The message of a failure, which is one line `REASON: message`."""
        assert self.code == code, self
        line = self.err.splitlines()[-1]
        assert line.startswith(f"{reason}: "), self
        assert "Traceback" not in self.err
        return line.removeprefix(f"{reason}: ")


def _forget_connections() -> None:
    """A process that ends does not wait for the other side's goodbye on a TLS connection; here it would be a leak."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Krt:
    """`krt` in this process: what it printed and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str) -> Done:
        self._capsys.readouterr()
        code = main(args)
        captured = self._capsys.readouterr()
        if args and args[0] in FOLLOWING:
            _forget_connections()
        return Done(code, captured.out, captured.err)


def process(*args: str | bytes, code: str | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """`krt` in a process of its own, or a line of Python in its place."""
    environ = {**os.environ, **options.pop("environ", {})}
    head = [sys.executable, *(["-c", code] if code is not None else ["-m", "controlplane.cli"])]
    options = {"capture_output": True} | options if "stdout" not in options else options
    return subprocess.run([*head, *args], cwd=ROOT, env=environ, timeout=30, check=False, **options)


class Kubernetes:
    """The embedded API server on a data directory of its own, in a thread with a loop of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self.token = ""
        self._ready: Future[Api] = Future()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Kubernetes":
        self._thread.start()
        self._api = self._ready.result(DEADLINE_S)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(DEADLINE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        async with serving(self.directory) as (running, api):
            self.url, self.token = f"https://127.0.0.1:{running.port}", running.admin_token
            self._ready.set_result(api)
            await self._ended.wait()
        for _ in range(3):  # the transports of connections that were just closed end in these turns of the loop
            await asyncio.sleep(0)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where the server runs."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def task(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Start a coroutine where the server runs."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # what tests do with it

    def put(self, run: Object, status: Object | None = None, namespace: str = "default") -> Object:
        """Create a Run, and write its status as kruntimes would."""
        path = RUNS.replace("/default/", f"/{namespace}/")
        made = self.do(self._api.post(path, run)).ok()
        return self.set_status(run["metadata"]["name"], status, namespace) if status else made

    def set_status(self, name: str, status: Object, namespace: str = "default") -> Object:
        return self.do(self.async_status(name, status, namespace))

    async def async_status(self, name: str, status: Object, namespace: str = "default") -> Object:
        path = f"{RUNS.replace('/default/', f'/{namespace}/')}/{name}"
        return (await self._api.patch(f"{path}/status", {"status": status}, MERGE_PATCH)).ok()

    async def script(self, name: str, statuses: list[Object]) -> None:
        """Once that Run is there, give it one status after the other."""
        async with asyncio.timeout(DEADLINE_S):
            while (await self._api.get(f"{RUNS}/{name}")).code != 200:  # noqa: ASYNC110 - nobody here makes it
                await asyncio.sleep(0.01)
        for status in statuses:
            await self.async_status(name, status)

    def hold(self, name: str) -> None:
        """Put a finalizer of somebody else's on."""
        self.do(self._api.patch(f"{RUNS}/{name}", {"metadata": {"finalizers": ["tests/hold"]}}, MERGE_PATCH)).ok()

    def release_later(self, name: str) -> None:
        """Take the finalizers off, in a moment."""
        release = self._api.patch(f"{RUNS}/{name}", {"metadata": {"finalizers": None}}, MERGE_PATCH)
        self._soon(release)

    def delete_later(self, name: str) -> None:
        """Delete a Run and take its finalizers off, in a moment."""

        async def both() -> None:
            await self._api.delete(f"{RUNS}/{name}")
            await self._api.patch(f"{RUNS}/{name}", {"metadata": {"finalizers": None}}, MERGE_PATCH)

        self._soon(both())

    def _soon(self, work: Coroutine[Any, Any, Any]) -> None:
        async def later() -> None:
            await asyncio.sleep(0.15)  # the command is on its way; either order must come out right
            await work

        asyncio.run_coroutine_threadsafe(later(), self._loop)

    def get(self, name: str) -> Object | None:
        answer = self.do(self._api.get(f"{RUNS}/{name}"))
        return answer.json if answer.code == 200 else None

    def post(self, path: str, body: Object) -> Object:
        return self.do(self._api.post(path, body)).ok()

    def clear(self) -> None:
        """No Run is left."""
        for item in self.do(self._api.get("/apis/kruntimes.io/v1alpha1/runs")).ok()["items"]:
            metadata = item["metadata"]
            path = f"/apis/kruntimes.io/v1alpha1/namespaces/{metadata['namespace']}/runs/{metadata['name']}"
            if metadata.get("finalizers"):
                self.do(self._api.patch(path, {"metadata": {"finalizers": None}}, MERGE_PATCH)).ok()
            self.do(self._api.delete(path))

    def kubeconfig(self, path: Path, **changes: Any) -> Path:
        """A kubeconfig for it; `changes` go into cluster and user (`user={…}` replaces the user)."""
        cluster = {"server": self.url, "certificate-authority": str(self.directory / "pki" / "root.crt")}
        user = changes.pop("user", {"token": self.token})
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "k", "cluster": cluster | changes}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "current-context": "c",
        }
        path.write_text(json.dumps(document))
        return path


@dataclass
class Call:
    """One request that the gateway got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Gateway:
    """Answers every POST with what the test put into `answer`: (status, body, headers)."""

    installation: Installation
    hosts: tuple[str, ...] = ("127.0.0.1", "gateway.test")
    calls: list[Call] = field(default_factory=list)
    answer: tuple[int, bytes, dict[str, str]] | None = None

    def start(self) -> "Gateway":
        handler = type("Handler", (_Handler,), {"gateway": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = self.installation.server_context(gateway(self.hosts), clients=ssl.CERT_NONE)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def ca_bundle(self) -> str:
        return base64.b64encode(self.installation.root_pem.encode()).decode()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(DEADLINE_S)

    def endpoint(self, uid: str, host: str = "") -> Object:
        """status.endpoint of a Run that this gateway serves."""
        netloc = host or f"127.0.0.1:{self.port}"
        url = f"https://{netloc}/v1/namespaces/default/runtimes/python/runs/{uid}:invoke"
        return {"protocol": "HTTPS", "url": url, "caBundle": self.ca_bundle}


class _Handler(BaseHTTPRequestHandler):
    gateway: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.gateway.calls.append(Call("POST", self.path, headers, body))
        if self.gateway.answer is None:
            self.connection.close()
            return
        code, content, more = self.gateway.answer
        self.send_response(code)
        for name, value in more.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """A test reads `calls`."""


def status_body(code: int, reason: str, message: str, **details: Any) -> bytes:
    """An error as the gateway answers it."""
    shape = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    more = {"details": details, "kruntimes": {"hop": "gateway", "invocationId": "i", "retryable": False}}
    return json.dumps(shape | {"reason": reason, "message": message, "code": code} | more).encode()
