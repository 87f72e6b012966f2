"""The same handler on functions-framework and on a running installation, called by the same generator, in turns.

    .venv/bin/python -m tests.bench.invoke --manifest > run.yaml      # apply it, wait for Ready
    .venv/bin/python -m tests.bench.invoke --url https://…:invoke --token-file F --ca F [--callers 1,16] [--json F]

functions-framework is served as it ships: gunicorn, plain HTTP, no authentication. Ours has all security on. Prints
p50, p99 and calls a second of both, and their ratios (ours to theirs).
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.load import Result, Target, run, run_wrk, wrk_installed
from tests.bench.machine import Meter, facts

HANDLER = """\
def invoke(request):
    return {"outputs": {"echo": request}}
"""
THEIRS = """\
def invoke(request):
    return {"outputs": {"echo": request.get_json()}}
"""
MANIFEST = f"""\
apiVersion: kruntimes.io/v1alpha1
kind: Run
metadata:
  name: bench-invoke
spec:
  runtime: python
  source:
    inlinePath: main.py
    inline: |
{"".join(f"      {line}" for line in HANDLER.splitlines(keepends=True))}
  mode:
    function:
      handler: main.invoke
      concurrency: 16
"""
START_TIMEOUT_S = 20.0


class FunctionsFramework:
    """A functions-framework server on a free port, from start to kill."""

    def __init__(self, folder: Path) -> None:
        (folder / "main.py").write_text(THEIRS)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [str(Path(sys.executable).with_name("functions-framework")), "--target", "invoke"]
        self.process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(self.port)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def best(results: list[Result]) -> Result:
    """The round with the lowest p50: disturbances of a shared machine only ever add."""
    return min(results, key=lambda result: result.p50_us)


def compare(
    ours: Target, theirs: Target | None, *, callers: int, seconds: float, rounds: int, name: str = "small body"
) -> dict[str, Any]:
    """Rounds of both in turns. Shown are the best of each; a ratio is the median of those of neighbours, which were
    measured on one and the same machine, whatever else it did. wrk calls where it is installed and can."""
    mine: list[Result] = []
    others: list[Result] = []
    generate = run_wrk if wrk_installed() and not ours.more and len(ours.body) < 4096 else run
    meter = Meter()
    for _ in range(rounds):
        mine.append(generate(ours, callers=callers, seconds=seconds))
        if theirs is not None:
            others.append(generate(theirs, callers=callers, seconds=seconds))
    us = best(mine)
    row: dict[str, Any] = {"name": name, "callers": callers, "kruntimes": msgspec.to_builtins(us) | {"rps": us.rps}}
    row["others_share"] = meter.others()
    if others:
        them = best(others)
        row["functions-framework"] = msgspec.to_builtins(them) | {"rps": them.rps}
        pairs = list(zip(mine, others, strict=True))
        row["ratios"] = {
            "p50": [one.p50_us / other.p50_us for one, other in pairs],
            "p99": [one.p99_us / other.p99_us for one, other in pairs],
            "rps": [one.rps / other.rps for one, other in pairs],
        }
        row["ratio"] = {figure: statistics.median(found) for figure, found in row["ratios"].items()}
    return row


def hop(one: Target, *, seconds: float, rounds: int) -> dict[str, Any]:
    """One caller of a gateway that sends to any Pod: calls that a peer passed on beside those that it did not."""
    meter = Meter()
    us = best([result for _ in range(rounds) if (result := run(one, callers=1, seconds=seconds)).hops])
    return {
        "name": "peer hop",
        "others_share": meter.others(),
        "callers": 1,
        "kruntimes": msgspec.to_builtins(us) | {"rps": us.rps},
        "hop": {"local_p50_us": us.p50_us, "p50_us": us.hop_p50_us, "added": us.hop_p50_us / us.p50_us - 1},
    }


def show(row: dict[str, Any]) -> None:
    print(f"--- {row.get('name', '')}  (others took {row['others_share']:.0%} of the processors)")
    if "hop" in row:
        print(f"     a peer hop adds {row['hop']['added']:.2f} of the local p50 ({row['hop']['local_p50_us']:.0f} us)")
    for name in ("kruntimes", "functions-framework"):
        if name in row:
            it = row[name]
            print(
                f"{row['callers']:>4} callers  {name:<20} p50 {it['p50_us']:8.0f} us  p99 {it['p99_us']:8.0f} us  "
                f"{it['rps']:8.0f}/s  failures {it['failures']}  {it['first_failure'][:200]}"
            )
    if "ratio" in row:
        ratio = row["ratio"]
        print(
            f"{row['callers']:>4} callers  {'ratio':<20} p50 {ratio['p50']:8.2f}     p99 {ratio['p99']:8.2f}     "
            f"{ratio['rps']:8.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", action="store_true", help="print the Run to create, and end")
    parser.add_argument("--url", help="status.endpoint.url of that Run")
    parser.add_argument("--token-file", type=Path, help="a bearer token of somebody who may get the Run")
    parser.add_argument("--ca", help="PEM file with the installation's root")
    parser.add_argument("--callers", default="1,16", help="numbers of callers, comma separated")
    parser.add_argument("--seconds", type=float, default=5.0, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body", default='{"a": 42}', help="JSON to send, or @FILE")
    parser.add_argument("--alone", action="store_true", help="do not run functions-framework")
    parser.add_argument("--json", type=Path, help="write the results there too")
    arguments = parser.parse_args()
    if arguments.manifest:
        print(MANIFEST, end="")
        return 0
    if not (arguments.url and arguments.token_file):
        parser.error("--url and --token-file are needed")
    text = arguments.body
    body = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
    token = arguments.token_file.read_text().strip()
    ours = Target(arguments.url, body, {"Authorization": f"Bearer {token}"}, arguments.ca)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        framework = None if arguments.alone else FunctionsFramework(Path(folder))
        try:
            theirs = None
            if framework is not None:
                framework.wait()
                theirs = Target(f"http://127.0.0.1:{framework.port}/", body, {})
            for callers in map(int, arguments.callers.split(",")):
                row = compare(ours, theirs, callers=callers, seconds=arguments.seconds, rounds=arguments.rounds)
                show(row)
                rows.append(row)
        finally:
            if framework is not None:
                framework.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": facts(), "rows": rows}, indent=2) + "\n")
    return 1 if any(row["kruntimes"]["failures"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
