"""Measures Runtime Servers at their sockets: registration, invoke and task times, memory, and two ratios, in one run.

Run from the project's root: `python -m tests.bench.runtimes [python|bash] [--interpreter PATH] [--idle N]`; without a
name both languages. A fresh server is started in a temporary folder and stopped at the end. Times are of one caller.
Prints each figure that has a budget beside it and ends with 1 when one is missed.

A time is the least of the medians of several rounds: other work on the machine only ever adds to a round. A ratio is of
two such times, of calls and of processes of the same file, in the environment that a call has, started in turns with
them. A registration is the call to the Runtime Server; its source is there before, as
runtimed leaves it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import uvloop

from runtimes.conformance.dialects import BASH, PYTHON, Dialect
from runtimes.contract import messages as m
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


async def least(name: str, count: int, pause: float, once: Callable[[], Awaitable[object]]) -> float:
    """The least median of MEASURED_ROUNDS rounds of `count`."""
    return min([await measure(name, count, pause, once) for _ in range(MEASURED_ROUNDS)])


# figure -> (budget, whether more is better)
BUDGETS: Final[dict[str, tuple[float, bool]]] = {
    "python_register_p50_ms": (5.0, False),
    "python_invoke_p50_us": (100.0, False),
    "python_start_per_invoke": (40.0, True),
    "python_idle_function_pss_mib": (4.0, False),
    "bash_register_p50_ms": (50.0, False),
    "bash_invoke_per_bash_c": (0.6, False),
}
MEASURED_ROUNDS: Final = 5
REGISTRATIONS: Final = 150
ROUNDS: Final = 60
"""Processes that are started to compare with."""
CALLS_A_ROUND: Final = {"python": 50, "bash": 2}

PROGRAM: Final = {
    "python": "import json, sys\nfrom main import invoke\njson.dump(invoke(json.load(sys.stdin)), sys.stdout)\n",
    "bash": "source ./main.sh; invoke",
}


async def run(server: RuntimeProcess, dialect: Dialect, interpreter: str, idle: int) -> dict[str, float]:
    """All figures of one language."""
    client = await server.connect()
    bench = Bench(client, server, server.folder)
    await asyncio.sleep(0.3)
    registrations: list[str] = []
    name = dialect.name
    heads = [bench.function("echo") for _ in range(REGISTRATIONS)]

    async def register() -> None:
        head = heads.pop() if heads else bench.function("echo")
        registrations.append((await client.register_function(head, timeout=20)).registration_id)

    each = REGISTRATIONS // (MEASURED_ROUNDS + 2)
    figures = {f"{name}_register_p50_ms": await least("register", each, 0.015, register) * 1e3}
    await measure("register, back to back", each, 0, register)
    head = m.InvokeRequest(registration_id=registrations[0], invocation_id="bench")

    async def invoke() -> None:
        await client.invoke_function(head, b'{"a": 1}', timeout=5)

    p50 = await least("invoke", 4_000 if dialect is PYTHON else 100, 0, invoke)
    if dialect is PYTHON:
        figures["python_invoke_p50_us"] = p50 * 1e6
        call, start = await in_turns(server.folder, dialect.functions["echo"], dialect, interpreter, invoke)
        figures["python_start_per_invoke"] = start / call
    else:
        for source in (PROGRAM_IN_IT, BUILTINS):
            _, registration = await bench.register("", files={"main.sh": source})
            small = m.InvokeRequest(registration_id=registration, invocation_id="bench")

            async def invoke_it(small: m.InvokeRequest = small) -> None:
                await client.invoke_function(small, b'{"a": 1}', timeout=5)

            call, start = await in_turns(server.folder, source, dialect, interpreter, invoke_it)
            print(f"{'of which it takes':32} {call / start:10.2f}")
            figures["bash_invoke_per_bash_c"] = call / start  # Of the last one.
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
    while len(registrations) < idle:
        await register()
    pss = sum(pss_kib(pid) for pid in (server.pid, *children(server.pid))) / 1024
    print(f"{f'{len(registrations)} idle functions':32} {pss:10.1f} MiB PSS, server and zygote counted")
    if dialect is PYTHON:
        figures["python_idle_function_pss_mib"] = pss / len(registrations)
    before = cpu_ticks(server.pid)
    await asyncio.sleep(1)
    print(f"{'idle for a second':32} {cpu_ticks(server.pid) - before:10d} ticks of the server")
    client.close()
    return figures


BUILTINS: Final = """invoke() { read -r request; printf '{"outputs": {"request": %s}}' "$request"; }\n"""
"""A Bash handler that starts no program: what it costs is the call, and a `bash -c` of it is a shell's start."""
PROGRAM_IN_IT: Final = """invoke() { printf '{"outputs": {"request": %s}}' "$(cat)"; }\n"""
"""One that starts a program, which costs 1.1 of the 2.6 ms of its `bash -c` and as much of a call."""


async def in_turns(
    folder: Path, source: str, dialect: Dialect, interpreter: str, invoke: Callable[[], Awaitable[object]]
) -> tuple[float, float]:
    """Least medians of an invoke, and of a process that is started for the same call, in seconds."""
    (folder / dialect.file()).write_text(source)
    command = [interpreter or sys.executable if dialect is PYTHON else "bash", "-c", PROGRAM[dialect.name]]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    calls, starts = [], []
    for _ in range(MEASURED_ROUNDS):
        some_calls, some_starts = [], []
        for _ in range(ROUNDS // MEASURED_ROUNDS):
            began = time.perf_counter()
            subprocess.run(  # noqa: ASYNC221 - nothing else is to run meanwhile
                command, input=b'{"a": 1}\n', stdout=subprocess.DEVNULL, check=True, cwd=folder, env=environ
            )
            some_starts.append(time.perf_counter() - began)
            for _ in range(CALLS_A_ROUND[dialect.name]):
                began = time.perf_counter()
                await invoke()
                some_calls.append(time.perf_counter() - began)
        calls.append(statistics.median(some_calls))
        starts.append(statistics.median(some_starts))
    call, start = min(calls), min(starts)
    print(f"{'a process for each call':32} p50 {start * 1e6:10.1f} us   invoke {call * 1e6:.1f} us in turns with it")
    return call, start


def children(pid: int) -> list[int]:
    direct = [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return direct + [below for child in direct for below in children(child)]


def pss_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def measured(dialect: Dialect, interpreter: str, idle: int) -> dict[str, float]:
    """Start a server of the language, measure, stop it."""
    print(f"--- {dialect.name}")
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    server = RuntimeProcess(dialect, folder, interpreter)
    server.start()
    try:
        return uvloop.run(run(server, dialect, interpreter, idle))
    finally:
        server.stop()
        shutil.rmtree(folder)


def main() -> int:
    """Measure and compare with the budgets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", nargs="?", choices=["python", "bash"])
    parser.add_argument("--interpreter", default="")
    parser.add_argument("--idle", type=int, default=150, help="idle functions whose memory is measured, at least 150")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    figures: dict[str, float] = {}
    for dialect in (PYTHON, BASH):
        if options.language in (None, dialect.name):
            interpreter = options.interpreter if dialect is PYTHON else ""
            figures |= measured(dialect, interpreter, options.idle if dialect is PYTHON else 0)
    missed = 0
    for name, value in figures.items():
        budget, more = BUDGETS[name]
        good = value >= budget if more else value <= budget
        missed += not good
        print(f"{name:32} {value:10.2f}   {'at least' if more else 'at most'} {budget:g}{'' if good else '   MISSED'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
