"""A Run's files: rotation, parts, and a folder in which a hostile container put what it liked."""

import json
import os
from pathlib import Path

import pytest

from controlplane.kube.clock import SystemClock
from controlplane.kube.journalfile import JournalFile, segments
from controlplane.kube.runfiles import JournalDamaged, read_journal, read_log, whole_journal
from statemachine.events import CancelRequested, Role
from statemachine.journal import MAGIC, decode
from statemachine.run import RunUID

UID = "2c24c1f0-9f8f-4f80-82d5-3dd16a12d1e6"


def line(text: str, at: int = 0, invocation: str = "") -> bytes:
    time = f"2026-01-01T00:00:{at:02}.000000Z"
    return json.dumps({"time": time, "stream": "stdout", "invocation": invocation, "line": text}).encode() + b"\n"


def texts(folder: Path, offsets: dict[str, int], **options: int) -> list[str]:
    part = read_log(folder, UID, offsets, "", **options)
    return [json.loads(raw)["line"] for _, raw in part.lines]


def test_a_rotated_log_is_read_on_where_it_was_left(tmp_path: Path):
    current, older = tmp_path / f"{UID}.ndjson", tmp_path / f"{UID}.1.ndjson"
    current.write_bytes(line("one") + line("two"))
    offsets: dict[str, int] = {}
    assert texts(tmp_path, offsets) == ["one", "two"]
    with current.open("ab") as file:
        file.write(line("three") + b'{"torn')
    current.rename(older)
    current.write_bytes(line("four"))
    assert texts(tmp_path, offsets) == ["three", "four"]
    assert texts(tmp_path, offsets) == []


def test_what_is_read_at_once_is_bounded_and_nothing_is_lost(tmp_path: Path):
    lines = [line(f"{number}") for number in range(100)]
    (tmp_path / f"{UID}.ndjson").write_bytes(b"".join(lines))
    offsets: dict[str, int] = {}
    found, more = [], True
    while more:
        part = read_log(tmp_path, UID, offsets, "", limit=1000)
        assert sum(len(raw) for _, raw in part.lines) <= 1000
        found += [raw for _, raw in part.lines]
        more = part.more
    assert found == lines


def test_a_file_without_an_end_of_line_does_not_hold_a_reader_for_ever(tmp_path: Path):
    (tmp_path / f"{UID}.ndjson").write_bytes(b"x" * 2_500 + b"\n" + line("after"))
    offsets: dict[str, int] = {}
    turns = [read_log(tmp_path, UID, offsets, "", limit=1000) for _ in range(4)]
    assert [json.loads(raw)["line"] for part in turns for _, raw in part.lines] == ["after"]
    assert not turns[-1].more


def test_no_link_pipe_or_folder_in_the_folder_of_logs_is_followed(tmp_path: Path):
    """User code may have put it there, and runtimed can read what user code cannot."""
    secret, logs = tmp_path / "token", tmp_path / "logs"
    secret.write_bytes(line("secret"))
    logs.mkdir()
    (logs / f"{UID}.ndjson").symlink_to(secret)
    assert texts(logs, {}) == []
    (logs / f"{UID}.ndjson").unlink()
    os.mkfifo(logs / f"{UID}.ndjson")
    assert texts(logs, {}) == []
    (logs / f"{UID}.1.ndjson").mkdir()
    assert texts(logs, {}) == []
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / f"{UID}.ndjson").write_bytes(line("elsewhere"))
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert texts(tmp_path / "linked", {}) == []


def test_a_log_of_another_user_is_no_empty_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError):
        read_log(tmp_path, UID, {}, "")


@pytest.mark.parametrize("uid", ["", "../token", "a/b", "*", "x" * 65])
def test_a_uid_that_is_none_names_no_file(tmp_path: Path, uid: str):
    assert read_log(tmp_path, uid, {}, "").lines == []


def journal(folder: Path, uids: list[str]) -> None:
    file = JournalFile(folder, writer="controlplane", role=Role.CONTROL_PLANE, clock=SystemClock())
    for number, uid in enumerate(uids):
        file.append(RunUID(uid), CancelRequested(at_us=number))
    file.close()


def test_a_journal_in_parts_is_the_whole_one(tmp_path: Path):
    journal(tmp_path, [UID, "other", UID, UID])
    whole = whole_journal(tmp_path, UID)
    assert [entry.record.seq for entry in decode(whole) if entry.record is not None] == [1, 3, 4]
    parts, after, more = b"", 0, True
    while more:
        part = read_journal(tmp_path, UID, after, limit=1)
        parts, after, more = parts + part.records, part.last, part.more
    assert MAGIC + parts == whole
    assert whole_journal(tmp_path, "absent") == MAGIC
    assert whole_journal(tmp_path / "absent", UID) == MAGIC


def test_damage_is_named_with_its_place(tmp_path: Path):
    journal(tmp_path, [UID, UID])
    (path,) = segments(tmp_path)
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalDamaged, match=f"{path.name}.*"):
        whole_journal(tmp_path, UID)
