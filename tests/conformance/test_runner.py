"""What `krt conformance` says of a server that is not there, and of a case that does not hold."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from runtimes.conformance.explaining import explained

CASES = """
def text(): assert "a" + "b" == "ac"
def parts(): assert 5 < 3
def within(): assert "x" in "abc"
def truth(): assert not [1]
def chain(): assert 1 < 5 < 3
def told(): assert 1 == 2, "its own words"
def once(seen): assert seen.append(1) is not None, seen
async def awaited():
    async def one(): return 1
    assert await one() == 2
def holds(): assert 1 == 1
"""


@pytest.fixture
def cases(tmp_path: Path) -> ModuleType:
    module = ModuleType("cases")
    module.__file__ = str(tmp_path / "cases.py")
    (tmp_path / "cases.py").write_text(CASES)
    return explained(module)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("text", "expected 'ac', got 'ab' ('a' + 'b' == 'ac')"),
        ("parts", "expected less than 3, got 5 (5 < 3)"),
        ("within", "expected 'x' to be in 'abc' ('x' in 'abc')"),
        ("truth", "does not hold: not [1]"),
        ("chain", "does not hold: 1 < 5 < 3"),
        ("told", "its own words"),
    ],
)
def test_an_assert_says_what_was_expected_and_what_came(cases: ModuleType, name: str, says: str) -> None:
    with pytest.raises(AssertionError) as caught:
        vars(cases)[name]()
    assert str(caught.value) == says


async def test_an_assert_reads_each_side_once_and_may_await(cases: ModuleType) -> None:
    seen: list[int] = []
    with pytest.raises(AssertionError):
        cases.once(seen)
    assert seen == [1]
    with pytest.raises(AssertionError, match="expected 2, got 1"):
        await cases.awaited()
    cases.holds()


def krt(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controlplane.cli", "conformance", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_not_there_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "programs").mkdir()
    for args, code, says in (
        (("--programs", f"{tmp_path}/none"), 2, f"{tmp_path}/none has no folder functions or tasks; see"),
        (("--programs", f"{tmp_path}/programs"), 2, f"{tmp_path}/programs has no folder functions or tasks; see"),
        (("--socket", f"{tmp_path}/s"), 9, f"nothing listens on {tmp_path}/s: No such file or directory"),
        (("--socket", f"{tmp_path}/s", "--work-dir", f"{tmp_path}/w"), 2, f"{tmp_path}/w is no folder"),
        (("--command", "/no/such/server x"), 2, "cannot start /no/such/server: No such file or directory"),
    ):
        done = krt(*args)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert says in done.stderr, done


def test_a_server_that_ends_before_it_listens_is_told_with_its_last_words() -> None:
    done = krt("--command", "sh -c 'echo no port >&2; exit 3'")
    assert (done.returncode, done.stdout) == (9, "")
    assert done.stderr.startswith("ServerNotListening: server ended with 3 before it listened on /tmp/kr-"), done
    assert done.stderr.endswith("/s; its stderr: no port\n")
