"""One running system for tests: `krt up` in a directory of its own, with kubectl, krt and an HTTPS client for it.

Nothing in it knows that the Kubernetes API is the embedded one, but how it is started and stopped.
"""

import asyncio
import base64
import itertools
import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from controlplane.embedded import topology
from controlplane.embedded.datadir import Config
from controlplane.kube.client import KubeClient

ROOT: Final = Path(__file__).parents[2]
READY_S: Final = 30.0
KUBECTL_DIR: Final = Path("/usr/lib/google-cloud-sdk/bin")


def kubectls() -> dict[str, str]:
    """Every kubectl on this machine by its minor version; empty where there is none."""
    found = {path.name.removeprefix("kubectl."): str(path) for path in sorted(KUBECTL_DIR.glob("kubectl.1.*"))}
    if not found and (default := shutil.which("kubectl")):
        found["default"] = default
    return found


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(*args: str, kubeconfig: Path | None = None, stdin: str | None = None, timeout: float = 60.0) -> Done:
    """Run a command to its end."""
    environ = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "KRUNTIMES_DATA_DIR")}
    if kubeconfig is not None:
        environ["KUBECONFIG"] = str(kubeconfig)
    done = subprocess.run(
        args, cwd=ROOT, env=environ, input=stdin, text=True, capture_output=True, timeout=timeout, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def krt(*args: str, **options: Any) -> Done:
    """Run `krt`."""
    return command(sys.executable, "-m", "controlplane.cli", *args, **options)


def until(what: str, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of `condition`, looked at again and again up to a deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Stack:
    """A `krt up` and what talks to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.gateway = ""
        self.ready_seconds = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.lines: list[str] = []

    def start(self, *options: str) -> None:
        """Start it and wait for its `ready` line."""
        began = time.monotonic()
        args = ["up", "--data-dir", str(self.directory), "--api-port", "0", "--gateway-port", "0", *options]
        errors = self.directory.parent / "up.stderr"
        with errors.open("a") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "controlplane.cli", *args],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        said = b""
        while b"\nready" not in said:
            part = self._read(began + READY_S - time.monotonic())
            assert part, f"krt up did not get ready: {said!r} {errors.read_text()}"
            said += part
        self.ready_seconds = time.monotonic() - began
        self.lines = said.decode().splitlines()
        self.gateway = next(word for line in self.lines for word in line.split() if word.startswith("https://"))

    def _read(self, seconds: float) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], max(0.0, seconds))
        return os.read(self.process.stdout.fileno(), 4096) if readable else b""

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """End the foreground process and wait for it; 0 after an orderly stop."""
        assert self.process is not None
        self.process.send_signal(sig)
        code = self.process.wait(timeout=30)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def state(self) -> Any:
        """What DIR/status.json says of the processes."""
        return json.loads((self.directory / "status.json").read_bytes())

    def processes(self) -> dict[str, int]:
        """Name → pid of every running child; a container is `<Pod UID>/<container>`, whichever restart of it."""
        return {
            "/".join(one["name"].split("/")[:2]): one["pid"]
            for one in self.state()["processes"]
            if one["state"] == "running"
        }

    def krt(self, *args: str, **options: Any) -> Done:
        return krt(*args, kubeconfig=self.kubeconfig, **options)

    def kubectl(self, *args: str, version: str | None = None, **options: Any) -> Done:
        binaries = kubectls()
        binary = binaries[version] if version else next(reversed(binaries.values()))
        return command(binary, *args, kubeconfig=self.kubeconfig, **options)

    def token(self) -> str:
        return self.krt("token").out.strip()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        """A Kubernetes client with the admin's credential."""
        async with await KubeClient.connect(str(self.kubeconfig), user_agent="tests") as client:
            yield client

    @asynccontextmanager
    async def another_gateway(self, *, routing: str) -> AsyncIterator[str]:
        """A second gateway of the same installation, with the gateway's own identity; yields its base URL."""
        config = msgspec.json.decode((self.directory / "config.json").read_bytes(), type=Config)
        own = next(
            one for one in topology.processes(self.directory, config, (), os.environ) if one.name == "gateway"
        ).env
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        changed = {"KRUNTIMES_GATEWAY_BIND": f"127.0.0.1:{port}", "KRUNTIMES_GATEWAY_ROUTING": routing}
        with (self.directory.parent / "gateway.stderr").open("w") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dataplane.gateway", cwd=ROOT, env=own | changed, stderr=stderr
            )
        try:
            async with self.https() as https:
                await settled(lambda: _answers(https, f"https://127.0.0.1:{port}/readyz"), bool)
            yield f"https://127.0.0.1:{port}"
        finally:
            process.terminate()
            assert await process.wait() == 0

    @asynccontextmanager
    async def https(self, token: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
        """An HTTPS client that trusts the installation and carries a token."""
        context = ssl.create_default_context(cafile=str(self.directory / "pki" / "root.crt"))
        connector = aiohttp.TCPConnector(ssl=context, limit=64)
        headers = {
            "Authorization": f"Bearer {token if token is not None else self.token()}",
            "Content-Type": "application/json",
        }
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield session


async def _answers(https: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with https.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def ca_of(run: Any) -> bytes:
    """The PEM of status.endpoint.caBundle."""
    return base64.b64decode(run["status"]["endpoint"]["caBundle"])


def marked(directory: Path) -> list[int]:
    """The processes of this machine whose environment or command line names `directory`: its children, orphans too."""
    needle = str(directory).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if needle in text and state != "Z":
            found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Every living process below this one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def function(name: str, source: str, **spec: Any) -> dict[str, Any]:
    """A function Run with this Python source, handler main.invoke."""
    mode = {"handler": "main.invoke"} | spec.pop("mode", {})
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {
            "runtime": "python",
            "source": {"inlinePath": "main.py", "inline": source},
            "mode": {"function": mode},
        }
        | spec,
    }


def task(name: str, source: str, runtime: str = "python", **spec: Any) -> dict[str, Any]:
    """A task Run with this source."""
    mode = spec.pop("mode", {})
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {"runtime": runtime, "source": {"inline": source}, "mode": {"task": mode}} | spec,
    }


COUNTER: Final = (
    "count = 0\ndef invoke(request):\n    global count\n    count += 1\n    return {'outputs': {'count': count}}\n"
)
ECHO: Final = "def invoke(request):\n    return {'outputs': {'echo': request}}\n"


async def settled(call: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = 20.0) -> Any:
    """The first result of an awaitable `call` that is `wanted`."""
    async with asyncio.timeout(seconds):
        while True:
            value = await call()
            if wanted(value):
                return value
            await asyncio.sleep(0.02)


_NUMBERS: Final = itertools.count(1)


def names() -> Iterator[str]:
    """Fresh names for Runs: no two modules of one session get the same."""
    return (f"t{os.getpid() % 1000}-{number}" for number in _NUMBERS)
