"""Watching single files come and go: with inotify, an answer within a millisecond and no polling.

Lives here: which files are watched. May not live here: what a file means. `podprobes` calls it next. Where the kernel
gives no inotify (its instances and watches are limited per user, and editors use many) files are looked at instead.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtimes.contract.inotify import (
    IN_ATTRIB,
    IN_CLOSE_WRITE,
    IN_CREATE,
    IN_DELETE,
    IN_MOVED_FROM,
    IN_MOVED_TO,
    Inotify,
)

_MASK: Final = IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE

LOOK_EVERY_SECONDS: Final = 0.25
"""Without inotify: late enough to cost nothing, early enough for readiness."""

_log = logging.getLogger(__name__)


class FileWatcher:
    """Calls back when a file of a given name may have come, changed or gone in its folder. One inotify instance."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watches: dict[int, dict[str, Callable[[], None]]] = {}
        self._looked_at: dict[Path, tuple[Callable[[], None], bool]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify()
            self._loop.add_reader(self._inotify.fd, self._read)
        except OSError as error:
            _log.warning("no inotify, files are looked at instead: %s", error.strerror)

    def watch(self, file: Path, on_change: Callable[[], None]) -> Callable[[], None]:
        """Watch `file`, whose folder must exist; one callback a file. Returns what ends the watch."""
        inotify = self._inotify
        if inotify is None:
            return self._look_at(file, on_change)
        try:
            wd = inotify.add(file.parent, _MASK)
        except OSError:
            return self._look_at(file, on_change)
        self._watches.setdefault(wd, {})[file.name] = on_change

        def cancel() -> None:
            files = self._watches.get(wd, {})
            if files.get(file.name) is on_change:
                del files[file.name]
                if not files:
                    self._watches.pop(wd, None)
                    inotify.remove(wd)

        return cancel

    def close(self) -> None:
        """End all watches."""
        self._looked_at.clear()
        if self._alarm is not None:
            self._alarm.cancel()
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()

    def _read(self) -> None:
        for wd, mask, name in self._inotify.events() if self._inotify is not None else ():
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
