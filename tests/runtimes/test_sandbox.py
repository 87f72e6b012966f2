"""The rules of the sandbox as data: everything but what is hidden. What the kernel makes of them: test_isolation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtimes.python import sandbox
from runtimes.server.confinement import Bonds, hidden_folders, is_below, is_user_code


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/secret/in", "a/open", "b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/file").touch()
    (tmp_path / "a/link").symlink_to(tmp_path / "a/secret")
    return tmp_path


def below(tree: Path, rules: list[tuple[str, int]]) -> dict[str, int]:
    return {path[len(str(tree)) + 1 :]: rights for path, rights in rules if path.startswith(f"{tree}/")}


def test_a_folder_with_something_hidden_is_replaced_by_what_else_is_in_it(tree: Path) -> None:
    rules = sandbox.plan([str(tree / "a/secret")], [])
    full = sandbox.FULL
    assert below(tree, rules) == {"a/file": full, "a/open": full, "b": full}
    assert not [path for path, _ in rules if f"{tree}/a/secret".startswith(path + "/")]


def test_programs_in_a_hidden_folder_are_read_and_never_written(tree: Path) -> None:
    rules = sandbox.plan([str(tree / "a")], [str(tree / "a/open"), str(tree / "b")])
    assert below(tree, rules) == {"a/open": sandbox.READ, "b": sandbox.READ}


def test_what_is_hidden_in_a_folder_of_programs_stays_hidden(tree: Path) -> None:
    rules = sandbox.plan([str(tree / "a/secret")], [str(tree / "a")])
    assert below(tree, rules) == {"a/file": sandbox.READ, "a/open": sandbox.READ, "b": sandbox.FULL}


def test_the_system_is_never_written_and_no_disk_is_seen() -> None:
    rules = dict(sandbox.plan([], []))
    assert rules["/usr"] == rules["/etc"] == rules["/proc"] == sandbox.READ
    assert "/dev" not in rules and "/" not in rules and rules["/dev/null"] == sandbox.FULL


def test_a_folder_with_very_many_names_is_hidden_as_a_whole(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = sandbox._names
    monkeypatch.setattr(sandbox, "SPREAD_MAX_NAMES", 10_000)
    monkeypatch.setattr(sandbox, "_names", lambda path: names(path) * (10_001 if path == str(tree / "a") else 1))
    assert below(tree, sandbox.plan([str(tree / "a/secret")], [])) == {"b": sandbox.FULL}


def test_a_kernel_without_landlock_is_no_error(tmp_path: Path) -> None:
    enclosure = sandbox.Enclosure(None, [str(tmp_path)], True)
    enclosure.prepare()
    enclosure.enter([str(tmp_path)], [])
    assert enclosure.abi == 0
    assert list(tmp_path.iterdir()) == []


def test_common_folders_are_not_hidden_because_a_socket_is_in_them(tmp_path: Path) -> None:
    hidden = hidden_folders(tmp_path, Path("/run/runtime.sock"), ["/data", "relative"])
    assert {str(tmp_path), "/data", str(Path(__file__).parent.parent.parent)} == set(hidden)


def test_ancestry_is_known_and_a_process_that_is_gone_has_none_to_show() -> None:
    assert is_below(os.getpid(), os.getpid()) and is_below(os.getpid(), os.getppid())
    assert not is_below(os.getppid(), os.getpid())
    assert is_below(1 << 22, os.getpid())  # Above the highest number that a process may have.


def test_a_caller_is_known_by_what_it_cannot_get_rid_of(monkeypatch: pytest.MonkeyPatch) -> None:
    bonds = {1: Bonds(0, 0), 2: Bonds(1, 0), 3: Bonds(0, 1), 4: Bonds(1, 1)}
    monkeypatch.setattr(Bonds, "of", classmethod(lambda cls, pid: bonds.get(pid) or Bonds(1, 1)))
    monkeypatch.setattr("runtimes.server.confinement.is_below", lambda pid, ancestor: False)
    told = {server: [caller for caller in bonds if is_user_code(caller, server)] for server in bonds}
    assert told == {1: [2, 3, 4], 2: [3, 4], 3: [2, 4], 4: []}


def test_a_caller_that_cannot_be_looked_at_is_user_code() -> None:
    assert is_user_code(1 << 22, os.getpid()) and is_user_code(os.getpid(), os.getpid())
    assert not is_user_code(os.getppid(), os.getpid())
