"""The folder behind $KRUNTIME_ARTIFACTS_DIR of one process, and how what is left there is handed to runtimed.

Here: making it, knowing for the price of one fstat whether anything was put there, moving it out of the process's
reach. Not here: what may be in it and where it is stored: runtimed looks at that. `language` has one for each worker,
`task` one for the task.
"""

from __future__ import annotations

import itertools
import os

from runtimes.contract.limits import ARTIFACTS_FOLDER
from runtimes.server.environment import Folders, remove_tree

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
        self.path.mkdir(mode=0o700)
        os.utime(self.path, ns=(0, 0))
        self._close()
        self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

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
        if not self.path.is_dir() or self.path.is_symlink():  # The process has removed or replaced it.
            self.path.unlink(missing_ok=True)
            self.create()
            return ""
        with os.scandir(self.path) as entries:
            if next(entries, None) is None:
                os.utime(self.path, ns=(0, 0))
                return ""
        self._taken += 1
        name = f"{self._number}-{self._taken}"
        self._kept.mkdir(mode=0o700, exist_ok=True)
        self.path.rename(self._kept / name)
        self.create()
        return name

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
