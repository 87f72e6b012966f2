"""The worked example in another language keeps the part of the contract that it serves; the suite judges it."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimes.conformance import runner
from runtimes.conformance.dialects import Dialect

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "node-runtime"
NODE = shutil.which("node")
SLOW = ("a log has a bound", "a call waits for a replacement")  # 2 s each, and the same in every language

pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


@pytest.fixture(scope="module")
def node() -> Iterator[runner.Running]:
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    command = (str(NODE), str(EXAMPLE / "server.js"))
    subject = runner.Running(Dialect("node", ".js", EXAMPLE / "programs"), folder / "s", folder, command)
    subject.start()
    yield subject
    status = subject.stop()
    subject.end()
    assert status == 0, (folder / "server.log").read_text()
    shutil.rmtree(folder)


def test_a_runtime_in_node_serves_functions_as_the_contract_says(node: runner.Running) -> None:
    outcomes = runner.run(node, parts=("functions",), without=SLOW)
    assert [outcome for outcome in outcomes if outcome.verdict != "ok"] == []
    assert len(outcomes) > 40


def test_its_frames_its_hello_and_its_death_are_the_contracts(node: runner.Running) -> None:
    outcomes = runner.run(node, parts=("server",))
    assert [outcome for outcome in outcomes if outcome.verdict != "ok"] == []


def test_krt_conformance_tells_what_does_not_hold_and_ends_with_1(node: runner.Running) -> None:
    command = [sys.executable, "-m", "controlplane.cli", "conformance", "--socket", str(node.socket)]
    more = ["--programs", str(EXAMPLE / "programs"), "--suffix", ".js", "--only"]
    good = subprocess.run([*command, *more, "C17"], capture_output=True, text=True, timeout=60)
    assert (good.returncode, good.stderr) == (0, "1 ok, 0 failed, 0 skipped\n"), good
    assert good.stdout == "ok      C17      an unknown registration is refused\n"
    bad = subprocess.run([*command, "--only", "C10"], capture_output=True, text=True, timeout=60)  # Python's programs
    assert bad.returncode == 1 and "failed  C10, C15 a function is registered and answers: SourceInvalid" in bad.stdout
    usage = subprocess.run([*command[:-2]], capture_output=True, text=True, timeout=60)
    assert usage.returncode == 2 and "--socket and --command" in usage.stderr
