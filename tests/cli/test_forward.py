"""`krt invoke` from where the endpoint's name means nothing: through a port-forward to a gateway Pod."""

import asyncio
import contextlib
import json
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controlplane.pki.names import server as server_subject
from tests.cli.stage import DEADLINE_S, Gateway, Krt, status_body
from tests.wire.installation import Installation

HOST = "runtime-gateway.kruntimes-system.svc.cluster.local"
RUN = "/apis/kruntimes.io/v1alpha1/namespaces/default/runs/hello"
SYSTEM = "/api/v1/namespaces/kruntimes-system"
SERVICE = f"{SYSTEM}/services/runtime-gateway"
PODS = f"{SYSTEM}/pods"
FORWARD = f"{SYSTEM}/pods/gw-2/portforward"
DATA, ERROR = b"\0", b"\1"


def pod(name: str, ready: str, **metadata: Any) -> dict[str, Any]:
    ports = [{"name": "https", "containerPort": 8443}]
    conditions = [{"type": "Ready", "status": ready}]
    return {
        "metadata": {"name": name} | metadata,
        "spec": {"containers": [{"name": "gateway", "ports": ports}]},
        "status": {"conditions": conditions},
    }


class ForwardingApi:
    """A Kubernetes API that serves one Run, a Service with its Pods, and their port-forward as a kubelet does it."""

    def __init__(self, installation: Installation, gateway: Gateway) -> None:
        self.objects: dict[str, Any] = {}
        self.seen: list[tuple[str, str]] = []
        self.error = ""
        self.cut = False
        self._gateway = gateway
        self._context = installation.server_context(server_subject("api", ("127.0.0.1",)), clients=ssl.CERT_NONE)
        self._loop = asyncio.new_event_loop()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)
        self._thread.start()
        self.url = f"https://127.0.0.1:{self._port.result(DEADLINE_S)}"

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._context)
        await site.start()
        self._port.set_result(runner.addresses[0][1])
        await self._ended.wait()
        await runner.cleanup()
        await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append((request.path, request.query_string))
        if request.path == FORWARD and FORWARD not in self.objects:
            return await self._forward(request)
        found = self.objects.get(request.path)
        if found is None:
            found = json.loads(status_body(404, "NotFound", f"{request.path} not found"))
        return web.json_response(found, status=found.get("code", 200))

    async def _forward(self, request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        assert socket.ws_protocol == "v4.channel.k8s.io"
        port = struct.pack("<H", int(request.query["ports"]))
        await socket.send_bytes(DATA + port)
        await socket.send_bytes(ERROR + port)
        await socket.ping(b"are you there")
        if self.error:
            await socket.send_bytes(ERROR + self.error.encode())
            return socket
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.port)

        async def back() -> None:
            while data := await reader.read(4096):
                await socket.send_bytes(DATA + data)
            await socket.close()

        pumping = asyncio.create_task(back())
        try:
            async for message in socket:
                assert message.data[:1] == DATA
                if self.cut:
                    break
                writer.write(message.data[1:])
        finally:
            pumping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pumping
            writer.close()
        return socket


@pytest.fixture
def api(tmp_path: Path, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForwardingApi]:
    installation = Installation(tmp_path / "pki")
    api = ForwardingApi(installation, gateway)
    (tmp_path / "ca.crt").write_text(installation.root_pem)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": api.url, "certificate-authority": "ca.crt"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    api.objects[RUN] = {"status": {"phase": "Ready", "endpoint": gateway.endpoint("uid", HOST)}}
    ports = [{"port": 443, "targetPort": "https"}]
    api.objects[SERVICE] = {"spec": {"selector": {"app": "gateway"}, "ports": ports}}
    items = [pod("gw-1", "False"), pod("gw-3", "True", deletionTimestamp="2026-01-01T00:00:00Z"), pod("gw-2", "True")]
    api.objects[PODS] = {"items": items}
    yield api
    api.stop()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(Installation(tmp_path / "gateway"), hosts=(HOST,)).start()
    gateway.answer = (200, b'{"outputs":{}}', {})
    yield gateway
    gateway.stop()


def test_the_call_goes_through_a_ready_pod_and_the_gateway_proves_its_name(
    krt: Krt, api: ForwardingApi, gateway: Gateway
) -> None:
    done = krt("invoke", "hello", "-d", '{"a": 1}', "-v")
    assert (done.code, done.out) == (0, '{"outputs":{}}'), done
    assert f"tls name: {HOST}" in done.err
    assert [path for path, _ in api.seen] == [RUN, SERVICE, PODS, FORWARD]
    assert api.seen[2][1] == "labelSelector=app%3Dgateway"
    assert api.seen[3][1] == "ports=8443"
    (call,) = gateway.calls
    assert (call.body, call.headers["host"], call.headers["authorization"]) == (b'{"a": 1}', HOST, "Bearer secret")


def test_large_bodies_pass_in_both_directions(krt: Krt, api: ForwardingApi, gateway: Gateway, tmp_path: Path) -> None:
    answer = b'{"outputs":{"x":"' + b"y" * 1_000_000 + b'"}}'
    gateway.answer = (200, answer, {})
    path = tmp_path / "big.json"
    path.write_bytes(b'"' + b"x" * 1_000_000 + b'"')
    assert krt("invoke", "hello", "-d", f"@{path}").out == answer.decode()
    assert gateway.calls[0].body == path.read_bytes()


def test_a_gateway_of_another_name_is_not_believed(krt: Krt, api: ForwardingApi, gateway: Gateway) -> None:
    other = f"other.{HOST.partition('.')[2]}"
    api.objects[RUN]["status"]["endpoint"] = gateway.endpoint("uid", other)
    api.objects[f"{SYSTEM}/services/other"] = api.objects[SERVICE]
    assert "Hostname mismatch" in krt("invoke", "hello").failed(9, "CannotConnect")
    assert gateway.calls == []


def test_each_thing_in_the_way_is_told(krt: Krt, api: ForwardingApi, gateway: Gateway) -> None:
    refusal = json.loads(status_body(403, "Forbidden", "you may not"))
    for path, words in ((SERVICE, "Forbidden: you may not"), (PODS, "Forbidden"), (FORWARD, "refused: you may not")):
        kept = api.objects.get(path)
        api.objects[path] = refusal
        message = krt("invoke", "hello").failed(9, "CannotConnect")
        assert words in message
        if kept is None:
            del api.objects[path]
        else:
            api.objects[path] = kept
    api.error = "connection refused: no such port"
    assert "no such port" in krt("invoke", "hello").failed(9, "CannotConnect")
    api.objects[PODS] = {"items": [pod("gw-1", "False")]}
    assert "no Pod of Service kruntimes-system/runtime-gateway is ready" in krt("invoke", "hello").failed(
        9, "CannotConnect"
    )
    del api.objects[SERVICE]
    assert "--gateway-url" in krt("invoke", "hello").failed(9, "CannotConnect")
    api.objects[RUN]["status"]["endpoint"] = gateway.endpoint("uid", "gateway.invalid")
    assert "--gateway-url" in krt("invoke", "hello").failed(9, "CannotConnect")


def test_a_forward_that_is_cut_leaves_no_doubt_about_what_happened(
    krt: Krt, api: ForwardingApi, gateway: Gateway
) -> None:
    gateway.answer = None
    krt("invoke", "hello").failed(9, "OutcomeUnknown")
    api.cut = True
    krt("invoke", "hello").failed(9, "CannotConnect")
