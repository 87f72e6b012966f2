"""Git over https and ssh as servers offer it: `git http-backend` behind TLS and a password, and a real sshd."""

import base64
import datetime
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ENVIRON = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
    "PATH": os.environ["PATH"],
}
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"])


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=ENVIRON, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, text: str) -> str:
    """A commit with one file; its id."""
    (folder / "main.py").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", text[:20])
    return git(folder, "rev-parse", "HEAD")


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of its own authority for localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "server.crt", folder / "server.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pem, private


class HttpsGit:
    """`authorizations` are what clients sent; `sent` has the size of each answer with a pack."""

    def __init__(self, port: int, ca: Path) -> None:
        self.port = port
        self.ca = ca
        self.authorizations: list[str] = []
        self.sent: list[int] = []

    def url(self, name: str) -> str:
        return f"https://localhost:{self.port}/{name}"


@contextmanager
def https_server(folder: Path, *, user: str = "", password: str = "") -> Iterator[HttpsGit]:
    """Serves the repositories in `folder`; with a password it wants one."""
    pem, key = certificate(folder)
    wanted = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if password else ""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._serve(b"")

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            self._serve(self.rfile.read(size))

        def _serve(self, body: bytes) -> None:
            given = self.headers.get("Authorization", "")
            if given:
                served.authorizations.append(given)
            if given != wanted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            env = ENVIRON | {
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "REMOTE_USER": user,
                "REMOTE_ADDR": "127.0.0.1",
            }
            command = ["git", "-c", "safe.directory=*", "http-backend"]
            done = subprocess.run(command, input=body, env=env, capture_output=True)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            if b"PACK" in content:
                served.sent.append(len(content))
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust us hangs up
    served = HttpsGit(server.server_address[1], pem)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class SshGit:
    """A running sshd: its port, its line for known_hosts, and a key that it takes."""

    def __init__(self, port: int, known_hosts: str, key: str) -> None:
        self.port = port
        self.known_hosts = known_hosts
        self.key = key

    def url(self, repository: Path) -> str:
        return f"ssh://{pwd.getpwuid(os.getuid()).pw_name}@localhost:{self.port}{repository}"


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshGit]:
    """An sshd of this user, on a port of its own, that takes one key."""
    assert SSHD is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name in ("host", "client"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    shutil.copy(folder / "client.pub", folder / "authorized_keys")
    (folder / "authorized_keys").chmod(0o600)
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log, stdin=subprocess.DEVNULL)
    try:
        _until_listening(port, process, folder / "sshd.log")
        public = " ".join((folder / "host.pub").read_text().split()[:2])
        yield SshGit(port, f"[localhost]:{port} {public}\n", (folder / "client").read_text())
    finally:
        process.terminate()
        process.wait(10)


def _until_listening(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(400):
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            probe.settimeout(0.05)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("sshd does not listen")
