"""The folder behind $KRUNTIME_ARTIFACTS_DIR of one process, and how what is left there is handed to runtimed.

Here: making it, knowing for the price of one fstat whether anything was put there, moving it out of the process's
reach. Not here: what may be in it and where it is stored: runtimed looks at that. `language` has one for each worker,
`task` one for the task.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from runtimes.contract.limits import ARTIFACTS_FOLDER
from runtimes.server.environment import Folders, make_folder, remove_tree

_numbers = itertools.count(1)


class ArtifactsFolder:
    """One process's folder. Its time of change is set to 0, the epoch: whatever is made in it shows at once, however
    coarse the file system's clock is. It is there from `create` to `remove`."""

    def __init__(self, folders: Folders) -> None:
        self._number = next(_numbers)
        self._kept = folders.source.parent / ARTIFACTS_FOLDER
        self.path = folders.calls / f"artifacts.{self._number}"
        self._fd = -1
        self._taken = 0

    def create(self) -> None:
        """Raises OSError."""
        fd = make_folder(self.path)
        os.utime(fd, ns=(0, 0))
        self._close()
        self._fd = fd

    @property
    def touched(self) -> bool:
        """Whether something was made in it, or removed, since it was made, or it was itself."""
        if self._fd < 0:
            return False
        found = os.fstat(self._fd)
        return found.st_mtime_ns != 0 or not found.st_nlink

    def take(self) -> str:
        """Move what is in it to `artifacts/<name>` beside the source, and begin anew: the name; '' for nothing.

        Raises OSError.
        """
        if self._is_there():
            with os.scandir(self._fd) as entries:
                if next(entries, None) is None:
                    os.utime(self._fd, ns=(0, 0))
                    return ""
        name = ""
        if os.path.lexists(self.path):  # Else the process has removed it.
            self._taken += 1
            name = f"{self._number}-{self._taken}"
            self._kept.mkdir(mode=0o700, exist_ok=True)
            self.path.rename(self._kept / name)
            if not _holds_something(self._kept / name):
                self.discard(name)
                name = ""
        self.create()
        return name

    def _is_there(self) -> bool:
        """Whether it is this very folder that still has its path."""
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(self._fd))
        except OSError:
            return False

    def discard(self, name: str) -> None:
        """Remove what `take` has moved. Never raises; may take long."""
        if name:
            remove_tree(self._kept / name)

    def remove(self) -> None:
        """The process is gone. Never raises."""
        self._close()
        remove_tree(self.path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _holds_something(folder: Path) -> bool:
    """Asked when it is out of the process's reach, which may have made anything of it, a link above all."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    try:
        return next(folder.iterdir(), None) is not None
    except OSError:
        return True  # Who stores it says why it cannot be read.
