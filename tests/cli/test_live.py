"""A few commands against a whole `krt up`: what a user does in the first minutes, and an API server that dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.stage import ROOT, Krt
from tests.e2e.embedded import Embedded, marked
from tests.e2e.stack import until

COUNT = """
count = 0
def invoke(request):
    global count
    count += 1
    print("call", count, request)
    return {"outputs": {"count": count}}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    stack = Embedded(tmp_path_factory.mktemp("live") / "data")
    try:
        stack.start()
        yield stack
    finally:
        if stack.process is not None and stack.process.poll() is None:
            assert stack.stop() == 0
        until("every process of the system ended", lambda: not marked(stack.directory))


@pytest.fixture(autouse=True)
def found_by_itself(stack: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRUNTIMES_DATA_DIR", str(stack.directory))


def test_a_function_is_made_called_read_explained_and_deleted(krt: Krt, tmp_path: Path) -> None:
    source = tmp_path / "main.py"
    source.write_text(COUNT)
    options = ("--runtime", "python", "--handler", "main.invoke", "--file", str(source), "--name", "count")
    done = krt("run", *options, "--wait")
    assert done.code == 0, done
    assert [line.split()[-1] for line in done.err.splitlines()] == ["Pending", "Scheduled", "Registering", "Ready"]
    for number in (1, 2):
        done = krt("invoke", "count", "-d", '{"n": 1}', "--invocation-id", f"id-{number}")
        assert done.json == {"outputs": {"count": number}}
    until("both lines are in the log", lambda: len(krt("logs", "count").out.splitlines()) == 2)
    assert krt("logs", "count", "--invocation", "id-2").out == "call 2 {'n': 1}\n"
    assert "FunctionRegistered" in krt("explain", "count").out
    assert krt("list").out.splitlines()[1].split()[:3] == ["count", "Ready", "True"]
    until("the journal has it", lambda: "Ready" in krt("replay", "count", "-o", "name").out)
    assert krt("diagram", "count").out.rstrip().endswith("Pending → Scheduled → Registering → Ready")
    done = krt("run", *options, "--replace", "--wait")
    assert (done.code, done.out) == (0, "run.kruntimes.io/count replaced\n")
    assert krt("invoke", "count").json == {"outputs": {"count": 1}}
    assert krt("delete", "count").code == 0
    krt("get", "count").failed(3, "NotFound")


def test_a_task_is_followed_to_its_end(krt: Krt, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text('echo "$1-$2"\nexit 3\n')
    done = krt("run", "--runtime", "bash", "--file", str(script), "--name", "job", "--wait", "--", "a", "b c")
    assert "status 3" in done.failed(7, "TaskFailed")
    assert krt("logs", "job", "-f").out == "a-b c\n"
    krt("wait", "job").failed(7, "TaskFailed")
    assert krt("wait", "job", "--for", "finished").code == 0
    assert krt("delete", "job").code == 0


def test_a_caller_without_rights_is_told_what_is_missing(krt: Krt, stack: Embedded, tmp_path: Path) -> None:
    token = krt("token", "--serviceaccount", "default").out.strip()
    text = stack.kubeconfig.read_text().replace(krt("token").out.strip(), token)
    config = tmp_path / "config"
    config.write_text(text)
    for command in (("list",), ("get", "x"), ("invoke", "x"), ("delete", "x"), ("logs", "x"), ("explain", "x")):
        message = krt(*command, "--kubeconfig", str(config)).failed(4, "Forbidden")
        assert "system:serviceaccount:default:default" in message


def test_a_wait_outlives_the_api_server(krt: Krt, stack: Embedded, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("sleep 1\n")
    assert krt("run", "--runtime", "bash", "--file", str(script), "--name", "slow").code == 0
    command = [sys.executable, "-m", "controlplane.cli", "wait", "slow", "--for", "finished", "--timeout", "20s"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
        os.kill(stack.processes()["apiserver"], signal.SIGKILL)
        out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, out) in ((0, "run.kruntimes.io/slow condition met\n"), (9, "")), err
    assert waiting.returncode == 0 or "CannotConnect" in err  # killed before the command had begun
    assert krt("delete", "slow").code == 0
