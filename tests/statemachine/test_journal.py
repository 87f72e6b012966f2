"""What a journal survives and what it refuses: every flipped byte, every torn length."""

import struct
import zlib

import pytest

from statemachine import events as ev
from statemachine.events import Role
from statemachine.journal import (
    HEAD_BYTES,
    MAGIC,
    RECORD_MAX_BYTES,
    RULES_VERSION,
    Damaged,
    DamageKind,
    Record,
    decode,
    encode,
    whole_length,
)
from statemachine.replay import UnknownRules, replay
from statemachine.run import Phase
from statemachine.step import step
from tests.statemachine.samples import DECISIONS, NOW, UID, run_in


def records() -> list[Record]:
    """Three records: a Run is seen, is bound, and is seen bound."""
    pending, scheduled = run_in(Phase.PENDING), run_in(Phase.SCHEDULED)
    story = [
        (None, ev.Observed(at_us=NOW, run=pending)),
        (pending, DECISIONS[ev.Bound]()),
        (pending, ev.Observed(at_us=NOW + 1, run=scheduled)),
    ]
    made = []
    for before, event in story:
        outcome = step(before, event, Role.CONTROL_PLANE)
        made.append(
            Record(
                len(made) + 1,
                "controlplane",
                Role.CONTROL_PLANE,
                RULES_VERSION,
                UID,
                event,
                outcome.commands,
                outcome.refusal,
                outcome.gap,
                fresh=before is None,
            )
        )
    return made


RECORDS = records()
SEGMENT = MAGIC + b"".join(map(encode, RECORDS))
LAST = len(SEGMENT) - len(encode(RECORDS[-1]))


def test_a_segment_reads_back_as_it_was_written() -> None:
    assert [entry.record for entry in decode(SEGMENT)] == RECORDS
    assert whole_length(SEGMENT) == len(SEGMENT)


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_every_flipped_byte_is_refused_with_the_offset_of_its_record(bit: int) -> None:
    starts = [0, *(entry.offset for entry in decode(SEGMENT))]
    for position in range(len(SEGMENT)):
        flipped = bytearray(SEGMENT)
        flipped[position] ^= bit
        with pytest.raises(Damaged) as caught:
            list(decode(bytes(flipped)))
        assert caught.value.offset == max(start for start in starts if start <= position)


def test_a_torn_tail_of_any_length_is_left_out_and_said() -> None:
    for length in range(LAST + 1, len(SEGMENT)):
        entries = list(decode(SEGMENT[:length]))
        assert [entry.record for entry in entries[:-1]] == RECORDS[:-1]
        assert entries[-1].record is None
        assert entries[-1].offset == LAST
        assert whole_length(SEGMENT[:length]) == LAST


def test_a_tail_of_zeros_is_torn_whatever_its_length() -> None:
    for zeros in (1, HEAD_BYTES, 4096):
        entries = list(decode(SEGMENT + bytes(zeros)))
        assert entries[-1].record is None
        assert whole_length(SEGMENT + bytes(zeros)) == len(SEGMENT)
    for cut in (1, 5, 40):
        entries = list(decode(SEGMENT[:-cut] + bytes(cut)))
        assert entries[-1].record is None


def test_a_short_record_is_damage_in_any_segment_but_the_last() -> None:
    with pytest.raises(Damaged) as caught:
        list(decode(SEGMENT[:-1], last=False))
    assert caught.value.kind is DamageKind.TRUNCATED


def test_a_length_past_the_end_with_other_bytes_behind_it_is_damage() -> None:
    payload = b"x" * 10
    head = struct.pack(">II", 5000, zlib.crc32(payload))
    with pytest.raises(Damaged) as caught:
        list(decode(MAGIC + head + b"\0\0\0\1" + payload))
    assert caught.value.kind is DamageKind.HEAD


def test_a_length_above_the_bound_is_damage() -> None:
    head = struct.pack(">II", RECORD_MAX_BYTES + 1, 0)
    with pytest.raises(Damaged) as caught:
        list(decode(MAGIC + head + struct.pack(">I", zlib.crc32(head)) + b"x" * 50))
    assert caught.value.kind is DamageKind.LENGTH


def test_an_unknown_kind_of_record_is_refused_with_its_place() -> None:
    payload = encode(RECORDS[0])[HEAD_BYTES:-1].replace(b"Observed", b"Obscured")
    head = struct.pack(">II", len(payload), zlib.crc32(payload))
    segment = SEGMENT + head + struct.pack(">I", zlib.crc32(head)) + payload + b"\xa5"
    with pytest.raises(Damaged) as caught:
        list(decode(segment))
    assert (caught.value.kind, caught.value.offset, caught.value.index) == (DamageKind.UNKNOWN, len(SEGMENT), 3)


def test_a_newer_rule_version_is_refused_with_its_place() -> None:
    newer = Record(4, "controlplane", Role.CONTROL_PLANE, RULES_VERSION + 1, UID, RECORDS[0].event)
    with pytest.raises(UnknownRules, match=f"record 3 at offset {len(SEGMENT)}"):
        replay(decode(SEGMENT + encode(newer)))


def test_something_that_is_no_journal_is_refused_and_an_empty_one_is_not() -> None:
    with pytest.raises(Damaged) as caught:
        list(decode(b"#!/bin/sh\n"))
    assert caught.value.kind is DamageKind.MAGIC
    assert list(decode(b"")) == []
    assert list(decode(MAGIC)) == []


def test_a_record_above_the_bound_is_not_written() -> None:
    huge = ev.Waiting(at_us=1, reason="NoCapacity", message="x" * RECORD_MAX_BYTES)
    with pytest.raises(ValueError, match="exceeds"):
        encode(Record(1, "w", Role.CONTROL_PLANE, 1, UID, huge))
