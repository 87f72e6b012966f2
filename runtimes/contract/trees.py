"""How a folder goes that user code could write to, whatever it has made of it.

Nothing here follows a link, recurses, or makes a path longer than a few names: what lies deeper is moved to the top
first. Modes are no obstacle. Next: the Runtime Server removes its private folders with it, runtimed an epoch's.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path


def removal(folder: Path) -> Iterator[None]:
    """Removes `folder` and all below it while it is iterated, an entry a step; absent is success. Never raises.

    What cannot be removed (another user's, a read-only disk) stays: look whether the folder is still there.
    """
    if folder.is_symlink():
        _unlink(str(folder))
        return
    waiting, moved, mark = [str(folder)], 0, secrets.token_hex(4)  # Nobody has made files of these names.
    while waiting:
        current = waiting.pop()
        for entry in _entries(current):
            yield
            if not entry.is_dir(follow_symlinks=False):
                _unlink(entry.path)
            elif current == str(folder):
                waiting.append(entry.path)
            else:
                moved += 1
                place = f"{folder}/{mark}{moved}"
                if _moved(entry.path, place):
                    waiting.append(place)
        if current != str(folder):
            _rmdir(current)
    _rmdir(str(folder))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        os.chmod(folder, stat.S_IRWXU)  # noqa: PTH101 - a Path for each entry of a large tree is slow
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _moved(folder: str, place: str) -> bool:
    try:
        os.chmod(folder, stat.S_IRWXU)  # noqa: PTH101 - its `..` changes, which takes the right to write to it
        os.rename(folder, place)  # noqa: PTH104
    except OSError:
        return False
    return True


def _unlink(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:
        pass


def _rmdir(path: str) -> None:
    try:
        os.rmdir(path)  # noqa: PTH106
    except OSError:
        pass
