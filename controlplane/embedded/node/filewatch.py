"""Watching single files come and go: with inotify, an answer within a millisecond and no polling.

Lives here: the kernel interface. May not live here: what a file means. `podprobes` calls it next. Where the kernel
gives no inotify (its instances and watches are limited per user, and editors use many) files are looked at instead.
"""

import asyncio
import ctypes
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

_IN_ATTRIB: Final = 0x004
_IN_CLOSE_WRITE: Final = 0x008
_IN_MOVED_FROM: Final = 0x040
_IN_MOVED_TO: Final = 0x080
_IN_CREATE: Final = 0x100
_IN_DELETE: Final = 0x200
_MASK: Final = _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE
_EVENT: Final = struct.Struct("iIII")

EVENT_BUFFER_BYTES: Final = 64 * 1024
"""Read at once; an event is 16 bytes and a name."""

LOOK_EVERY_SECONDS: Final = 0.25
"""Without inotify: late enough to cost nothing, early enough for readiness."""

_log = logging.getLogger(__name__)


class FileWatcher:
    """Calls back when a file of a given name may have come, changed or gone in its folder. One inotify instance."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, dict[str, Callable[[], None]]] = {}
        self._looked_at: dict[Path, tuple[Callable[[], None], bool]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._fd = -1
        try:
            self._fd = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
            self._loop.add_reader(self._fd, self._read)
        except OSError as error:
            _log.warning("no inotify, files are looked at instead: %s", error.strerror)

    def watch(self, file: Path, on_change: Callable[[], None]) -> Callable[[], None]:
        """Watch `file`, whose folder must exist; one callback a file. Returns what ends the watch."""
        try:
            wd = self._check(self._libc.inotify_add_watch(self._fd, os.fsencode(file.parent), _MASK))
        except OSError:
            return self._look_at(file, on_change)
        self._watches.setdefault(wd, {})[file.name] = on_change

        def cancel() -> None:
            files = self._watches.get(wd, {})
            if files.get(file.name) is on_change:
                del files[file.name]
                if not files:
                    self._watches.pop(wd, None)
                    self._libc.inotify_rm_watch(self._fd, wd)  # fails when the folder is gone, and the watch with it

        return cancel

    def close(self) -> None:
        """End all watches."""
        self._looked_at.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, EVENT_BUFFER_BYTES)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            wd, mask, _cookie, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = os.fsdecode(data[offset : offset + length].split(b"\0", 1)[0])
            offset += length
            if mask & _MASK and (callback := self._watches.get(wd, {}).get(name)) is not None:
                callback()

    def _look_at(self, file: Path, on_change: Callable[[], None]) -> Callable[[], None]:
        self._looked_at[file] = (on_change, file.exists())
        if self._alarm is None:
            self._alarm = self._loop.call_later(LOOK_EVERY_SECONDS, self._look)

        def cancel() -> None:
            if file in self._looked_at and self._looked_at[file][0] is on_change:
                del self._looked_at[file]

        return cancel

    def _look(self) -> None:
        self._alarm = self._loop.call_later(LOOK_EVERY_SECONDS, self._look) if self._looked_at else None
        for file, (on_change, was_there) in list(self._looked_at.items()):
            if file.exists() != was_there:
                self._looked_at[file] = (on_change, not was_there)
                on_change()

    @staticmethod
    def _check(result: int) -> int:
        if result < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return result
