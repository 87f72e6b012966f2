"""The modes of folders above Runs: who owns a folder may take everybody's way through it, and user code does own them.

Landlock has no rule for chmod. The kernel tells of a change (inotify), and what the owner needs is given back at once,
by a descriptor: neither a path that is shut nor a link in its place matters. Not here: the Run's own folders, in which
its code may do what it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from pathlib import Path

import msgspec

from runtimes.contract.inotify import IN_ATTRIB, IN_Q_OVERFLOW, Inotify

logger = logging.getLogger(__name__)

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
        self._kept: dict[Identity, _Kept] = {}
        self._paths: dict[Path, list[Identity]] = {}
        self._watches: dict[int, _Kept] = {}
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
            self._loop.add_reader(self._inotify.fd, self._changed)
        except OSError as error:
            logger.warning("modes are not watched: %s", error.strerror)

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
                if self._inotify is not None and self._watches.pop(kept.watch, None) is not None:
                    self._inotify.remove(kept.watch)
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
        if self._inotify is not None:
            with contextlib.suppress(OSError):  # a watch more than this user may have
                kept.watch = self._inotify.add(f"/proc/self/fd/{fd}", IN_ATTRIB)
                self._watches[kept.watch] = kept
        return identity

    def restore(self) -> None:
        """Look at all of which nobody tells."""
        if self._inotify is None:
            self._restore_all()

    def close(self) -> None:
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None
        for kept in self._kept.values():
            os.close(kept.fd)
        self._kept.clear()
        self._paths.clear()
        self._watches.clear()

    def _changed(self) -> None:
        for watch, mask, name in self._inotify.events() if self._inotify is not None else ():
            if mask & IN_Q_OVERFLOW:
                self._restore_all()
            elif watch in self._watches and not name:
                _restore(self._watches[watch])

    def _restore_all(self) -> None:
        for kept in self._kept.values():
            _restore(kept)


def _restore(kept: _Kept) -> None:
    mode = stat.S_IMODE(os.fstat(kept.fd).st_mode)
    wanted = kept.mode if kept.exact else mode | kept.mode
    if mode != wanted:
        try:
            os.chmod(f"/proc/self/fd/{kept.fd}", wanted)  # noqa: PTH101
        except OSError as error:
            logger.warning("a mode was changed and cannot be restored: %s", error.strerror)
