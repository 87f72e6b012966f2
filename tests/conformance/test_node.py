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
NODE, NPM = shutil.which("node"), shutil.which("npm")
NPM_MAX_S = 60.0
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "ENOTCACHED")
SLOW = ("a log has a bound", "a call waits for a replacement")  # 2 s each, and the same in every language
OF_THE_CONTAINER = ("nothing outlives a server that is killed",)  # the example is its first process there

pytestmark = pytest.mark.skipif(NODE is None or NPM is None, reason="node or npm is not installed")


@pytest.fixture(scope="module")
def example() -> Iterator[Path]:
    """A copy with its dependency: a checkout is not written to."""
    with tempfile.TemporaryDirectory(prefix="kr-") as name:
        folder = Path(name) / "example"
        shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
        options = ("--prefer-offline", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--ignore-scripts")
        try:
            command = [str(NPM), "ci", *options]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NPM_MAX_S)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm ci: no registry within {NPM_MAX_S:g} s")
        if done.returncode and any(word in done.stderr for word in UNREACHABLE):
            pytest.skip(f"npm ci: the registry is not reachable: {done.stderr.strip()[:300]}")
        assert done.returncode == 0, done.stderr
        yield folder


@pytest.fixture(scope="module")
def node(example: Path) -> Iterator[runner.Running]:
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    command = (str(NODE), str(example / "server.js"))
    subject = runner.Running(Dialect("node", ".js", EXAMPLE / "programs"), folder / "s", folder, command)
    subject.start()
    yield subject
    status = subject.stop()
    subject.end()
    assert status == 0, (folder / "server.log").read_text()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_runtime_in_node_serves_functions_as_the_contract_says(node: runner.Running) -> None:
    outcomes = runner.run(node, parts=("functions",), without=SLOW)
    assert [outcome for outcome in outcomes if outcome.verdict != "ok"] == []
    assert len(outcomes) > 40


def test_its_frames_its_hello_and_its_end_are_the_contracts(node: runner.Running) -> None:
    outcomes = runner.run(node, parts=("server",), without=OF_THE_CONTAINER)
    assert [outcome for outcome in outcomes if outcome.verdict != "ok"] == []
    assert len(outcomes) > 8


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
