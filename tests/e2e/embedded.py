"""`krt up` in a directory of its own, as the end-to-end tests see it, and its processes on this machine.

How it is started and stopped, what it leaves in its directory, and who its children are. What tests ask of any system
is in `stack`.
"""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from controlplane.embedded import topology
from controlplane.embedded.datadir import Config
from tests.e2e.stack import ROOT, Asked, Stack, settled, until

READY_S: Final = 30.0


class Embedded(Stack):
    """A `krt up` and what talks to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"
        self.namespace = "default"
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

    def image(self, language: str) -> str:
        return f"kruntimes/{language}-runtime"

    def token(self) -> str:
        return self.krt("token").out.strip()

    def root(self) -> str:
        return (self.directory / "pki" / "root.crt").read_text()

    def addresses(self) -> dict[int, str]:
        return {}

    def requests(self, name: str = "") -> list[Asked]:
        """The API server's own request log."""
        lines = (self.directory / "logs" / "requests.ndjson").read_bytes().splitlines()
        found = [json.loads(line) for line in lines if name.encode() in line]
        return [
            Asked(
                one["verb"],
                one.get("resource", ""),
                one.get("name", ""),
                one["user"],
                one["code"],
                tuple(one.get("patchPaths", ())),
            )
            for one in found
            if name in ("", one.get("name"))
        ]

    def kill(self, pod_uid: str, *containers: str) -> None:
        pids = [self.processes()[f"{pod_uid}/{container}"] for container in containers]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            until("it died", lambda pid=pid: not alive(pid))

    def left_on_disk(self, uid: str = "") -> list[str]:
        pods = self.directory / "pods"
        return [str(path) for path in (pods.rglob(f"*{uid}*") if uid else pods.glob("*/volumes/work/runs/*"))]

    @asynccontextmanager
    async def another_gateway(self, *, routing: str) -> AsyncIterator[str]:
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


async def _answers(https: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with https.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


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
