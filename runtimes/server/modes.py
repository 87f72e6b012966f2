"""The modes of folders above Runs: who owns a folder may take everybody's way through it, and user code does own them.

Landlock has no rule for chmod. The kernel tells of a change (inotify), and what the owner needs is given back at once,
by a descriptor: neither a path that is shut nor a link in its place matters. Not here: the Run's own folders, in which
its code may do what it likes.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

logger = logging.getLogger(__name__)

_ATTRIBUTES, _OVERFLOW = 0x4, 0x4000
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 65536


Identity = tuple[int, int]
"""Device and inode."""


class _Kept(msgspec.Struct):
    fd: int
    mode: int
    exact: bool
    watch: int = -1
    users: int = 0


class Modes:
    """Keeps what it is told of until it is told to let go, or closed. Without inotify (a user may have 128 of them)
    `restore` is all there is."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._kept: dict[Identity, _Kept] = {}
        self._paths: dict[Path, list[Identity]] = {}
        self._watches: dict[int, _Kept] = {}
        self._inotify = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0:
            logger.warning("modes are not watched: %s", os.strerror(ctypes.get_errno()))
        else:
            self._loop.add_reader(self._inotify, self._changed)

    def keep(self, path: Path, *, below: Path) -> None:
        """Keep the modes of `path` and all above it that this user owns: below `below`, and of that itself, exactly;
        above it what the owner needs (the rest is not this product's). What cannot be looked at is let be."""
        self.restore()
        if path in self._paths:
            return
        identities = self._paths[path] = []
        for folder in (path, *path.parents):
            identity = self._look_at(folder, folder.is_relative_to(below))
            if identity is not None:
                self._kept[identity].users += 1
                identities.append(identity)

    def let_go(self, path: Path) -> None:
        """`path` may go, and so may what was kept for it alone."""
        for identity in self._paths.pop(path, ()):
            kept = self._kept[identity]
            kept.users -= 1
            if not kept.users:
                del self._kept[identity]
                if self._watches.pop(kept.watch, None) is not None:
                    self._libc.inotify_rm_watch(self._inotify, kept.watch)
                os.close(kept.fd)

    def _look_at(self, folder: Path, exact: bool) -> Identity | None:
        try:
            fd = os.open(folder, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        found = os.fstat(fd)
        identity = found.st_dev, found.st_ino
        if found.st_uid != os.geteuid() or identity in self._kept:
            os.close(fd)
            return identity if identity in self._kept else None
        mode = stat.S_IMODE(found.st_mode)
        self._kept[identity] = kept = _Kept(fd, mode if exact else stat.S_IRWXU & mode, exact)
        if self._inotify >= 0:
            place = f"/proc/self/fd/{fd}".encode()
            kept.watch = self._libc.inotify_add_watch(self._inotify, place, ctypes.c_uint32(_ATTRIBUTES))
            if kept.watch >= 0:
                self._watches[kept.watch] = kept
        return identity

    def restore(self) -> None:
        """Look at all of which nobody tells."""
        for kept in self._kept.values() if self._inotify < 0 else ():
            _restore(kept)

    def close(self) -> None:
        if self._inotify >= 0:
            self._loop.remove_reader(self._inotify)
            os.close(self._inotify)
            self._inotify = -1
        for kept in self._kept.values():
            os.close(kept.fd)
        self._kept.clear()
        self._paths.clear()
        self._watches.clear()

    def _changed(self) -> None:
        for watch, mask, of_what_is_in_it in self._events():
            if mask & _OVERFLOW:
                for kept in self._kept.values():
                    _restore(kept)
            elif watch in self._watches and not of_what_is_in_it:
                _restore(self._watches[watch])

    def _events(self) -> Iterator[tuple[int, int, bool]]:
        try:
            data = os.read(self._inotify, _READ_BYTES)
        except OSError:
            return
        at = 0
        while at < len(data):
            watch, mask, _, size = _EVENT.unpack_from(data, at)
            at += _EVENT.size + size
            yield watch, mask, bool(size)


def _restore(kept: _Kept) -> None:
    mode = stat.S_IMODE(os.fstat(kept.fd).st_mode)
    wanted = kept.mode if kept.exact else mode | kept.mode
    if mode != wanted:
        try:
            os.chmod(f"/proc/self/fd/{kept.fd}", wanted)  # noqa: PTH101
        except OSError as error:
            logger.warning("a mode was changed and cannot be restored: %s", error.strerror)
