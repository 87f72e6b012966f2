"""Measures a Runtime Server at its socket: registration, invoke and task times; prints a line for each.

Run from the project's root: `python -m tests.bench.runtimes [python|bash] [--interpreter PATH]`. A fresh server is
started in a temporary folder and stopped at the end. Times are of one caller on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from runtimes.contract import messages as m
from tests.conformance.dialects import BASH, PYTHON, Dialect
from tests.conformance.kit import Bench, RuntimeProcess

TASKS = {"python": "print('x')\n", "bash": "echo x\n"}


async def measure(name: str, count: int, pause: float, once: Callable[[], Awaitable[object]]) -> float:
    """Time `once` `count` times; print and return the median in seconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await once()
        times.append(time.perf_counter() - began)
        if pause:
            await asyncio.sleep(pause)
    times.sort()
    median, high = statistics.median(times), times[int(len(times) * 0.99)]
    print(f"{name:32} p50 {median * 1e6:10.1f} us   p99 {high * 1e6:10.1f} us   n={count}", flush=True)
    return median


async def run(server: RuntimeProcess, dialect: Dialect) -> None:
    client = await server.connect()
    bench = Bench(client, server, server.folder)
    await asyncio.sleep(0.3)
    registrations = []

    async def register() -> None:
        registrations.append((await bench.register("echo"))[1])

    await measure("register", 100, 0.01, register)
    await measure("register, back to back", 50, 0, register)
    head = m.InvokeRequest(registration_id=registrations[0], invocation_id="bench")
    invoke = await measure(
        "invoke", 20_000 if dialect is PYTHON else 500, 0, lambda: client.invoke_function(head, b'{"a": 1}', timeout=5)
    )
    body = b'"' + b"x" * 100_000 + b'"'
    await measure("invoke, 100 kB each way", 300, 0, lambda: client.invoke_function(head, body, timeout=5))

    async def task() -> None:
        head = bench.task("", files={dialect.file(): TASKS[dialect.name]})
        await client.execute_task(head)
        await bench.result(head.epoch)

    await measure("task", 100, 0.01, task)
    began = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(100)))
    print(f"{'100 tasks at once':32} {100 / (time.perf_counter() - began):10.1f} a second")
    if dialect is BASH:
        compare_with_bash(server.folder, invoke)
    pss = sum(pss_kib(pid) for pid in children(server.pid))
    print(
        f"{'zygote and 150 idle functions':32} {pss / 1024:10.1f} MiB PSS   server {pss_kib(server.pid) / 1024:.1f} MiB"
    )
    before = cpu_ticks(server.pid)
    await asyncio.sleep(1)
    print(f"{'idle for a second':32} {cpu_ticks(server.pid) - before:10d} ticks of the server")
    client.close()


def compare_with_bash(folder: Path, invoke: float) -> None:
    """How an invoke compares with `bash -c` of the same handler."""
    script = folder / "compare.sh"
    script.write_text(BASH.functions["echo"] + "invoke\n")
    times = []
    for _ in range(100):
        began = time.perf_counter()
        subprocess.run(["bash", str(script)], input=b'{"a": 1}', stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - began)
    median = statistics.median(times)
    print(f"{'bash FILE':32} p50 {median * 1e6:10.1f} us   invoke is {invoke / median:.2f} of it")


def children(pid: int) -> list[int]:
    direct = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return direct + [below for child in direct for below in children(child)]


def pss_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", nargs="?", choices=["python", "bash"], default="python")
    parser.add_argument("--interpreter", default="")
    options = parser.parse_args()
    dialect = PYTHON if options.language == "python" else BASH
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    server = RuntimeProcess(dialect, folder, options.interpreter)
    server.start()
    try:
        uvloop.run(run(server, dialect))
    finally:
        server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    main()
