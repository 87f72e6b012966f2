"""A Run's files as readers see them: the lines that its code printed, and the journal records that are about it.

The folder of logs belongs to a container with users' code, which may put anything there: no link in it is followed,
only regular files count, what is read at once is bounded. Lives here: files. May not live here: who may read, and
where the files are. The embedded API server, runtimed and the control plane read with it.
"""

import contextlib
import os
import re
import stat
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from controlplane.kube.journalfile import segments
from statemachine.journal import MAGIC, Damaged, decode, encode

READ_MAX_BYTES: Final = 1 << 20  # of log or journal at once; with one record more it fits into one message of the wire
_UID: Final = re.compile(r"[-0-9A-Za-z]{1,64}")

Offsets = dict[str, int]
"""How far each file was read, by what tells files apart also after they were renamed."""


class JournalDamaged(Exception):
    """A segment of the journal is damaged; the message names it and the place."""


class LogPart(msgspec.Struct, frozen=True):
    """Some lines (with their newlines) by time, and whether there may be more right now."""

    lines: list[tuple[str, bytes]]
    more: bool


class JournalPart(msgspec.Struct, frozen=True):
    """Some records as they are in a segment, the number of the last one, and whether there are more."""

    records: bytes
    last: int
    more: bool


class _Line(msgspec.Struct):
    time: str = ""
    invocation: str = ""


def read_log(
    folder: Path, uid: str, offsets: Offsets, invocation: str, *, mark: str = "", limit: int = READ_MAX_BYTES
) -> LogPart:
    """Lines behind the offsets, which it moves; `mark` begins the name of each offset. An absent folder has none.

    Raises PermissionError for files of another user: nothing is not what was printed."""
    lines: list[tuple[str, bytes]] = []
    left, more = limit, False
    with contextlib.closing(_files(folder, uid)) as files:
        for file in files:
            name = f"{mark}{os.fstat(file.fileno()).st_ino}"
            start = offsets.get(name, 0)
            file.seek(start)
            data = file.read(left)
            whole = data[: data.rfind(b"\n") + 1]
            more = len(data) == left
            if more and not whole and left == limit:
                whole = data  # no line of ours is as long as all that is read at once
            if whole:
                offsets[name] = start + len(whole)
                left -= len(whole)
            lines += timed_lines(whole, invocation)
            if more:
                break
    return LogPart(lines, more)


def read_journal(folder: Path, uid: str, after: int, *, limit: int = READ_MAX_BYTES) -> JournalPart:
    """The records of one writer about this Run whose number is above `after`. Raises JournalDamaged."""
    parts: list[bytes] = []
    size, last = 0, after
    files = segments(folder)
    for number, path in enumerate(files):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # the oldest one goes while others are read
        if uid.encode() not in content:
            continue
        try:
            for entry in decode(content, last=number == len(files) - 1):
                record = entry.record
                if record is None or record.run_uid != uid or record.seq <= last:
                    continue
                encoded = encode(record)
                if parts and size + len(encoded) > limit:
                    return JournalPart(b"".join(parts), last, True)
                parts.append(encoded)
                size, last = size + len(encoded), record.seq
        except Damaged as damage:
            raise JournalDamaged(f"journal segment {path.name}: {damage}") from damage
    return JournalPart(b"".join(parts), last, False)


def whole_journal(folder: Path, uid: str) -> bytes:
    """All of them as one segment; MAGIC alone where there are none. Raises JournalDamaged."""
    parts, after, more = [MAGIC], 0, True
    while more:
        part = read_journal(folder, uid, after)
        parts.append(part.records)
        after, more = part.last, part.more
    return b"".join(parts)


def timed_lines(data: bytes, invocation: str = "") -> list[tuple[str, bytes]]:
    """Lines with their times; what is no line of a log is left out."""
    found = []
    for line in data.splitlines(keepends=True):
        try:
            known = msgspec.json.decode(line, type=_Line)
        except (msgspec.MsgspecError, RecursionError):
            continue
        if not invocation or known.invocation == invocation:
            found.append((known.time, line))
    return found


def _files(folder: Path, uid: str) -> Generator[BinaryIO, None, None]:
    """The Run's files, the older one first, each open until the next is asked for."""
    if _UID.fullmatch(uid) is None:
        return
    try:
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        raise
    except OSError:
        return
    try:
        for name in (f"{uid}.1.ndjson", f"{uid}.ndjson"):
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(name, flags, dir_fd=place)
            except PermissionError:
                raise
            except OSError:
                continue
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                continue
            with os.fdopen(descriptor, "rb") as file:
                yield file
    finally:
        os.close(place)
