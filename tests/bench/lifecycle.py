"""How long a Run takes and what the idle system costs, measured on a running system.

Create → Ready of functions one after another, create → Succeeded of `echo` tasks one after another and ten at a time,
both as a watch shows them, and over ten idle seconds the processors' time and memory (PSS) of every process below
`krt up`. `scripts/bench` calls `measure`; the figures are in the README.
"""

import asyncio
import os
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from controlplane.kube.client import KubeClient
from controlplane.kube.resources import RUNS
from tests.e2e.embedded import descendants

FUNCTIONS: Final = 60
TASKS: Final = 60
TASKS_AT_ONCE: Final = 100
CONCURRENCY: Final = 10
IDLE_S: Final = 10.0
WARM_UP: Final = 10
TICKS: Final = os.sysconf("SC_CLK_TCK")


def quantile(values: list[float], share: float) -> float:
    """The value that this share of `values` does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def function(name: str) -> dict[str, Any]:
    """A small inline function."""
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {
            "runtime": "python",
            "source": {"inlinePath": "main.py", "inline": "def invoke(request):\n    return {'outputs': {}}\n"},
            "mode": {"function": {"handler": "main.invoke"}},
        },
    }


def echo(name: str) -> dict[str, Any]:
    """A task that says one word."""
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {"runtime": "bash", "source": {"inline": "echo hello\n"}, "mode": {"task": {}}},
    }


class Watcher:
    """Says when a Run is first seen in a phase, from one watch."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, asyncio.Future[float]]] = {}

    def expect(self, name: str, phase: str) -> asyncio.Future[float]:
        """A future that gets the monotonic time of that sight."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[name] = (phase, future)
        return future

    async def run(self, client: KubeClient, opened: asyncio.Event) -> None:
        """Watch until cancelled."""
        listed = await client.list(RUNS, "default")
        stream = client.watch(RUNS, "default", resource_version=listed.resource_version, on_open=opened.set)
        async with aclosing(stream) as events:
            async for event in events:
                if event.object is None:
                    continue
                wanted = self._waiting.get(event.object.metadata.name)
                if wanted is not None and event.object.status.phase == wanted[0] and not wanted[1].done():
                    wanted[1].set_result(time.perf_counter())


async def timed(client: KubeClient, watcher: Watcher, manifest: dict[str, Any], phase: str) -> float:
    """Milliseconds from sending the create to seeing the phase; the Run is deleted."""
    name = manifest["metadata"]["name"]
    seen = watcher.expect(name, phase)
    began = time.perf_counter()
    await client.create(RUNS, "default", manifest)
    took = (await asyncio.wait_for(seen, 30) - began) * 1000
    await client.delete(RUNS, "default", name)
    return took


async def lifecycle(kubeconfig: str) -> dict[str, float]:
    """The figures of create → Ready and create → Succeeded."""
    figures: dict[str, float] = {}
    async with await KubeClient.connect(kubeconfig, user_agent="bench") as client:
        watcher, opened = Watcher(), asyncio.Event()
        watching = asyncio.create_task(watcher.run(client, opened))
        await opened.wait()
        for number in range(WARM_UP):
            await timed(client, watcher, function(f"warm-f-{number}"), "Ready")
            await timed(client, watcher, echo(f"warm-t-{number}"), "Succeeded")
        ready = [await timed(client, watcher, function(f"bench-f-{n}"), "Ready") for n in range(FUNCTIONS)]
        done = [await timed(client, watcher, echo(f"bench-t-{n}"), "Succeeded") for n in range(TASKS)]
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(number: int) -> None:
            async with gate:
                await timed(client, watcher, echo(f"bench-c-{number}"), "Succeeded")

        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(TASKS_AT_ONCE)))
        figures["tasks_per_second_at_10"] = TASKS_AT_ONCE / (time.perf_counter() - began)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    figures |= {"create_ready_p50_ms": quantile(ready, 0.5), "create_ready_p90_ms": quantile(ready, 0.9)}
    figures |= {"task_p50_ms": quantile(done, 0.5), "task_p90_ms": quantile(done, 0.9)}
    return figures


def cpu_seconds(pids: list[int]) -> float:
    """Processor time that these processes have used so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def pss_mib(pids: list[int]) -> float:
    """Memory of these processes, shared pages counted once; of those that only root may look into, what they do not
    share."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except PermissionError:
            _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
            total += (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE") // 1024
    return total / 1024


def idle(parent: int) -> dict[str, float]:
    """Memory and processor share of the idle system."""
    time.sleep(3)  # what the last Run left to do is done
    pids = [parent, *descendants(parent)]
    before, began = cpu_seconds(pids), time.monotonic()
    time.sleep(IDLE_S)
    used, took = cpu_seconds(pids) - before, time.monotonic() - began
    return {"idle_cpu_percent": 100 * used / took, "idle_pss_mib": pss_mib(pids), "processes": float(len(pids))}
