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

from tests.bench import invoke, lifecycle
from tests.bench.load import Target
from tests.e2e.stack import Stack, function

# figure -> (budget, whether more is better)
BUDGETS: Final[dict[str, tuple[float, bool]]] = {
    "up_ready_s": (5.0, False),
    "create_ready_p50_ms": (40.0, False),
    "task_p50_ms": (60.0, False),
    "tasks_per_second_at_10": (40.0, True),
    "idle_pss_mib": (300.0, False),
    "idle_cpu_percent": (3.0, False),
    "invoke_p50_ratio": (1.5, False),
}


def invoking(stack: Stack, *, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Rows of `invoke.compare` for one and for sixteen callers."""
    run = function("bench-invoke", invoke.HANDLER, mode={"concurrency": 16})
    done = stack.krt("run", "-f", "-", "--wait", stdin=json.dumps(run))
    assert done.code == 0, done.err
    url = stack.krt("get", "bench-invoke", "-o", "json").json["status"]["endpoint"]["url"]
    ours = Target(
        url, b'{"a": 42}', {"Authorization": f"Bearer {stack.token()}"}, str(stack.directory / "pki" / "root.crt")
    )
    with tempfile.TemporaryDirectory() as folder:
        framework = invoke.FunctionsFramework(Path(folder))
        try:
            framework.wait()
            theirs = Target(f"http://127.0.0.1:{framework.port}/", b'{"a": 42}', {})
            return [
                invoke.compare(ours, theirs, callers=callers, seconds=seconds, rounds=rounds) for callers in (1, 16)
            ]
        finally:
            framework.stop()


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
            rows = invoking(stack, seconds=1.5 if options.quick else 5.0, rounds=2 if options.quick else 3)
        finally:
            stack.stop()
    figures["invoke_p50_ratio"] = rows[0]["ratio"]["p50"]
    missed = report(figures)
    for row in rows:
        invoke.show(row)
    if options.json:
        facts = {"machine": invoke.machine(), "figures": figures, "invoke": rows}
        options.json.write_text(json.dumps(facts, indent=2) + "\n")
    return int(missed)


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
