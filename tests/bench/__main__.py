"""All benchmarks on one fresh system: start, lifecycle, idle cost, invoke against functions-framework.

    scripts/bench [--json FILE] [--quick]

Prints each figure beside its budget and ends with 1 when one is missed. Absolute times depend on the machine; the ratio
to functions-framework is of one run, in turns.
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from controlplane.kube.resources import RUNTIMES
from tests.bench import invoke, lifecycle
from tests.bench.load import Target
from tests.e2e.stack import Stack, function, settled

# figure -> (budget, whether more is better)
BUDGETS: Final[dict[str, tuple[float, bool]]] = {
    "up_ready_s": (5.0, False),
    "create_ready_p50_ms": (40.0, False),
    "task_p50_ms": (60.0, False),
    "tasks_per_second_at_10": (40.0, True),
    "idle_pss_mib": (300.0, False),
    "idle_cpu_percent": (3.0, False),
    "invoke_p50_ratio": (1.0, False),
    "invoke_p99_ratio_16": (1.0, False),
    "invoke_rps_ratio_16": (3.0, True),
    "invoke_1mib_p50_ratio": (1.5, False),
    "invoke_hop_added": (0.35, False),
}


FUNCTIONS: Final = 50
BIG: Final = b'"' + b"x" * (1024 * 1024 - 64) + b'"'
"""1 MiB with what the answer puts around it."""


def create(stack: Stack, name: str, **mode: Any) -> str:
    """A Ready function; its URL."""
    done = stack.krt("run", "-f", "-", "--wait", stdin=json.dumps(function(name, invoke.HANDLER, mode=mode)))
    assert done.code == 0, done.err
    url: str = stack.krt("get", name, "-o", "json").json["status"]["endpoint"]["url"]
    return url


def invoking(stack: Stack, *, seconds: float, rounds: int, full: bool) -> list[dict[str, Any]]:
    """Rows of `invoke.compare`: one and sixteen callers; `full` adds 64, big bodies, many functions, the peer hop."""
    headers, ca = {"Authorization": f"Bearer {stack.token()}"}, str(stack.directory / "pki" / "root.crt")
    small, rows = b'{"a": 42}', []
    url = create(stack, "bench-invoke", concurrency=16)
    with tempfile.TemporaryDirectory() as folder:
        framework = invoke.FunctionsFramework(Path(folder))
        try:
            framework.wait()
            their_url = f"http://127.0.0.1:{framework.port}/"
            ours, theirs = Target(url, small, headers, ca), Target(their_url, small, {})
            for callers in (1, 16):
                rows.append(invoke.compare(ours, theirs, callers=callers, seconds=seconds, rounds=rounds))
            if not full:
                return rows
            wide = Target(create(stack, "bench-wide", concurrency=64), small, headers, ca)
            rows.append(invoke.compare(wide, theirs, callers=64, seconds=seconds, rounds=rounds))
            big = (Target(url, BIG, headers, ca), Target(their_url, BIG, {}))
            rows.append(invoke.compare(*big, callers=1, seconds=seconds, rounds=rounds, name="1 MiB each way"))
            urls = [create(stack, f"bench-many-{number}", concurrency=16) for number in range(FUNCTIONS)]
            many = Target(urls[0], small, headers, ca, tuple(urls[1:]))
            rows.append(
                invoke.compare(many, theirs, callers=16, seconds=seconds, rounds=rounds, name=f"{FUNCTIONS} functions")
            )
        finally:
            framework.stop()
    rows.append(asyncio.run(hopping(stack, Target(url, small, headers, ca), seconds=seconds, rounds=rounds)))
    return rows


async def hopping(stack: Stack, target: Target, *, seconds: float, rounds: int) -> dict[str, Any]:
    """With a second Pod, through a gateway that knows no owner."""
    done = stack.krt("get", "bench-invoke")
    assert done.code == 0, done.err
    async with stack.client() as client, stack.another_gateway(routing="service") as gateway:
        await client.merge_patch(RUNTIMES, "default", "python", {"spec": {"replicas": 2}})
        await settled(
            lambda: client.get(RUNTIMES, "default", "python"), lambda runtime: runtime.status.ready_replicas == 2
        )
        there = msgspec.structs.replace(target, url=gateway + urlsplit(target.url).path)
        return await asyncio.to_thread(invoke.hop, there, seconds=seconds, rounds=rounds)


def main() -> int:
    """Measure everything and compare with the budgets."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the results there too")
    parser.add_argument("--quick", action="store_true", help="shorter rounds")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="kruntimes-bench-") as folder:
        stack = Stack(Path(folder) / "data")
        stack.start()
        try:
            assert stack.process is not None
            figures["up_ready_s"] = stack.ready_seconds
            figures |= lifecycle.idle(stack.process.pid)
            figures |= asyncio.run(lifecycle.lifecycle(str(stack.kubeconfig)))
            seconds, rounds = (1.5, 2) if options.quick else (5.0, 3)
            rows = invoking(stack, seconds=seconds, rounds=rounds, full=not options.quick)
        finally:
            stack.stop()
    figures |= ratios(rows)
    missed = report(figures)
    for row in rows:
        invoke.show(row)
    if options.json:
        facts = {"machine": invoke.machine(), "figures": figures, "invoke": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")
    return int(missed)


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures that have a budget."""
    figures: dict[str, float] = {}
    for row in rows:
        match row["name"], row["callers"]:
            case "small body", 1:
                figures["invoke_p50_ratio"] = row["ratio"]["p50"]
            case "small body", 16:
                figures["invoke_p99_ratio_16"] = row["ratio"]["p99"]
                figures["invoke_rps_ratio_16"] = row["ratio"]["rps"]
            case "1 MiB each way", _:
                figures["invoke_1mib_p50_ratio"] = row["ratio"]["p50"]
            case "peer hop", _:
                figures["invoke_hop_added"] = row["hop"]["added"]
    return figures


def report(figures: dict[str, float]) -> bool:
    """Print each figure beside its budget; True when one is missed."""
    missed = False
    for name, value in figures.items():
        budget, more = BUDGETS.get(name, (None, False))
        kept = budget is None or (value >= budget if more else value <= budget)
        missed |= not kept
        limit = "" if budget is None else f"{'≥' if more else '≤'} {budget:g}"
        print(f"{name:<26} {value:10.2f}  {limit:<8} {'' if kept else 'MISSED'}".rstrip())
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
