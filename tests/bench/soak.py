"""Minutes of load on a fresh system, below what it can take, while functions come and go: does anything grow, or fail?

    scripts/soak [--minutes 10] [--functions 50]

Capacity is measured first, then 70 % of it is called, spread over all functions, while others are created and deleted:
in the first minute as fast as they come, so that what remembers a number of Runs has its number by then, later one
after the other. Ends with 1 when an answer was no 200, or when memory or open descriptors of a process at the end are
above those after the first minute (of a short run: its first third) by more than the margins below.

Memory is what a process has of anonymous pages. Its private pages would not do: all are forked from one, and when one
of the family writes to a page that it shares with another, that page becomes the other's own, and nothing is new.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from controlplane.kube.client import KubeClient
from controlplane.kube.resources import RUNS
from tests.bench.load import Result, Target, run
from tests.e2e.embedded import Embedded, descendants
from tests.e2e.stack import ECHO, function, settled

SHARE: Final = 0.7
CALLERS: Final = 16
SETTLED_S: Final = 60.0
SAMPLE_S: Final = 5.0
AT_ONCE: Final = 4
PAUSE_S: Final = 0.5
MEMORY_MARGIN_MIB: Final = 4.0
DESCRIPTORS_MARGIN: Final = 8
"""A create that is under way at one of the two samples."""


class Sample(msgspec.Struct):
    """Memory and descriptors of every lasting process, by name."""

    at_s: float
    anonymous_mib: dict[str, float]
    descriptors: dict[str, int]


def sample(stack: Embedded, began: float) -> Sample:
    """Workers and the load generator apart: they come and go."""
    memory: dict[str, float] = {}
    descriptors: dict[str, int] = {}
    assert stack.process is not None
    for pid in descendants(stack.process.pid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().split()
            if words[:1] != ["krt:"]:
                continue
            name = f"{words[1]} {pid}"
            memory[name] = anonymous_mib(pid)
            descriptors[name] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except (OSError, IndexError):
            continue
    return Sample(time.monotonic() - began, memory, descriptors)


def anonymous_mib(pid: int) -> float:
    """What it has allocated, whoever else sees it too."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024


async def create_functions(client: KubeClient, count: int) -> list[str]:
    """Ready functions; their URLs."""
    urls = []
    for number in range(count):
        name = f"soak-{number}"
        await client.create(RUNS, "default", function(name, ECHO, mode={"concurrency": 16}))
        ready = await settled(
            lambda name=name: client.get(RUNS, "default", name), lambda run: run.status.phase == "Ready"
        )
        urls.append(ready.status.endpoint.url)
    return urls


async def come_and_go(client: KubeClient, until: float, crowded_until: float) -> int:
    """Create and delete functions: AT_ONCE of them without a pause, later one after the other; how many."""
    count = 0

    async def one_after_the_other(until: float, pause_s: float) -> None:
        nonlocal count
        while time.monotonic() < until:
            count += 1
            name = f"passing-{count}"
            await client.create(RUNS, "default", function(name, ECHO))
            await settled(
                lambda name=name: client.get(RUNS, "default", name), lambda run: run.status.phase == "Ready", 60
            )
            await client.delete(RUNS, "default", name)
            await asyncio.sleep(pause_s)

    await asyncio.gather(*(one_after_the_other(crowded_until, 0) for _ in range(AT_ONCE)))
    await one_after_the_other(until, PAUSE_S)
    return count


async def soak(stack: Embedded, *, minutes: float, functions: int) -> bool:
    """True when nothing failed and nothing grew."""
    seconds = minutes * 60
    async with stack.client() as client:
        urls = await create_functions(client, functions)
        headers, ca = {"Authorization": f"Bearer {stack.token()}"}, str(stack.directory / "pki" / "root.crt")
        target = Target(urls[0], b'{"a": 42}', headers, ca, tuple(urls[1:]))
        await asyncio.to_thread(run, target, callers=CALLERS, seconds=3)
        capacity = (await asyncio.to_thread(run, target, callers=CALLERS, seconds=5)).rps
        rate = SHARE * capacity
        print(f"capacity {capacity:.0f}/s; {rate:.0f}/s on {functions} functions for {minutes:g} minutes", flush=True)
        began = time.monotonic()
        samples: list[Sample] = []
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(SAMPLE_S):
                samples.append(sample(stack, began))

        watching = asyncio.create_task(asyncio.to_thread(watch))
        calling = asyncio.create_task(asyncio.to_thread(run, target, callers=CALLERS, seconds=seconds, rate=rate))
        settled_s = min(SETTLED_S, seconds / 3)
        try:
            passed = await come_and_go(client, began + seconds, began + settled_s - SAMPLE_S)
            result = await calling
        finally:
            ended.set()
            await watching
    return judge(samples, result, passed, settled_s)


def judge(samples: list[Sample], result: Result, passed: int, settled_s: float) -> bool:
    """Print what was seen; True when it is as it must be."""
    good = result.failures == 0
    print(
        f"{result.calls} calls, {result.rps:.0f}/s, p50 {result.p50_us:.0f} us, p99 {result.p99_us:.0f} us, "
        f"{result.failures} failures {result.first_failure[:300]!r}; {passed} functions came and went"
    )
    first = next(one for one in samples if one.at_s >= settled_s)
    last = samples[-1]
    for name in sorted(first.anonymous_mib):
        before, now = first.anonymous_mib[name], last.anonymous_mib.get(name)
        if now is None:
            print(f"{name:<24} has ended")
            good = False
            continue
        files, files_now = first.descriptors[name], last.descriptors[name]
        flat = now <= before + MEMORY_MARGIN_MIB and files_now <= files + DESCRIPTORS_MARGIN
        good &= flat
        print(
            f"{name:<24} {before:8.1f} → {now:8.1f} MiB   {files:5d} → {files_now:5d} descriptors"
            + ("" if flat else "   GREW")
        )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--functions", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kruntimes-soak-") as folder:
        stack = Embedded(Path(folder) / "data")
        stack.start()
        try:
            good: Any = asyncio.run(soak(stack, minutes=options.minutes, functions=options.functions))
        finally:
            stack.stop()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
