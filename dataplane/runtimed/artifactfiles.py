"""What a task or a call has left in its artifacts folder, opened so that nothing else can be read in its place.

User code chose every name in that folder. Links are not followed, only regular files count, and all of them are opened
before the first is read. Next: `artifacts.py` has them stored.
"""

import os
import stat
from pathlib import Path

from msgspec import Struct

from runtimes.contract.limits import (
    ARTIFACT_MAX_BYTES,
    ARTIFACT_NAME_MAX_BYTES,
    ARTIFACT_REFS_MAX_COUNT,
    ARTIFACTS_TOTAL_MAX_BYTES,
)


class ArtifactsRefused(Exception):
    """What was left there breaks a rule; the message names the file and the rule."""


class LeftFile(Struct, frozen=True):
    """One open file. Its owner closes `fd`."""

    name: str
    fd: int
    size: int


def open_files(folder: Path) -> list[LeftFile]:
    """Every file below the folder, by name, opened for reading. Raises ArtifactsRefused or OSError; none is open then.

    The name is the path below the folder.
    """
    found: list[LeftFile] = []
    try:
        for place, folders, names, fd in os.fwalk(folder, follow_symlinks=False):
            inside = os.path.relpath(place, folder)
            for name in folders:
                if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    raise ArtifactsRefused(f"artifact {_shown(name)} is a link: only regular files are stored")
            for name in names:
                found.append(_open(name if inside == "." else f"{inside}/{name}", name, fd))
                _check(found)
    except BaseException:
        close_files(found)
        raise
    return sorted(found, key=lambda left: left.name)


def close_files(files: list[LeftFile]) -> None:
    """Close them all."""
    for left in files:
        os.close(left.fd)


def _open(path: str, name: str, folder_fd: int) -> LeftFile:
    try:
        size = len(path.encode())
    except UnicodeEncodeError as error:
        raise ArtifactsRefused(f"artifact {_shown(path)}: its name is not UTF-8") from error
    if size > ARTIFACT_NAME_MAX_BYTES:
        raise ArtifactsRefused(f"artifact {_shown(path)}: its name has {size} bytes, at most {ARTIFACT_NAME_MAX_BYTES}")
    if not path.isprintable():
        raise ArtifactsRefused(f"artifact {_shown(path)}: its name has control characters")
    before = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    if not stat.S_ISREG(before.st_mode):  # looked at first: opening a device or a pipe does something
        raise ArtifactsRefused(f"artifact {_shown(path)} is no regular file")
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    opened = os.fstat(fd)
    if not stat.S_ISREG(opened.st_mode):
        os.close(fd)
        raise ArtifactsRefused(f"artifact {_shown(path)} is no regular file")
    return LeftFile(path, fd, opened.st_size)


def _check(found: list[LeftFile]) -> None:
    last = found[-1]
    if len(found) > ARTIFACT_REFS_MAX_COUNT:
        raise ArtifactsRefused(f"more than {ARTIFACT_REFS_MAX_COUNT} artifacts")
    if last.size > ARTIFACT_MAX_BYTES:
        raise ArtifactsRefused(f"artifact {_shown(last.name)} has {last.size} bytes, at most {ARTIFACT_MAX_BYTES}")
    total = sum(left.size for left in found)
    if total > ARTIFACTS_TOTAL_MAX_BYTES:
        raise ArtifactsRefused(f"the artifacts have {total} bytes together, at most {ARTIFACTS_TOTAL_MAX_BYTES}")


def _shown(name: str) -> str:
    return repr(name[:128])
