"""The journal on disk: appended, rotated, cut where it is torn, and never in the way."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from controlplane.kube import journalfile
from controlplane.kube.journalfile import JournalFile, segments
from statemachine.events import Observed, Removed, Role
from statemachine.journal import MAGIC, Damaged, Record, decode
from statemachine.run import Mode, Run, RunSpec, RunUID
from tests.kit.clock import ManualClock

UID = RunUID("run-1")
RUN = Run(uid=UID, namespace="default", name="f", spec=RunSpec(runtime="python", mode=Mode.FUNCTION))
SEEN = Observed(at_us=1, run=RUN)


def opened(folder: Path, clock: ManualClock | None = None, **limits: int) -> JournalFile:
    return JournalFile(folder, writer="controlplane", role=Role.CONTROL_PLANE, clock=clock or ManualClock(), **limits)


def records(folder: Path) -> list[Record]:
    found = []
    paths = segments(folder)
    for path in paths:
        for entry in decode(path.read_bytes(), last=path == paths[-1]):
            assert entry.record is not None
            found.append(entry.record)
    return found


def test_what_is_appended_is_read_back(tmp_path: Path):
    journal = opened(tmp_path / "j")
    journal.append(UID, SEEN, fresh=True)
    journal.append(UID, Removed(at_us=2))
    journal.close()
    assert [(r.seq, r.writer, r.event, r.fresh) for r in records(tmp_path / "j")] == [
        (1, "controlplane", SEEN, True),
        (2, "controlplane", Removed(at_us=2), False),
    ]
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o700
    assert segments(tmp_path / "j")[0].stat().st_mode & 0o777 == 0o600


def test_every_record_is_on_disk_when_append_returns(tmp_path: Path):
    journal = opened(tmp_path)
    for number in range(1, 4):
        journal.append(UID, SEEN)
        assert len(records(tmp_path)) == number


def test_a_later_life_goes_on_in_the_same_segment_with_the_next_number(tmp_path: Path):
    for _ in range(3):
        journal = opened(tmp_path)
        journal.append(UID, SEEN)
        journal.close()
    assert [r.seq for r in records(tmp_path)] == [1, 2, 3]
    assert len(segments(tmp_path)) == 1


def test_nothing_is_made_on_disk_before_the_first_record(tmp_path: Path):
    opened(tmp_path / "j").close()
    assert not (tmp_path / "j").exists()
    assert segments(tmp_path / "j") == []


def test_a_torn_tail_is_cut_at_every_length(tmp_path: Path):
    journal = opened(tmp_path)
    journal.append(UID, SEEN)
    whole = segments(tmp_path)[0].stat().st_size
    journal.append(UID, SEEN)
    journal.close()
    content = segments(tmp_path)[0].read_bytes()
    for length in range(whole, len(content)):
        segments(tmp_path)[0].write_bytes(content[:length])
        after = opened(tmp_path)
        after.append(UID, Removed(at_us=9))
        after.close()
        assert [type(r.event).__name__ for r in records(tmp_path)] == ["Observed", "Removed"], length


@pytest.mark.parametrize("start", range(5))
def test_a_segment_torn_in_its_first_bytes_is_begun_again(tmp_path: Path, start: int):
    (tmp_path / f"{1:016d}.krj").write_bytes(MAGIC[:start])
    journal = opened(tmp_path)
    journal.append(UID, SEEN)
    journal.close()
    assert [r.seq for r in records(tmp_path)] == [1]
    assert len(segments(tmp_path)) == 1


def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path):
    journal = opened(tmp_path)
    journal.append(UID, SEEN)
    journal.close()
    path = segments(tmp_path)[0]
    path.write_bytes(path.read_bytes() + bytes(500))
    after = opened(tmp_path)
    after.append(UID, SEEN)
    assert [r.seq for r in records(tmp_path)] == [1, 2]


def test_a_damaged_segment_stays_as_it_is_and_a_new_one_is_begun(tmp_path: Path):
    journal = opened(tmp_path)
    for _ in range(3):
        journal.append(UID, SEEN)
    journal.close()
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    after = opened(tmp_path)
    after.append(UID, SEEN)
    after.close()
    assert path.read_bytes() == content
    assert len(segments(tmp_path)) == 2
    with pytest.raises(Damaged):
        list(decode(path.read_bytes(), last=False))
    (record,) = (entry.record for entry in decode(segments(tmp_path)[1].read_bytes()))
    assert record is not None and record.seq >= 2


def test_a_segment_damaged_in_its_first_record_is_not_written_over(tmp_path: Path):
    journal = opened(tmp_path)
    journal.append(UID, SEEN)
    journal.append(UID, SEEN)
    journal.close()
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[len(MAGIC) + 1] ^= 0xFF
    path.write_bytes(content)
    after = opened(tmp_path)
    after.append(UID, SEEN)
    after.close()
    assert path.read_bytes() == content
    assert len(segments(tmp_path)) == 2


def test_full_segments_are_rotated_and_the_oldest_go(tmp_path: Path):
    journal = opened(tmp_path, segment_max_bytes=1000, segments_max=3)
    for _ in range(60):
        journal.append(UID, SEEN)
    journal.close()
    assert len(segments(tmp_path)) == 3
    assert all(path.stat().st_size <= 1000 for path in segments(tmp_path))
    numbers = [r.seq for r in records(tmp_path)]
    assert numbers == list(range(numbers[0], 61))
    assert segments(tmp_path)[0].stem == f"{numbers[0]:016d}"


def test_a_disk_that_is_full_drops_records_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = ManualClock()
    journal = opened(tmp_path, clock)
    journal.append(UID, SEEN)
    real, tries = os.write, []

    def full(fd: int, data: bytes) -> int:
        tries.append(len(data))
        if len(tries) == 1:
            return real(fd, data[: len(data) // 2])  # the last block that was left
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journalfile.os, "write", full)
    for _ in range(10):
        journal.append(UID, SEEN)
    assert (journal.dropped, journal.healthy) == (10, False)
    assert len(tries) == 2, "not tried again at every record"
    monkeypatch.setattr(journalfile.os, "write", real)
    clock.advance(6)
    journal.append(UID, Removed(at_us=7))
    assert (journal.dropped, journal.healthy) == (10, True)
    assert [r.seq for r in records(tmp_path)] == [1, 12], "the half-written record was taken back; the gap shows"


@pytest.mark.parametrize("what", ["file", "read-only"])
def test_a_folder_that_cannot_be_used_is_no_error(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch):
    clock = ManualClock()
    if what == "file":
        (tmp_path / "j").write_text("not a folder")
    else:

        def refused(*_: Any, **__: Any) -> int:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(journalfile.os, "open", refused)
    journal = opened(tmp_path / "j", clock)
    journal.append(UID, SEEN)
    journal.append(UID, SEEN)
    assert (journal.dropped, journal.healthy) == (2, False)
    journal.close()
