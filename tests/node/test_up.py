"""`krt up`, `krt down`, `krt status` for real: everything starts, is found again, and ends without a trace."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.embedded import datadir, processes
from tests.node.test_supervisor import until

READY_SECONDS = 30.0  # a test machine may be busy; `scripts/bench` measures the promised 5 s

FUNCTION = """
import os, subprocess, time

def invoke(request):
    if request.get("leave"):
        left = subprocess.Popen(["sleep", "86400"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open(request["leave"], "w") as out:
                    out.write(str(os.getpid()))
                os.execvp("sleep", ["sleep", "86400"])
            os._exit(0)
        return {"outputs": {"pid": left.pid}}
    time.sleep(request.get("seconds", 0))
    return {"outputs": {"slept": True}}
"""


class Krt:
    """The command on a data directory of its own, by `python -m`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[str]] = []

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "controlplane.cli", *args]

    @property
    def env(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("KUBE", "KRUNTIME"))}
        return kept | {"KRUNTIMES_DATA_DIR": str(self.path)}

    def __call__(self, *args: str, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*args), env=self.env, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def up(self, *args: str) -> subprocess.Popen[str]:
        """In the foreground, until it is ready."""
        process = subprocess.Popen(
            self.command("up", "--api-port", "0", "--gateway-port", "0", *args),
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        assert lines[0].strip() == str(self.path / "kubeconfig")
        assert lines[1].startswith("https://127.0.0.1:")
        assert lines[2].strip() == f"export KUBECONFIG={self.path / 'kubeconfig'}"
        assert lines[3].startswith("ready")
        return process

    def ask(self, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request to API or gateway as the administrator. Raises OSError, also for an error answer."""
        token = (self.path / "tokens" / "admin").read_text()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        context = ssl.create_default_context(cafile=self.path / "pki" / "root.crt")
        request = urllib.request.Request(url, data=data, headers=headers)
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    @property
    def runs(self) -> str:
        config = msgspec.json.decode((self.path / "config.json").read_bytes(), type=datadir.Config)
        return f"https://127.0.0.1:{config.api_port}/apis/kruntimes.io/v1alpha1/namespaces/default/runs"

    def function(self, name: str) -> None:
        """Make a function and wait until it is ready."""
        source = {"inline": FUNCTION, "inlinePath": "main.py"}
        spec = {"runtime": "python", "source": source, "mode": {"function": {"handler": "main.invoke"}}}
        run = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": name}, "spec": spec}
        self.ask(self.runs, run)
        until(lambda: self.is_ready(name))

    def is_ready(self, name: str) -> bool:
        return bool(self.ask(f"{self.runs}/{name}")["status"]["phase"] == "Ready")

    def invoke(self, name: str, **request: Any) -> dict[str, Any]:
        """The outputs of one call. Raises OSError."""
        url = self.ask(f"{self.runs}/{name}")["status"]["endpoint"]["url"]
        outputs: dict[str, Any] = self.ask(url, request)["outputs"]
        return outputs

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "-o", "json").stdout)
        return found

    def pids(self) -> list[int]:
        return [process["pid"] for process in self.status()["processes"]]


def alive(*pids: int) -> list[int]:
    return [pid for pid in pids if processes.start_time(pid) is not None]


@pytest.fixture
def krt(tmp_path: Path) -> Iterator[Krt]:
    krt = Krt(tmp_path / "data")
    yield krt
    for process in krt.started:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if (holder := datadir.holder(krt.path)) is not None and alive(holder):
        os.kill(holder, signal.SIGKILL)
    until(lambda: not datadir.is_locked(krt.path))


@pytest.mark.slow
def test_the_system_drains_is_taken_up_again_and_leaves_nothing_when_killed(krt: Krt, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # Before the Runtimes start: what is made later beside the data directory is hidden.
    process = krt.up()
    krt.function("fn")
    status = krt.status()
    assert status["health"] == "ok"
    assert status["isolation"]["level"] in ("process", "sandbox")
    names = {p["name"].split("/")[-1] for p in status["processes"]}
    assert names == {"parent", "supervisor", "apiserver", "controlplane", "gateway", "node", "runtimed", "runtime"}
    pids = krt.pids()
    answers: list[dict[str, Any]] = []
    call = threading.Thread(target=lambda: answers.append(krt.invoke("fn", seconds=1.5)))
    call.start()
    log = krt.path / "logs" / "requests.ndjson"
    until(lambda: "subjectaccessreviews" in log.read_text())  # the call is at the gateway
    process.send_signal(signal.SIGINT)
    call.join(30)
    assert answers == [{"slept": True}]
    assert process.wait(30) == 0
    assert not alive(*pids)
    assert krt("status", code=9).stderr.startswith("NotRunning: ")

    process = krt.up()
    until(lambda: krt.is_ready("fn"))
    assert krt.invoke("fn") == {"slept": True}
    restarts = {p["restarts"] for p in krt.status()["processes"] if p["kind"] == "container"}
    assert restarts == {1}

    pids = krt.pids()
    stray = krt.invoke("fn", leave=str(tmp_path / "out/stray"))["pid"]
    daemon = int(until(lambda: (tmp_path / "out/stray").exists() and (tmp_path / "out/stray").read_text()))
    assert alive(stray, daemon) == [stray, daemon]
    process.kill()
    process.wait()
    until(lambda: not alive(*pids, stray, daemon), seconds=5)


@pytest.mark.slow
def test_each_killed_process_is_back_within_ten_seconds(krt: Krt) -> None:
    krt.up("--runtime", "python")
    krt.function("fn")
    for name in ("node", "apiserver", "controlplane", "gateway", "runtimed", "runtime", "supervisor"):
        (victim,) = (p for p in krt.status()["processes"] if p["name"].split("/")[-1] == name)
        os.kill(victim["pid"], signal.SIGKILL)
        began = time.monotonic()

        def healed() -> bool:
            with contextlib.suppress(OSError, KeyError):  # nobody answers, or the Run has no endpoint now
                return krt.invoke("fn") == {"slept": True} and krt.status()["health"] == "ok"
            return False

        until(healed, seconds=20)
        assert time.monotonic() - began < 10, name


def test_a_detached_system_is_stopped_by_down(krt: Krt) -> None:
    lines = krt("up", "--detach", "--api-port", "0", "--gateway-port", "0", "--runtime", "bash").stdout.splitlines()
    assert lines[0] == str(krt.path / "kubeconfig")
    assert lines[2] == f"export KUBECONFIG={lines[0]}"
    assert lines[-1].startswith("ready")
    pids = krt.pids()
    refused = krt("up", code=1).stderr
    assert refused.startswith("AlreadyRunning: ")
    assert refused.count("\n") == 1
    krt("down", "--now")
    assert not alive(*pids)
    krt("down")  # again, of what does not run


def test_a_start_that_cannot_be_says_why_in_one_line(krt: Krt, tmp_path: Path) -> None:
    def line(*args: str, code: int = 1) -> str:
        done = krt("up", *args, code=code)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1
        return done.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert line("--api-port", port).startswith(f"PortInUse: port {port} is in use")
        assert line("--gateway-port", port).startswith("PortInUse: ")
    assert line("--api-port", "7001", "--gateway-port", "7001", code=2).startswith("PortInUse: ")
    assert line("--runtime", "cobol", code=2).startswith("UnknownRuntime: ")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    assert line("--data-dir", str(foreign)).startswith("DataDirectoryForeign: ")
    assert line("--data-dir", str(foreign / "thesis.tex")).startswith("DataDirectoryInvalid: ")
    assert line("--data-dir", "/proc/nowhere").startswith("DataDirectoryUnwritable: ")
    assert list(foreign.iterdir()) == [foreign / "thesis.tex"]
