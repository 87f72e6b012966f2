"""The journal on disk: append-only segments of one writer, in the form of `statemachine.journal`.

A journal is a record, never the truth: what cannot be written is counted and noted, and stops nothing. The control
plane and runtimed write one each; `krt replay` and the journal's API read them with `segments`.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from controlplane.kube.clock import Clock
from statemachine.commands import Command
from statemachine.events import Event, Role
from statemachine.journal import MAGIC, RULES_VERSION, Damaged, Record, decode, encode, whole_length
from statemachine.run import RunUID
from statemachine.step import Refusal

SEGMENT_MAX_BYTES: Final = 8 << 20  # read whole by a reader and at opening: small enough for both
SEGMENTS_MAX: Final = 16  # 128 MiB of history a writer; the oldest segment goes first
RETRY_S: Final = 5.0  # a full disk is tried again this often, not at every record
SUFFIX: Final = ".krj"

_log = logging.getLogger(__name__)


def segments(directory: Path) -> list[Path]:
    """The segments of one writer, oldest first. An absent directory has none. Raises OSError."""
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []


class JournalFile:
    """Appends records of one writer. Never raises: after a disk error records are dropped until a retry succeeds.

    `dropped` counts them, `healthy` says whether the last write went through. What a crash of the machine leaves torn
    at the end is cut when the journal is opened again; a damaged segment is left as it is and a new one begun.
    """

    def __init__(
        self,
        directory: Path,
        *,
        writer: str,
        role: Role,
        clock: Clock,
        segment_max_bytes: int = SEGMENT_MAX_BYTES,
        segments_max: int = SEGMENTS_MAX,
    ) -> None:
        self.dropped = 0
        self.healthy = True
        self._directory = directory
        self._writer = writer
        self._role = role
        self._clock = clock
        self._segment_max_bytes = segment_max_bytes
        self._segments_max = segments_max
        self._seq = 0
        self._fd: int | None = None
        self._size = 0
        self._retry_at = 0.0
        self._opened = False

    def append(
        self,
        run_uid: RunUID,
        event: Event,
        commands: Sequence[Command] = (),
        refusal: Refusal | None = None,
        gap: bool = False,
        *,
        fresh: bool = False,
    ) -> None:
        """Write one step, before its commands are performed: a process that dies afterwards has written it.

        `fresh`: this process knew nothing of the Run before. The arguments are those of `Record`.
        """
        ready = self._ready()
        self._seq += 1
        if not ready:
            self.dropped += 1
            return
        record = Record(
            seq=self._seq,
            writer=self._writer,
            role=self._role,
            rules=RULES_VERSION,
            run_uid=run_uid,
            event=event,
            commands=tuple(commands),
            refusal=refusal,
            gap=gap,
            fresh=fresh,
        )
        try:
            self._write(encode(record))
        except OSError as error:
            self._fail(error)
            self.dropped += 1
        except ValueError as error:
            _log.warning("a journal record is left out: %s", error, extra={"run": run_uid})
            self.dropped += 1
        else:
            self._recovered()

    def close(self) -> None:
        """Close the segment. Appending later opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _ready(self) -> bool:
        if not self.healthy and self._clock.monotonic() < self._retry_at:
            return False
        if self._fd is not None:
            return True
        try:
            self._open()
        except OSError as error:
            self._fail(error)
            return False
        return True

    def _open(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        present = segments(self._directory)
        if not self._opened:
            self._seq = max(self._seq, _last_seq(present))
            self._opened = True
        if not present or not self._take_up(present[-1]):
            self._begin(self._seq + 1)

    def _take_up(self, path: Path) -> bool:
        """Go on in the last segment, its torn tail cut; False if it is full, damaged or not of this form."""
        content = path.read_bytes()
        try:
            whole = whole_length(content)
        except Damaged as damage:
            _log.warning("journal segment %s is damaged and left as it is: %s", path.name, damage)
            return False
        if whole >= self._segment_max_bytes:
            return False
        if whole < len(content):
            _log.warning("journal segment %s: %d torn bytes cut", path.name, len(content) - whole)
            os.truncate(path, whole)
        self._switch(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), whole)
        return True

    def _begin(self, first_seq: int) -> None:
        """A new segment, named by the record that it begins with; the oldest ones go."""
        path = self._directory / f"{first_seq:016d}{SUFFIX}"
        while path.exists():  # damaged before its first record: it stays for `krt replay` to report
            first_seq += 1
            path = self._directory / f"{first_seq:016d}{SUFFIX}"
        self._switch(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), 0)
        for old in segments(self._directory)[: -self._segments_max]:
            old.unlink(missing_ok=True)

    def _switch(self, fd: int, size: int) -> None:
        self.close()
        self._fd = fd
        self._size = size

    def _write(self, data: bytes) -> None:
        """Write all of it, or raise OSError with the segment as it was."""
        if self._size + len(data) > self._segment_max_bytes and self._size > 0:
            self._begin(self._seq)
        assert self._fd is not None
        if self._size == 0:
            data = MAGIC + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            if written:
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _fail(self, error: Exception) -> None:
        self._retry_at = self._clock.monotonic() + RETRY_S
        if self.healthy:
            _log.warning("the journal cannot be written, records are dropped until it can: %s", error)
        self.healthy = False

    def _recovered(self) -> None:
        if not self.healthy:
            self.healthy = True
            _log.warning("the journal can be written again; %d records were dropped so far", self.dropped)


def _last_seq(present: Sequence[Path]) -> int:
    """The highest number on record, also where a segment is damaged further on."""
    for path in reversed(present):
        first = int(path.stem) if path.stem.isdigit() else 0
        seq = first - 1
        try:
            for entry in decode(path.read_bytes()):
                if entry.record is not None:
                    seq = max(seq, entry.record.seq)
        except Damaged as damage:
            _log.warning("journal segment %s is damaged: %s", path.name, damage)
            seq = max(seq, first)
        if seq > 0:
            return seq
    return 0
