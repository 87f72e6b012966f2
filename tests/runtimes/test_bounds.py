"""Memory and processes without end, descriptors, and workers that are replaced because they are worn."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtimes.conformance.dialects import BASH, PYTHON, Dialect
from runtimes.server import pool
from tests.conformance.kit import Bench, RuntimeProcess, alive, descendants, failing, until
from tests.runtimes.conftest import BASE_INTERPRETER, base_interpreter, own_server

PROCESSES = 40


@pytest.fixture
async def bounded(request: pytest.FixtureRequest, short_folder: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """A server with low bounds."""
    dialect: Dialect = getattr(request, "param", PYTHON)
    environ = {
        "KRUNTIMES_WORKER_MEMORY_MIB": "256",
        "KRUNTIMES_WORKER_PROCESSES": str(PROCESSES),
        "KRUNTIMES_WORKER_CALLS": "3",
        "KRUNTIMES_WORKER_RSS_MIB": "64",
        "KRUNTIMES_WORKER_AGE_SECONDS": "3600",
    }
    async with own_server(dialect, short_folder, tmp_path, interpreter=base_interpreter(dialect), **environ) as bench:
        yield bench


async def load(bench: Bench, source: str, **more: Any) -> str:
    return (await bench.register("", files={"main.py": textwrap.dedent(source)}, **more))[1]


@pytest.mark.parametrize(
    "bomb", ["bytearray(1 << 40)", "'x' * (1 << 29)", "[bytes(1 << 20) for _ in range(1000)]", "list(range(1 << 28))"]
)
async def test_a_memory_bomb_meets_its_bound_and_the_next_call_is_served(bounded: Bench, bomb: str) -> None:
    registration = await load(bounded, f"def invoke(request):\n    if request:\n        x = {bomb}\n    return {{}}\n")
    async with failing("HandlerFailed") as caught:
        await bounded.invoke(registration, 1)
    assert "MemoryError" in caught[0].message
    assert await bounded.invoke(registration, 0) == {"outputs": {}}


FORKS = "for _ in range({}):\n        os.fork()\n    time.sleep(60)"


@pytest.mark.parametrize(
    "bomb",
    [
        FORKS.format(8),
        "for _ in range(200):\n        if os.fork() == 0:\n            os.setsid()\n            time.sleep(60)\n"
        "    time.sleep(60)",  # Else it may have returned before anybody looks.
        "threading.stack_size(65536)\n    for _ in range(200):\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n    time.sleep(60)",
        pytest.param(FORKS.format(1000), marks=pytest.mark.soak),  # Fills the machine for a moment.
    ],
    ids=["forks", "sessions", "threads", "without-end"],
)
async def test_a_fork_bomb_is_ended_whole_and_the_next_call_is_served(bounded: Bench, bomb: str) -> None:
    source = "import os, threading, time\ndef invoke(request):\n    if not request:\n        return {}\n    " + bomb
    registration = await load(bounded, source)
    async with failing("WorkerCrashed") as caught:
        await bounded.invoke(registration, 1, timeout=60)
    assert f"more than {PROCESSES} processes and threads" in caught[0].message
    assert await bounded.invoke(registration, 0) == {"outputs": {}}
    # The zygote, those forked ahead, and the worker: nothing of the bomb, not even a zombie.
    await until(lambda: len(descendants(bounded.server.pid)) <= 6, "nothing is left of it")


@pytest.mark.parametrize("bounded", [BASH], indirect=True, ids=["bash"])
async def test_a_fork_bomb_in_bash_too(bounded: Bench) -> None:
    source = "invoke() { for n in {1..200}; do sleep 60 & done; sleep 60; }\n"
    _, registration = await bounded.register("", files={"main.sh": source})
    async with failing("WorkerCrashed") as caught:
        await bounded.invoke(registration, timeout=60)
    assert "processes and threads" in caught[0].message
    await until(lambda: len(descendants(bounded.server.pid)) <= 6, "nothing is left of it")


async def test_a_task_that_forks_without_end_is_ended(bounded: Bench) -> None:
    source = "import os, time\nfor _ in range(8):\n    os.fork()\ntime.sleep(60)\n"
    _, result = await bounded.run("", files={"main.py": source})
    assert result.exit_code == 128 + signal.SIGKILL


async def test_a_worker_is_replaced_after_so_many_calls(bounded: Bench) -> None:
    registration = await load(
        bounded, "import os\ndef invoke(request):\n    return {'outputs': {'pid': os.getpid()}}\n"
    )
    pids = [(await bounded.invoke(registration))["outputs"]["pid"] for _ in range(7)]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4] == pids[5] != pids[6]
    await until(lambda: not alive(pids[0]), "the worn one has ended")


async def test_a_worker_that_has_grown_is_replaced_when_idle(bounded: Bench) -> None:
    source = """
        import os
        kept = []
        def invoke(request):
            kept.append(b"x" * request)
            return {"outputs": {"pid": os.getpid(), "kept": len(kept)}}
    """
    registration = await load(bounded, source)
    first = (await bounded.invoke(registration, 100 << 20))["outputs"]
    second = (await bounded.invoke(registration, 1))["outputs"]
    assert second["pid"] != first["pid"] and second["kept"] == 1
    third = (await bounded.invoke(registration, 1))["outputs"]
    assert third == {"pid": second["pid"], "kept": 2}


async def test_an_old_worker_is_worn_and_a_young_one_is_not() -> None:
    class Fake:
        calls = 1
        rss_bytes = 0
        born = time.monotonic()

    bounds = pool.Wear(calls=10, age_s=60.0, rss_bytes=1)
    assert not bounds.reached(Fake())  # type: ignore[arg-type]
    Fake.born -= 61
    assert bounds.reached(Fake())  # type: ignore[arg-type]


async def test_ten_thousand_open_files_are_refused_and_none_is_left(python: Bench) -> None:
    source = """
        import os
        def invoke(request):
            try:
                files = [open("/dev/null") for _ in range(10000)]
            except OSError as error:
                opened = error.errno
            return {"outputs": {"errno": opened, "left": len(os.listdir("/proc/self/fd"))}}
    """
    registration = await load(python, source)
    first, second = [(await python.invoke(registration))["outputs"] for _ in range(2)]
    assert first == second and first["errno"] == 24 and first["left"] < 10


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_many_calls_leave_nothing_behind(python: Bench, count: int) -> None:
    registration = await load(python, "import os\ndef invoke(request):\n    return {'outputs': {'pid': os.getpid()}}\n")

    async def call(times: int) -> int:
        for _ in range(times):
            pid: int = (await python.invoke(registration))["outputs"]["pid"]
        return pid

    pid = await call(1_000)  # Buffers and caches have their size then.
    looked_at = (pid, python.server.pid)
    before = [rss(one) for one in looked_at]
    descriptors, processes = [fds(one) for one in looked_at], len(descendants(python.server.pid))
    assert await call(count) == pid
    growth = [after / earlier for after, earlier in zip([rss(one) for one in looked_at], before, strict=True)]
    assert max(growth) < 1.02, growth
    await until(lambda: [fds(one) for one in looked_at] == descriptors, "no descriptor is left open")
    assert len(descendants(python.server.pid)) == processes


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.soak)])
async def test_an_idle_function_costs_little_memory(count: int, tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    process = RuntimeProcess(PYTHON, folder, BASE_INTERPRETER)
    process.start()
    client = await process.connect()
    bench = Bench(client, process, tmp_path)
    source = "def invoke(request):\n    return {'outputs': {'hello': 'world'}}\n"
    registrations = [await load(bench, source) for _ in range(count)]
    for registration in registrations:
        assert await bench.invoke(registration) == {"outputs": {"hello": "world"}}
    try:
        total = sum(pss(pid) for pid in (process.pid, *descendants(process.pid)))
    finally:
        client.close()
        await client.connection.closed
        assert process.stop() == 0
        shutil.rmtree(folder)
    # The server and the zygote are shared by few functions in the short version.
    assert total / 1024 < 4 * count + (0 if count >= 500 else 60)


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


def fds(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
    except PermissionError:
        pytest.skip("only root may count the descriptors of a process that is not dumpable")


def pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        pytest.skip("only root may count the pages of a process that is not dumpable")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
