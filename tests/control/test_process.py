"""The real process against the embedded API server: it binds, survives kill -9, ends quickly and cleanly."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.kube.client import KubeClient
from controlplane.kube.errors import KubeError
from controlplane.kube.journalfile import segments
from controlplane.kube.resources import DEPLOYMENTS, PODS, RUNS, RUNTIMES
from statemachine.journal import decode
from statemachine.replay import replay
from tests.kit.builders import function_run, runtime_object, runtime_pod

DEADLINE_S = 20.0


class Machine:
    """One data directory with an API server, a control plane and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api_port, self.signer_port, self.metrics_port = (free_port() for _ in range(3))
        self.kube: KubeClient

    async def spawn(self, module: str, env: Mapping[str, str]) -> asyncio.subprocess.Process:
        base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with (self.folder / f"{module}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                env={**base, "KRUNTIMES_PKI_DIR": str(self.folder / "pki"), **env},
                stdout=asyncio.subprocess.DEVNULL,
                stderr=log,
            )

    async def api_server(self) -> asyncio.subprocess.Process:
        env = {"KRUNTIMES_DATA_DIR": str(self.folder), "KRUNTIMES_API_BIND": f"127.0.0.1:{self.api_port}"}
        return await self.spawn("controlplane.embedded.apiserver", env)

    async def control_plane(self) -> asyncio.subprocess.Process:
        env = {
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "KRUNTIMES_JOURNAL_DIR": str(self.folder / "journal"),
            "KRUNTIMES_SIGNER_BIND": f"127.0.0.1:{self.signer_port}",
            "KRUNTIMES_SIGNER_URL": f"https://127.0.0.1:{self.signer_port}",
            "KRUNTIMES_METRICS_BIND": f"127.0.0.1:{self.metrics_port}",
        }
        return await self.spawn("controlplane", env)

    def write_kubeconfig(self) -> None:
        token = (self.folder / "tokens" / "admin").read_text().strip()
        cluster = {
            "server": f"https://127.0.0.1:{self.api_port}",
            "certificate-authority": str(self.folder / "pki" / "root.crt"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (self.folder / "kubeconfig").write_bytes(msgspec.json.encode(document))

    async def until(self, condition: Any) -> Any:
        """What `condition` returns once it is true; errors of the API count as not yet."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            try:
                if found := await condition():
                    return found
            except (KubeError, OSError):
                pass
            await asyncio.sleep(0.02)
        raise AssertionError(
            "not true in time:\n" + "\n".join(p.read_text()[-2000:] for p in self.folder.glob("*.log"))
        )

    async def make_ready_pod(self) -> None:
        """What the embedded node would do."""
        await self.kube.create(RUNTIMES, "default", content(runtime_object(runs=50), "spec"))
        await self.kube.create(PODS, "default", content(runtime_pod(), "spec"))
        status = msgspec.to_builtins(runtime_pod().status)
        ops = [{"op": "add", "path": "/status", "value": status}]
        await self.kube.json_patch(PODS, "default", "runtime-python-1", ops, subresource="status")

    async def bound(self, name: str) -> Any:
        async def look() -> Any:
            run = await self.kube.get(RUNS, "default", name)
            return run if run.status.phase == "Scheduled" else None

        return await self.until(look)


def content(obj: Any, *fields: str) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(obj)
    metadata = {key: built["metadata"][key] for key in ("name", "namespace", "labels") if key in built["metadata"]}
    return {"apiVersion": obj.api_version, "kind": obj.kind, "metadata": metadata} | {f: built[f] for f in fields}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def ended(*processes: asyncio.subprocess.Process) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    made = Machine(folder)
    server = await made.api_server()
    with ended(server):

        async def listens() -> bool:
            _, writer = await asyncio.open_connection("127.0.0.1", made.api_port)
            writer.close()
            return True

        await made.until(listens)  # it listens once its certificates and tokens are written
        made.write_kubeconfig()
        async with await KubeClient.connect(str(folder / "kubeconfig"), user_agent="test") as kube:
            made.kube = kube

            async def answers() -> bytes:
                return await kube.raw("GET", "/readyz")

            await made.until(answers)
            yield made
    await server.wait()


@pytest.mark.timeout(60)
async def test_it_binds_heals_after_kill_9_and_ends_cleanly(tmp_path: Path):
    async with machine(tmp_path) as made:
        first = await made.control_plane()
        with ended(first):
            await made.make_ready_pod()
            await made.kube.create(RUNS, "default", content(function_run("one"), "spec"))
            run = await made.bound("one")
            assert (run.status.attempt, run.status.assigned_pod) == (1, "runtime-python-1")
            await made.until(lambda: made.kube.get(DEPLOYMENTS, "default", "runtime-python"))
            first.kill()
            assert await first.wait() == -signal.SIGKILL
        await made.kube.create(RUNS, "default", content(function_run("two"), "spec"))
        second = await made.control_plane()
        with ended(second):
            await made.bound("two")
            assert (await made.kube.get(RUNS, "default", "one")).status.attempt == 1
            start = time.monotonic()
            second.terminate()
            assert await second.wait() == 0
            assert time.monotonic() - start < 2.0
        paths = segments(tmp_path / "journal")
        fold = replay(entry for path in paths for entry in decode(path.read_bytes()))
        assert (fold.divergence, fold.lost, fold.broken) == (None, 0, ())
        assert sorted((run.name, run.phase.value) for run in fold.runs.values()) == [
            ("one", "Scheduled"),
            ("two", "Scheduled"),
        ]


@pytest.mark.timeout(60)
async def test_a_wrong_configuration_is_one_line_and_status_2(tmp_path: Path):
    made = Machine(tmp_path)
    process = await made.spawn("controlplane", {"KRUNTIMES_SIGNER_URL": "http://plain"})
    assert await process.wait() == 2
    (line,) = (tmp_path / "controlplane.log").read_text().splitlines()
    assert "KRUNTIMES_SIGNER_URL must be https://HOST[:PORT]" in line


@pytest.mark.timeout(60)
async def test_without_certificates_it_says_so_and_ends_with_1(tmp_path: Path):
    made = Machine(tmp_path)
    process = await made.control_plane()
    assert await process.wait() == 1
    (line,) = (tmp_path / "controlplane.log").read_text().splitlines()
    assert "cannot start" in line and "root.crt" in line
