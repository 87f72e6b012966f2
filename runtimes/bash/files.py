"""The files of one Bash call, made before it comes: request, named pipe of the answer, $KRUNTIME_OUTPUTS.

All of it is in the worker's own folder, where user code may have put anything, and which it may have moved: nothing
here follows a link, goes by a path, or waits.
What ends a call's answer early, a status behind a zero byte and the worker's token, is `driver.sh`'s doing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import Final

from runtimes.contract.limits import INVOKE_RESULT_MAX_BYTES, OUTPUTS_FILE_MAX_BYTES
from runtimes.server.environment import read_regular_file

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIPE: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
READ_BYTES: Final = 65536
PIPE_READS_MAX: Final = 16
"""Reads that empty a pipe at the end of a call: whoever still writes does not hold the answer up."""
SAID_MAX_BYTES: Final = 64
"""Of a status as the driver says it, with the last bytes of what stands before it."""
TRAP_END: Final = b"' EXIT\n"


class CallFiles:
    """Those of call `number`. `status` is set once the handler is known to have returned, with nothing left to run."""

    def __init__(self, folder: int, number: int, token: str) -> None:
        """`folder` is open as long as this is used. Raises OSError."""
        self._folder = folder
        self._request, self._answer, self._outputs = f"request.{number}", f"answer.{number}", f"outputs.{number}"
        self._said = re.compile(rb"(trap -- '(?:[^']|'\\'')*' EXIT\n)?\x00%b (\d+)\x00" % token.encode())
        self._chunks: list[bytes] = []
        self._size = 0
        self._end = b""
        self.status: int | None = None
        self.answer_fd = self._request_fd = -1
        try:
            self._request_fd = os.open(self._request, _NEW, 0o600, dir_fd=folder)
            os.mkfifo(self._answer, 0o600, dir_fd=folder)
            self.answer_fd = os.open(self._answer, _PIPE, dir_fd=folder)
            if not stat.S_ISFIFO(os.fstat(self.answer_fd).st_mode):
                raise OSError(errno.EINVAL, "not a pipe")
        except OSError:
            if self._request_fd >= 0:
                self._unlink(self._request)
            self._close()
            raise

    def write_request(self, body: bytes) -> None:
        """Raises OSError: the disk is full. It may be tried again."""
        with memoryview(body) as left:
            at = 0
            while at < len(left):
                at += os.pwrite(self._request_fd, left[at:], at)

    def read_answer(self) -> int:
        """Take what the handler has printed; 0 when there is nothing now. What is beyond the bound is counted and
        dropped: it never blocks."""
        try:
            data = os.read(self.answer_fd, READ_BYTES)
        except BlockingIOError:
            return 0
        self._size += len(data)
        if self._size <= INVOKE_RESULT_MAX_BYTES + READ_BYTES:
            self._chunks.append(data)
        self._end = (self._end + data)[-SAID_MAX_BYTES:]
        said = self._said.search(self._end)
        if said is not None and not self._end[: said.start()].endswith(TRAP_END) and not said[1]:
            self.status = int(said[2])
        return len(data)

    def read_outputs(self) -> bytes:
        """What the handler wrote to $KRUNTIME_OUTPUTS, b"" for nothing."""
        try:
            return read_regular_file(self._outputs, OUTPUTS_FILE_MAX_BYTES + 1, folder=self._folder)
        except OSError:
            return b""

    def end(self) -> tuple[bytes, int]:
        """Empty the pipe; return what the handler printed, and its whole size."""
        for _ in range(PIPE_READS_MAX if self.status is None else 0):
            if not self.read_answer():
                break
        printed = b"".join(self._chunks)
        said = self._said.search(printed)
        if said is not None:
            printed = printed[: said.start()] + printed[said.end() :]
        else:
            said = self._said.search(self._end)  # Far behind what is kept.
        return printed, self._size - (len(said[0]) if said is not None else 0)

    def remove(self) -> None:
        """Close what is open, remove what is on disk."""
        self._close()
        for name in (self._request, self._answer, self._outputs):
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._folder)
        except OSError:
            pass  # It has gone, or user code has put a folder there: that goes with the worker's.

    def _close(self) -> None:
        for fd in (self.answer_fd, self._request_fd):
            if fd >= 0:
                os.close(fd)
        self.answer_fd = self._request_fd = -1
