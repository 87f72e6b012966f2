"""The form of a journal on its way to disk and back: bytes in, bytes out, no files.

A segment is `MAGIC` and then records: a 12-byte head (payload length, CRC-32 of the payload, CRC-32 of those eight
bytes, big-endian), a msgpack payload and the byte `TAIL`. The head has a sum of its own so that a flipped length is
told from a torn tail, and TAIL is not zero so that a tail of zeros is told from a flipped byte.
`controlplane.kube.journalfile` writes segments; `replay.py` folds them.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from statemachine.commands import Command
from statemachine.events import Event, Role
from statemachine.run import RunUID
from statemachine.step import Refusal

MAGIC: Final = b"KRJ1"
RULES_VERSION: Final = 1  # the version of table, guards, effects and duties that a record was decided by
RECORD_MAX_BYTES: Final = 1 << 20  # far above the largest Run; a longer length is damage
_HEAD: Final = struct.Struct(">II")
_SUM: Final = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size + _SUM.size
TAIL: Final = 0xA5


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step of one Run, as one process took it.

    `seq` counts the writer's records from 1, those that could not be written included; `writer` is `controlplane` or
    `runtimed-<Pod UID>`; `commands`, `refusal` and `gap` are what the step returned. `fresh`: the process knew nothing
    of the Run before, since it had just started or the Run is new. `at_us` is in the event.
    """

    seq: int
    writer: str
    role: Role
    rules: int
    run_uid: RunUID
    event: Event
    commands: tuple[Command, ...] = ()
    refusal: Refusal | None = None
    gap: bool = False
    fresh: bool = False


class DamageKind(StrEnum):
    """What is wrong with a journal."""

    MAGIC = "NotAJournal"
    HEAD = "HeadDamaged"
    LENGTH = "LengthOutOfBounds"
    PAYLOAD = "PayloadDamaged"
    TRUNCATED = "Truncated"  # short, in a segment that is not the last one
    UNKNOWN = "UnknownRecord"  # a record of a kind, or with a field value, that these rules do not know


class Damaged(Exception):
    """A journal that must not be trusted past `offset` (bytes from the start of the segment), record number `index`."""

    def __init__(self, kind: DamageKind, offset: int, index: int, detail: str) -> None:
        super().__init__(f"{kind} at offset {offset}, record {index}: {detail}")
        self.kind = kind
        self.offset = offset
        self.index = index


class Entry(msgspec.Struct, frozen=True):
    """A record with its place: byte offset in its segment and index from 0. `torn` entries have no record."""

    offset: int
    index: int
    record: Record | None


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    """A record as bytes to append. ValueError when it exceeds RECORD_MAX_BYTES."""
    payload = _ENCODER.encode(record)
    if len(payload) > RECORD_MAX_BYTES:
        raise ValueError(f"a journal record of {len(payload)} bytes exceeds {RECORD_MAX_BYTES}")
    head = _HEAD.pack(len(payload), zlib.crc32(payload))
    return b"".join((head, _SUM.pack(zlib.crc32(head)), payload, bytes((TAIL,))))


def decode(segment: bytes, *, last: bool = True) -> Iterator[Entry]:
    """The records of a segment in order.

    Raises Damaged. In the last segment a torn last record (too short, or zeros to the end) is no damage: it is yielded
    as an entry without a record, so that a reader can say that it was left out.
    """
    if segment[: len(MAGIC)] != MAGIC:
        if last and MAGIC.startswith(segment.rstrip(b"\0")):
            return
        raise Damaged(DamageKind.MAGIC, 0, 0, f"a segment starts with {MAGIC!r}")
    offset, index = len(MAGIC), 0
    while offset < len(segment):
        payload = _payload(segment, offset, index, last)
        if payload is None:
            yield Entry(offset, index, None)
            return
        try:
            record = _DECODER.decode(payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise Damaged(DamageKind.UNKNOWN, offset, index, str(error)) from error
        yield Entry(offset, index, record)
        offset += HEAD_BYTES + len(payload) + 1
        index += 1


def whole_length(segment: bytes) -> int:
    """How many bytes of a last segment are whole records: a writer cuts a torn tail there before it appends."""
    end = len(MAGIC) if segment[: len(MAGIC)] == MAGIC else 0
    for entry in decode(segment):
        if entry.record is None:
            return entry.offset
        length, _ = _HEAD.unpack_from(segment, entry.offset)
        end = entry.offset + HEAD_BYTES + length + 1
    return end


def _payload(segment: bytes, offset: int, index: int, last: bool) -> memoryview | None:
    """The payload at this offset, or None when it is a torn tail."""
    rest = memoryview(segment)[offset:]
    if len(rest) < HEAD_BYTES or not any(rest):
        _check_torn(offset, index, last)
        return None
    length, payload_sum = _HEAD.unpack_from(rest)
    (head_sum,) = _SUM.unpack_from(rest, _HEAD.size)
    if head_sum != zlib.crc32(rest[: _HEAD.size]):
        raise Damaged(DamageKind.HEAD, offset, index, "the sum of the record's head does not match")
    if length > RECORD_MAX_BYTES:
        raise Damaged(DamageKind.LENGTH, offset, index, f"a length of {length} exceeds {RECORD_MAX_BYTES}")
    payload, tail = rest[HEAD_BYTES : HEAD_BYTES + length], rest[HEAD_BYTES + length :]
    if not tail:
        _check_torn(offset, index, last)
        return None
    if last and not any(tail):
        # A file system may extend a file before it writes the blocks: zeros from somewhere up to the end are torn.
        return None
    if zlib.crc32(payload) != payload_sum or tail[0] != TAIL:
        raise Damaged(DamageKind.PAYLOAD, offset, index, "the sum of the record's payload does not match")
    return payload


def _check_torn(offset: int, index: int, last: bool) -> None:
    if not last:
        raise Damaged(DamageKind.TRUNCATED, offset, index, "only the last record of the last segment may be torn")
