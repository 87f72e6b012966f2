"""docs/functions.md on the real system: its files are written, its commands run, its transcripts compared.

A block whose first line is `# NAME.EXT` is a file. In a `console` block lines that begin with `$ ` are commands, and
what follows is their whole standard output, in which `…` stands for anything.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e.stack import ROOT, Stack, until

PAGE: Final = ROOT / "docs" / "functions.md"
GIT_URL: Final = "https://git.example.com/team/functions.git"
COMMAND_TIMEOUT_S: Final = 60
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE: Final = re.compile(r"# ([\w/]+\.\w+)\n")
_NAME: Final = re.compile(r"^run\.kruntimes\.io/(\S+) created$", re.MULTILINE)


class Step(NamedTuple):
    command: str
    expected: str


def files() -> dict[str, str]:
    """What the page shows as files, by their paths; of JSON, which has no comments, the line with the name is none."""
    found = {}
    for language, text in _BLOCK.findall(PAGE.read_text()):
        named = _FILE.match(text)
        if named is not None:
            found[named[1]] = text.removeprefix(named[0]) if language == "json" else text
    return found


def steps() -> list[Step]:
    found = []
    for language, text in _BLOCK.findall(PAGE.read_text()):
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, expected = part.partition("\n")
                found.append(Step(command, expected))
    return found


def matches(expected: str, shown: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.rstrip("\n").split("…"))
    return re.fullmatch(pattern, shown.rstrip("\n"), re.DOTALL) is not None


def commit(folder: Path) -> None:
    """The folder as a git repository with one commit on `main`."""
    identity = ("-c", "user.name=page", "-c", "user.email=page@example.com")
    for arguments in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-q", "-m", "functions")):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def reader(stack: Stack, tmp_path: Path) -> Iterator[Path]:
    """A folder with the page's files, all of them a repository, too; what the page makes is deleted."""
    for name, text in files().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(GIT_URL, f"file://{tmp_path}"))
    commit(tmp_path)
    yield tmp_path
    made = [name for step in steps() for name in _NAME.findall(step.expected)]
    assert stack.krt("delete", "--ignore-not-found", *made).code == 0


@pytest.mark.embedded  # a repository on this machine is none of a cluster's
@pytest.mark.timeout(180)
@pytest.mark.slow
def test_every_file_and_transcript_of_the_page_holds(stack: Stack, reader: Path) -> None:
    environ = {**os.environ, "KUBECONFIG": str(stack.kubeconfig), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    krt = f'krt() {{ "{sys.executable}" -m controlplane.cli "$@"; }}\n'

    def shown(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", krt + command],
            cwd=reader,
            env=environ,
            text=True,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    for command, expected in steps():
        if command.startswith("krt logs"):  # a line is written behind the answer, not before it
            until(f"{command} shows {expected!r}", lambda c=command, e=expected: matches(e, shown(c)))
        else:
            assert matches(expected, got := shown(command)), f"$ {command}\n{got}"


def test_the_page_shows_files_and_commands() -> None:
    assert len(files()) > 10
    assert len(steps()) > 20
