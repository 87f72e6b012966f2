"""What user code prints: pipes split into lines, lines kept per Run with invocation id and attempt (spec section 6).

`Capture` reads one pipe, `RunLog` writes one Run's file `<work>/logs/<Run UID>.ndjson`. Both are bounded, and neither
raises into a call: a disk that is full loses log lines, not answers. Readers of the files live elsewhere.
"""

from __future__ import annotations

import logging
import os
import time
from asyncio import AbstractEventLoop
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from runtimes.contract.limits import (
    LOG_INVOCATION_MAX_BYTES,
    LOG_LINE_MAX_BYTES,
    LOG_RECORD_BYTES,
    LOG_RUN_MAX_BYTES,
    LOGS_MAX_COUNT,
    LOGS_TOTAL_MAX_BYTES,
    STDERR_TAIL_MAX_BYTES,
)

logger = logging.getLogger(__name__)

Stream = Literal["stdout", "stderr", "system"]
READ_BYTES: Final = 65536
DRAIN_MAX_BYTES: Final = 1024 * 1024
"""What is read at the end of a call or task: a pipe's capacity at most, so that whoever still writes cannot hold us."""


class LogLine(msgspec.Struct, frozen=True):
    """One line of a Run's log. `invocation` is empty for what no call printed (imports, threads, tasks)."""

    time: str
    stream: Stream
    invocation: str
    attempt: int
    line: str
    cut: bool = False
    """The line was longer than LOG_LINE_MAX_BYTES, or not all that was printed is here."""


_encode: Final = msgspec.json.Encoder().encode


