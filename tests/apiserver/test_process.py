"""The server as a process: killed, full, stopped, misconfigured."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from controlplane.embedded.apiserver import limits
from controlplane.embedded.apiserver.main import Running
from tests.apiserver.harness import DEADLINE_SECONDS, PODS, RUNS, Api, client_context, pod, run


@asynccontextmanager
async def process(data: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, Api]]:
    """The server as the supervisor starts it, on a free port."""
    environ = {**os.environ, "KRUNTIMES_DATA_DIR": str(data), "KRUNTIMES_API_BIND": "127.0.0.1:0"}
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controlplane.embedded.apiserver", env=environ, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert child.stderr is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                line = json.loads(await child.stderr.readline())
                if line["message"] == "serving":
                    break
        port = re.sub(r".*:", "", line["address"])
        token = (data / "tokens" / "admin").read_text()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_context(data))) as session:
            yield child, Api(session, f"https://127.0.0.1:{port}", token)
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.communicate()


async def test_what_was_answered_survives_a_kill(data: Path) -> None:
    async with process(data) as (child, api):
        created = [(await api.post(RUNS, run(f"r{number}"))).ok() for number in range(20)]
        patched = (await api.patch(f"{RUNS}/r0/status", {"status": {"phase": "Ready"}})).ok()
        child.send_signal(signal.SIGKILL)
        await child.wait()
    async with process(data) as (_, api):
        listed = (await api.get(RUNS)).ok()
        assert len(listed["items"]) == len(created)
        assert (await api.get(f"{RUNS}/r0")).ok() == patched
        version = created[-1]["metadata"]["resourceVersion"]
        async with api.watch(RUNS, f"&resourceVersion={version}") as watch:
            assert await watch.take(1) == [("MODIFIED", "r0")]
        assert int((await api.post(RUNS, run("next"))).ok()["metadata"]["resourceVersion"]) > int(
            patched["metadata"]["resourceVersion"]
        )


async def test_a_term_signal_ends_watches_and_the_process(data: Path) -> None:
    async with process(data) as (child, api), api.watch(RUNS) as watch:
        child.send_signal(signal.SIGTERM)
        assert await watch.rest() == []
        assert await asyncio.wait_for(child.wait(), DEADLINE_SECONDS) == 0


async def test_a_followed_log_does_not_hold_the_process(data: Path) -> None:
    async with process(data) as (child, api):
        uid = (await api.post(PODS, pod("p", nodeName="local"))).ok()["metadata"]["uid"]
        (data / "pods" / uid / "logs").mkdir(parents=True)
        (data / "pods" / uid / "logs" / "runtime.log").write_text("one\n")
        async with api.stream(f"{PODS}/p/log?follow=true") as log:
            assert await log.response.content.readline() == b"one\n"
            child.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(child.wait(), limits.SHUTDOWN_GRACE_SECONDS - 1) == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, where this user may mount one."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(path)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user may not mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


async def test_a_full_disk_refuses_writes_and_nothing_else(small_disk: Path) -> None:
    async with process(small_disk) as (_, api):
        (await api.post(RUNS, run("before"))).ok()
        async with api.watch(RUNS) as watch:
            await watch.next()
            ballast = small_disk / "ballast"
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 4096)
            source = {"inlinePath": "main.py", "inline": "#" * 100_000}
            status = (await api.post(RUNS, run("full", source=source))).refused(507, "InsufficientStorage")
            assert status["details"]["retryAfterSeconds"] == 1
            (await api.get(f"{RUNS}/before")).ok()
            (await api.get(RUNS)).ok()
            ballast.unlink()
            (await api.post(RUNS, run("after", source=source))).ok()
            assert await watch.take(1) == [("ADDED", "after")]


def refused(data: str, **more: str) -> tuple[int, str]:
    environ = {**os.environ, "KRUNTIMES_DATA_DIR": data, **more}
    done = subprocess.run(
        [sys.executable, "-m", "controlplane.embedded.apiserver"],
        env=environ,
        capture_output=True,
        timeout=20,
        check=False,
    )
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    return done.returncode, str(json.loads(lines[0]).get("error", ""))


def test_a_bad_configuration_is_one_line_and_exit_2(tmp_path: Path) -> None:
    assert refused("") == (2, "KRUNTIMES_DATA_DIR is not set: it names the folder that holds the state")
    assert refused(str(tmp_path), KRUNTIMES_API_BIND="nowhere")[0] == 2
    assert refused(str(tmp_path), KRUNTIMES_CRD_DIR="/absent")[0] == 2


def test_a_foreign_file_in_the_data_directory_is_one_line_and_exit_1(data: Path) -> None:
    (data / "state.db").write_bytes(b"not a database" * 100)
    for path in data.glob("state.db-*"):
        path.unlink()
    assert refused(str(data), KRUNTIMES_API_BIND="127.0.0.1:0") == (1, "file is not a database")


async def test_a_second_server_on_the_same_data_is_one_line_and_exit_1(data: Path, running: Running) -> None:
    code, error = await asyncio.to_thread(refused, str(data), KRUNTIMES_API_BIND="127.0.0.1:0")
    assert code == 1
    assert "is in use by another process" in error


async def test_a_port_in_use_is_one_line_and_exit_1(data: Path) -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        code, error = await asyncio.to_thread(refused, str(data), KRUNTIMES_API_BIND=f"127.0.0.1:{port}")
    finally:
        listener.close()
    assert code == 1
    assert "address already in use" in error.lower()
