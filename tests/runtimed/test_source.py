"""Source on disk: inline files where they belong, commits by git, and a clear word where neither can be had."""

import os
from pathlib import Path

import pytest

from dataplane.runtimed import source
from dataplane.runtimed.failures import SourceError
from dataplane.runtimed.source import Absent, Git, Inline, materialise
from statemachine.reasons import Reason
from tests.runtimed.gitservers import git


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three commits: the first tagged v1, the last on main; branch `next` is beside it."""
    folder = tmp_path_factory.mktemp("origin")
    git(folder, "init", "--quiet", "--initial-branch=main")
    for number in (1, 2, 3):
        (folder / "main.py").write_text(f"VERSION = {number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", str(number))
        if number == 1:
            git(folder, "tag", "v1")
    git(folder, "branch", "next", "HEAD~1")
    return folder


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def version(folder: Path) -> str:
    return (folder / "main.py").read_text().strip()


@pytest.mark.parametrize(
    ("ref", "expected"), [("", "VERSION = 3"), ("main", "VERSION = 3"), ("next", "VERSION = 2"), ("v1", "VERSION = 1")]
)
async def test_a_branch_a_tag_or_head_is_checked_out(repository: Path, tmp_path: Path, ref: str, expected: str) -> None:
    await materialise(Git(f"file://{repository}", ref), tmp_path / "src")
    assert version(tmp_path / "src") == expected
    assert [path.name for path in _files(tmp_path / "src")] == ["main.py"]


@pytest.mark.parametrize("length", [40, 10])
async def test_a_commit_is_checked_out_whole_or_abbreviated(repository: Path, tmp_path: Path, length: int) -> None:
    commit = git(repository, "rev-parse", "HEAD~1")[:length]
    await materialise(Git(f"file://{repository}", commit), tmp_path / "src")
    assert version(tmp_path / "src") == "VERSION = 2"


@pytest.mark.parametrize(
    ("url", "ref", "reason", "words"),
    [
        ("file:///nowhere/at/all", "", Reason.SOURCE_FETCH_FAILED, "git fetch"),
        ("file://{repository}", "no-such-branch", Reason.SOURCE_FETCH_FAILED, "no-such-branch"),
        ("file://{repository}", "deadbeefdeadbeef", Reason.SOURCE_FETCH_FAILED, "git"),
        ("http://example.com/x.git", "", Reason.SOURCE_INVALID, "https, ssh or file"),
        ("ext::sh -c true", "", Reason.SOURCE_INVALID, "https, ssh or file"),
        ("ssh://-oProxyCommand=true/x", "", Reason.SOURCE_INVALID, "no host"),
        ("file://{repository}", "--upload-pack=true", Reason.SOURCE_INVALID, "git.ref"),
        ("file://{repository}", "a..b", Reason.SOURCE_INVALID, "git.ref"),
    ],
)
async def test_what_cannot_be_fetched_says_why(
    repository: Path, tmp_path: Path, url: str, ref: str, reason: Reason, words: str
) -> None:
    with pytest.raises(SourceError, match=words) as raised:
        await materialise(Git(url.format(repository=repository), ref), tmp_path / "src")
    assert raised.value.reason is reason


async def test_a_fetch_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "git").write_text("#!/bin/sh\nsleep 60\n")
    (slow / "git").chmod(0o755)
    environ = {"PATH": f"{slow}:{os.environ['PATH']}"}
    with pytest.raises(SourceError, match="longer than"):
        await materialise(Git("file:///x"), tmp_path / "src", environ=environ, timeout=0.1)


async def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "--quiet")
    (origin / "inside").symlink_to("main.py")
    (origin / "main.py").touch()
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "1")
    await materialise(Git(f"file://{origin}"), tmp_path / "good")
    (origin / "outside").symlink_to("../../secret")
    git(origin, "add", ".")
    git(origin, "commit", "--quiet", "-m", "2")
    with pytest.raises(SourceError, match="outside") as raised:
        await materialise(Git(f"file://{origin}"), tmp_path / "bad")
    assert raised.value.reason is Reason.SOURCE_INVALID


async def test_a_password_in_the_url_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        await materialise(Git("http://jane:secret@example.com/x"), tmp_path / "src")
    assert "secret" not in raised.value.message


async def test_inline_source_lands_at_its_path_as_it_is(tmp_path: Path) -> None:
    await materialise(Inline("pkg/deep.py", "é = 1\r\n"), tmp_path / "src")
    assert (tmp_path / "src/pkg/deep.py").read_bytes() == "é = 1\r\n".encode()
    await materialise(Absent(), tmp_path / "empty")
    assert (tmp_path / "empty").is_dir()


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a/./b", "a\0b"])
async def test_a_path_that_leaves_the_source_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(SourceError) as raised:
        await materialise(Inline(path, ""), tmp_path / "src")
    assert raised.value.reason is Reason.SOURCE_INVALID
    assert source.target(tmp_path, "a/b") == tmp_path / "a" / "b"
