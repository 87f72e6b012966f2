"""How a folder goes that user code could write to, whatever it has made of it, and while it still does.

Everything is done in folders that are open, by names of one part: what is replaced by a link meanwhile leads nowhere.
Nothing here recurses or holds more than four of them: what lies deeper is moved to the top first. Modes are no
obstacle. Next: the Runtime Server removes its private folders with it, runtimed an epoch's.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def removal(folder: Path) -> Iterator[None]:
    """Removes `folder` and all below it while it is iterated, an entry a step; absent is success. Never raises.

    Its parent must be out of reach of user code. What cannot be removed (another user's, a read-only disk) stays: look
    whether the folder is still there.
    """
    try:
        parent = os.open(folder.parent, _FOLDER)
    except OSError:
        return
    try:
        top = _opened(folder.name, parent)
        if top >= 0:
            try:
                yield from _emptying(top)
            finally:
                os.close(top)
        _remove(folder.name, parent)
    finally:
        os.close(parent)


def _emptying(top: int) -> Iterator[None]:
    waiting, moved, mark = [], 0, secrets.token_hex(4)  # Nobody has made files of these names.
    for name, is_folder in _entries(top):
        yield
        if is_folder:
            waiting.append(name)
        else:
            _remove(name, top)
    while waiting:
        current = waiting.pop()
        folder = _opened(current, top)
        if folder >= 0:
            try:
                for name, is_folder in _entries(folder):
                    yield
                    if not is_folder:
                        _remove(name, folder)
                        continue
                    moved += 1
                    if _moved(name, folder, f"{mark}{moved}", top):
                        waiting.append(f"{mark}{moved}")
            finally:
                os.close(folder)
        _remove(current, top)


def _opened(name: str, within: int) -> int:
    """The folder of this name, with all rights of its owner; -1 for anything else, a link above all."""
    try:
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
    except OSError:
        return -1
    try:
        if os.fstat(found).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)  # noqa: PTH101 - this very folder, whatever its name is now
        return os.open(".", _FOLDER, dir_fd=found)
    except OSError:
        return -1
    finally:
        os.close(found)


def _entries(folder: int) -> list[tuple[str, bool]]:
    """Names, and whether each is a folder."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []


def _moved(name: str, folder: int, place: str, top: int) -> bool:
    opened = _opened(name, folder)  # Its `..` changes, which takes the right to write to it.
    if opened >= 0:
        os.close(opened)
    try:
        os.rename(name, place, src_dir_fd=folder, dst_dir_fd=top)
    except OSError:
        return False
    return True


def _remove(name: str, within: int) -> None:
    """A file, a link or an empty folder."""
    try:
        os.unlink(name, dir_fd=within)
    except IsADirectoryError:
        try:
            os.rmdir(name, dir_fd=within)
        except OSError:
            pass
    except OSError:
        pass
