"""The demo: the whole system on this machine in a temporary directory, the two example Runs, one call, the timings.

Called by scripts/demo, which makes the virtual environment. `--keep` leaves the system running and says how to go on.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

KRT = [sys.executable, "-m", "controlplane.cli"]
ROOT = Path(__file__).parent.parent
READY_TIMEOUT_S = 60
CALLS = 200


def say(text: str = "") -> None:
    """A line for the reader."""
    print(text, flush=True)


def fail(text: str) -> NoReturn:
    """Give up with one line."""
    sys.exit(f"demo failed: {text}")


class System:
    """`krt up` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"

    def start(self) -> float:
        """Start it and return the seconds until it said `ready`."""
        began = time.monotonic()
        command = [*KRT, "up", "--data-dir", str(self.directory), "--api-port", "0", "--gateway-port", "0", "--detach"]
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=READY_TIMEOUT_S, check=False)
        if done.returncode != 0 or "ready" not in done.stdout:
            fail(f"krt up did not get ready: {done.stdout} {done.stderr}")
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop it; everything ends."""
        subprocess.run([*KRT, "down", "--data-dir", str(self.directory)], cwd=ROOT, check=True, capture_output=True)

    def krt(self, *args: str, show: bool = False) -> str:
        """One `krt` command; its stdout. With `show` its progress appears as it happens."""
        environ = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            [*KRT, *args],
            cwd=ROOT,
            env=environ,
            text=True,
            stdout=subprocess.PIPE,
            stderr=None if show else subprocess.PIPE,
            check=False,
        )
        if done.returncode != 0:
            fail(f"krt {' '.join(args)} ended with {done.returncode}: {done.stderr or ''}")
        return done.stdout


def milliseconds(earlier: str, later: str) -> float:
    """The time between two RFC 3339 stamps with microseconds."""
    from controlplane.kube.codec import parse_time_us

    return (parse_time_us(later) - parse_time_us(earlier)) / 1000


def show_function(system: System) -> None:
    """The function: from Pending to Ready, then a call."""
    say("\n$ krt run -f examples/diagnose-service.yaml --wait")
    system.krt("run", "-f", "examples/diagnose-service.yaml", "--wait", show=True)
    run = json.loads(system.krt("get", "diagnose-service", "-o", "json"))
    say(f"endpoint: {run['status']['endpoint']['url']}")
    say("\n$ krt invoke diagnose-service")
    answer = system.krt("invoke", "diagnose-service")
    say(answer)
    if json.loads(answer) != {"outputs": {"summary": "diagnosis complete"}}:
        fail("the function answered something else")
    started, ready = run["status"]["startTime"], run["status"]["readyTime"]
    say(f"\nclaimed → Ready: {milliseconds(started, ready):.1f} ms")
    times = sorted(call_many(run, system.krt("token").strip()))
    say(f"{CALLS} calls on one connection: p50 {times[len(times) // 2]:.2f} ms, best {times[0]:.2f} ms")


def call_many(run: dict[str, object], token: str) -> list[float]:
    """Milliseconds of each of CALLS invocations over one kept HTTPS connection."""
    import base64
    import http.client
    import ssl
    from urllib.parse import urlsplit

    endpoint = run["status"]["endpoint"]  # type: ignore[index]
    context = ssl.create_default_context(cadata=base64.b64decode(endpoint["caBundle"]).decode())
    url = urlsplit(endpoint["url"])
    connection = http.client.HTTPSConnection(url.hostname or "", url.port, context=context, timeout=10)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        connection.request("POST", url.path, body=b"{}", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            fail(f"a call was answered {answer.status}: {body!r}")
        times.append((time.perf_counter() - began) * 1000)
    connection.close()
    return times


def show_task(system: System) -> None:
    """The task: from Pending to Succeeded, then what it printed."""
    say("\n$ krt run -f examples/summarize-once.yaml --wait")
    system.krt("run", "-f", "examples/summarize-once.yaml", "--wait", show=True)
    say("\n$ krt logs summarize-once")
    say(system.krt("logs", "summarize-once").rstrip())
    say("\n$ krt list")
    say(system.krt("list").rstrip())


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the system running at the end")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = Path(tempfile.mkdtemp(prefix="kruntimes-demo-"))
    system = System(directory / "data")
    say(f"$ krt up --data-dir {system.directory}")
    say(f"ready in {system.start():.1f} s")
    try:
        show_function(system)
        show_task(system)
    except BaseException:
        system.stop()
        raise
    krt = ROOT / ".venv" / "bin" / "krt"
    if options.keep:
        say(f"\nIt is still running. Go on with:\n  export KUBECONFIG={system.kubeconfig}")
        say(f"  {krt} list        {krt} explain diagnose-service        {krt} replay diagnose-service")
        say(f"  kubectl get runs -o wide\nStop it with:\n  {krt} down --data-dir {system.directory}")
        return
    system.stop()
    say("\nstopped; nothing is left running")


if __name__ == "__main__":
    main()
