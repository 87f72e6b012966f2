"""The connections of `krt`: client certificates, proxies, plain HTTP, and servers that answer oddly."""

import base64
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from controlplane.pki.ca import key_pem, new_key
from controlplane.pki.names import Subject, server
from tests.cli.stage import DEADLINE_S, Krt, status_body
from tests.wire.installation import Installation

COMMANDS = [("wait", "x"), ("invoke", "x")]


class Answering(BaseHTTPRequestHandler):
    """Answers every GET with the server's `body`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        code, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A test reads `seen`."""


Serve = Callable[..., ThreadingHTTPServer]


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "pki")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers that answer 404 until told otherwise; `tls` is their context."""
    started: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def start(tls: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
        made = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        made.daemon_threads = True
        made.seen, made.answer = [], (404, status_body(404, "NotFound", "no x"))  # type: ignore[attr-defined]
        if tls is not None:
            made.socket = tls.wrap_socket(made.socket, server_side=True)
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        started.append((made, thread))
        return made

    yield start
    for made, thread in started:
        made.shutdown()
        made.server_close()
        thread.join(DEADLINE_S)


def configure(path: Path, url: str, installation: Installation, user: dict[str, Any], **more: Any) -> str:
    ca = base64.b64encode(installation.root_pem.encode()).decode()
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": url, "certificate-authority-data": ca, **more}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize("command", COMMANDS, ids=["client", "plain"])
def test_a_client_certificate_is_a_credential_from_files_and_from_the_kubeconfig(
    command: tuple[str, ...], krt: Krt, serve: Serve, installation: Installation, tmp_path: Path
) -> None:
    tls = installation.server_context(server("api", ("127.0.0.1",)), clients=ssl.CERT_REQUIRED)
    api = serve(tls)
    url = f"https://127.0.0.1:{api.server_address[1]}"
    key = new_key()
    chain = installation.authority.issue(key.public_key(), Subject(None, "someone", ()))
    (tmp_path / "crt").write_bytes(chain)
    (tmp_path / "key").write_bytes(key_pem(key))
    files = {"client-certificate": "crt", "client-key": "key"}
    data = {f"{name}-data": base64.b64encode((tmp_path / path).read_bytes()).decode() for name, path in files.items()}
    for user in (files, data):
        krt(*command, "--kubeconfig", configure(tmp_path / "config", url, installation, user)).failed(3, "NotFound")
    assert {authorization for _, authorization in api.seen} == {None}  # type: ignore[attr-defined]
    done = krt(*command, "--kubeconfig", configure(tmp_path / "config", url, installation, {"token": "t"}))
    assert done.code == 9, done


@pytest.mark.parametrize("command", COMMANDS, ids=["client", "plain"])
def test_an_api_behind_plain_http_and_a_path_is_asked_there(
    command: tuple[str, ...], krt: Krt, serve: Serve, installation: Installation, tmp_path: Path
) -> None:
    api = serve()
    url = f"http://127.0.0.1:{api.server_address[1]}/k8s/clusters/c-1/"
    krt(*command, "--kubeconfig", configure(tmp_path / "config", url, installation, {})).failed(3, "NotFound")
    assert all(path.startswith("/k8s/clusters/c-1/apis/") for path, _ in api.seen)  # type: ignore[attr-defined]


class Proxy(threading.Thread):
    """An HTTP proxy that connects every CONNECT to one port, or refuses it."""

    def __init__(self, port: int, answer: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = port
        self._answer = answer
        self.asked: list[bytes] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            self.asked.append(head.splitlines()[0])
            client.sendall(self._answer)
            if b" 200 " not in self._answer:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            pumps = [threading.Thread(target=self._pump, args=pair) for pair in ((client, server), (server, client))]
            for pump in pumps:
                pump.start()
            for pump in pumps:
                pump.join(DEADLINE_S)
            client.close()
            server.close()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.join(DEADLINE_S)


def test_proxies_of_kubeconfig_and_environment_are_used(
    krt: Krt, serve: Serve, installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = serve(installation.server_context(server("api", ("api.test",)), clients=ssl.CERT_NONE))
    proxy = Proxy(api.server_address[1])
    url = "https://api.test:6443"
    named = configure(tmp_path / "named", url, installation, {"token": "t"}, **{"proxy-url": proxy.url})
    krt("invoke", "x", "--kubeconfig", named).failed(3, "NotFound")
    plain = configure(tmp_path / "plain", url, installation, {"token": "t"})
    krt("invoke", "x", "--kubeconfig", plain).failed(9, "CannotConnect")
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    krt("invoke", "x", "--kubeconfig", plain).failed(3, "NotFound")
    assert proxy.asked == [b"CONNECT api.test:6443 HTTP/1.1"] * 2
    monkeypatch.setenv("NO_PROXY", "api.test")
    krt("invoke", "x", "--kubeconfig", plain).failed(9, "CannotConnect")
    proxy.stop()
    refusing = Proxy(0, b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTPS_PROXY", refusing.url)
    assert "407" in krt("invoke", "x", "--kubeconfig", plain).failed(9, "CannotConnect")
    refusing.stop()


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        ((200, b"<html>"), 1, "InternalError"),
        ((200, b"[]"), 1, "EndpointInvalid"),
        ((200, b"{}"), 5, "RunNotReady"),
        ((200, b'{"status": {"endpoint": {"url": 5}}}'), 1, "EndpointInvalid"),
        ((200, b'{"status": {"endpoint": {"url": "https://h/", "caBundle": "%"}}}'), 1, "EndpointInvalid"),
        ((302, b""), 1, "HTTP302"),
        ((403, b"<html>no</html>"), 4, "HTTP403"),
        ((500, b""), 1, "HTTP500"),
        ((503, status_body(503, "ServiceUnavailable", "starting")), 5, "ServiceUnavailable"),
        ((504, b""), 8, "HTTP504"),
    ],
)
def test_an_api_that_answers_oddly_is_told_in_one_line(
    answer: tuple[int, bytes],
    code: int,
    reason: str,
    krt: Krt,
    serve: Serve,
    installation: Installation,
    tmp_path: Path,
) -> None:
    api = serve()
    api.answer = answer  # type: ignore[attr-defined]
    config = configure(tmp_path / "config", f"http://127.0.0.1:{api.server_address[1]}", installation, {})
    done = krt("invoke", "x", "--kubeconfig", config)
    done.failed(code, reason)
    assert len(done.err.splitlines()) == 1
