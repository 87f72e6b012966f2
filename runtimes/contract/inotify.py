"""The kernel's inotify: told of changes to files and folders, without polling. Only the interface; what a change means
is for the caller. An instance may not be had: a user has 128 of them as a rule, and editors use many.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from typing import Final

IN_ATTRIB: Final = 0x004
IN_CLOSE_WRITE: Final = 0x008
IN_MOVED_FROM: Final = 0x040
IN_MOVED_TO: Final = 0x080
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_Q_OVERFLOW: Final = 0x4000

EVENT_BUFFER_BYTES: Final = 64 * 1024
"""Read at once; an event is 16 bytes and a name."""

_EVENT: Final = struct.Struct("iIII")


class Inotify:
    """One instance. `fd` is for the loop: readable when there are `events`. Raises OSError where there is none."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: str | os.PathLike[str], mask: int) -> int:
        """Watch what is at this path now; the watch's number. Raises OSError."""
        return _checked(self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask)))

    def remove(self, watch: int) -> None:
        """End a watch. One of something that is gone has ended already."""
        self._libc.inotify_rm_watch(self.fd, watch)

    def events(self) -> Iterator[tuple[int, int, str]]:
        """What has happened since: the watch, the mask, and the name in the watched folder (empty for itself)."""
        try:
            data = os.read(self.fd, EVENT_BUFFER_BYTES)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            watch, mask, _cookie, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            yield watch, mask, os.fsdecode(data[offset : offset + length].split(b"\0", 1)[0])
            offset += length

    def close(self) -> None:
        """End all watches."""
        os.close(self.fd)


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