class RunLog:
    """Appends to one Run's file, moving it to `<uid>.1.ndjson` at LOG_RUN_MAX_BYTES. Opened by the first line."""

    def __init__(self, folder: Path, run_uid: str, attempt: int) -> None:
        self.attempt = attempt
        self._path = folder / f"{run_uid}.ndjson"
        self._fd: int | None = None
        self._size = 0
        self._failed = False

    def write(self, stream: Stream, invocation: str, lines: Sequence[bytes], *, cut: bool = False) -> None:
        """Append lines (without their newline). Never raises."""
        now = _timestamp()
        records = []
        for line in lines:
            long = len(line) > LOG_LINE_MAX_BYTES
            text = line[:LOG_LINE_MAX_BYTES].decode("utf-8", "replace")
            records.append(_encode(LogLine(now, stream, invocation, self.attempt, text, cut or long)))
            if long:
                notice = f"[cut: a line of more than {LOG_LINE_MAX_BYTES} bytes on {stream}]"
                records.append(_encode(LogLine(now, "system", invocation, self.attempt, notice, True)))
        records.append(b"")
        data = b"\n".join(records)
        try:
            if self._fd is None or self._size + len(data) > LOG_RUN_MAX_BYTES:
                self._open(rotate=self._fd is not None)
            assert self._fd is not None
            self._size += os.write(self._fd, data)
            self._failed = False
        except OSError as error:
            if not self._failed:
                self._failed = True
                logger.warning("a Run's log cannot be written: %s", error)

    def _open(self, *, rotate: bool) -> None:
        self.close()
        older = self._path.with_suffix(".1.ndjson")
        lost = rotate and older.exists()
        if rotate:
            self._path.replace(older)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        if lost:
            notice = f"[cut: older lines are gone, a Run keeps {LOG_RUN_MAX_BYTES} to {2 * LOG_RUN_MAX_BYTES} bytes]"
            record = _encode(LogLine(_timestamp(), "system", "", self.attempt, notice, True))
            self._size += os.write(self._fd, record + b"\n")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class Capture:
    """One pipe's reading end: whole lines go to the log under the invocation that is current, and a tail is kept."""

    def __init__(self, loop: AbstractEventLoop, fd: int, stream: Stream, log: RunLog) -> None:
        self._loop = loop
        self._fd: int | None = fd
        self._stream = stream
        self._log = log
        self._partial = b""
        self._skipping = False  # within a line that is too long already
        self._invocation = ""
        self._budget = LOG_INVOCATION_MAX_BYTES
        self._tail = b""
        loop.add_reader(fd, self._readable)

    @property
    def tail(self) -> str:
        """The last bytes printed since `begin`, at most STDERR_TAIL_MAX_BYTES, whole lines where it was cut."""
        tail = self._tail
        if len(tail) > STDERR_TAIL_MAX_BYTES:
            tail = tail[-STDERR_TAIL_MAX_BYTES:]
            tail = tail[tail.find(b"\n") + 1 :]
        return tail.decode("utf-8", "replace").strip()

    def begin(self, invocation: str) -> None:
        """What is read from now on belongs to this invocation ('' = to none)."""
        self._invocation = invocation
        self._budget = LOG_INVOCATION_MAX_BYTES
        self._tail = b""

    def finish(self, last: str = "", *, drain: bool = True) -> None:
        """Read what is there, unless it is known that nothing is; log a last line without newline, then the lines of
        `last`, which count as if they had been printed, and belong to no invocation."""
        if drain:
            self.drain()
        if self._partial:
            self.log([self._partial])
            self._partial = b""
        if last:
            self.log(last.encode("utf-8", "replace").split(b"\n"))
        self._skipping = False  # The line that was too long ends with the call.
        self._invocation = ""
        self._budget = LOG_INVOCATION_MAX_BYTES

    def drain(self) -> None:
        """Read what the pipe holds now, without waiting."""
        total = 0
        while total < DRAIN_MAX_BYTES and (size := self._readable()):
            total += size
            if size < READ_BYTES:
                break

    def close(self) -> None:
        """Drain and close: whoever still holds the other end writes to nobody."""
        self.finish()
        self._drop()

    def _drop(self) -> None:
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _readable(self) -> int:
        if self._fd is None:
            return 0
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._drop()
            return 0
        size = len(data)
        self._tail = (self._tail + data[-2 * STDERR_TAIL_MAX_BYTES :])[-2 * STDERR_TAIL_MAX_BYTES :]
        if self._budget <= 0:  # Nothing more is logged: who floods us does not have his lines counted, nor our time.
            self._partial = b""
            self._skipping = not data.endswith(b"\n")
            return size
        if self._skipping:
            _, newline, data = data.partition(b"\n")
            self._skipping = not newline
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LOG_LINE_MAX_BYTES:
            # It is logged as cut, and what follows up to its end is left out: nothing is kept without bound.
            lines.append(self._partial)
            self._partial = b""
            self._skipping = True
        if lines:
            self.log(lines)
        return size

    def log(self, lines: list[bytes]) -> None:
        """Log whole lines under the current invocation, as far as its budget goes."""
        if self._budget <= 0:
            return
        size = sum(map(len, lines)) + len(lines) * LOG_RECORD_BYTES
        if size <= self._budget:
            self._budget -= size
            self._log.write(self._stream, self._invocation, lines)
            return
        kept = []
        for line in lines:
            if len(line) + LOG_RECORD_BYTES > self._budget:
                break
            self._budget -= len(line) + LOG_RECORD_BYTES
            kept.append(line)
        self._budget = 0
        self._log.write(self._stream, self._invocation, kept)
        notice = f"[cut: more than {LOG_INVOCATION_MAX_BYTES} bytes of {self._stream}]"
        self._log.write("system", self._invocation, [notice.encode()], cut=True)


def prune_logs(
    folder: Path, keep: set[str], *, limit_bytes: int = LOGS_TOTAL_MAX_BYTES, limit_files: int = LOGS_MAX_COUNT
) -> int:
    """Remove the oldest files of Runs not in `keep` until the folder is within both limits; returns bytes removed."""
    files = []
    for path in folder.glob("*.ndjson"):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        files.append((found.st_mtime_ns, found.st_size, path))
    total, count, removed = sum(size for _, size, _ in files), len(files), 0
    for _, size, path in sorted(files):
        if total - removed <= limit_bytes and count <= limit_files:
            break
        if path.name.split(".", 1)[0] not in keep:
            path.unlink(missing_ok=True)
            removed += size
            count -= 1
    return removed


def _timestamp() -> str:
    now = time.time_ns()
    seconds, nanoseconds = divmod(now, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds // 1000:06d}Z"
