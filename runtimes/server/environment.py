"""The surroundings of a Run's processes: environment (R8), private folders, resource limits, checked paths."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from runtimes.contract.limits import DIRECTORY_MAX_BYTES
from runtimes.contract.messages import INVALID_ARGUMENT, Epoch, ErrorHead
from runtimes.contract.mux import CallError
from runtimes.contract.trees import removal

logger = logging.getLogger(__name__)

TMPDIR_MAX_BYTES: Final = 64
"""A path of a unix socket has at most 107 bytes; multiprocessing adds 32 to that of its temporary folder."""

LIMITS: Final[dict[str, tuple[int, int]]] = {
    "RLIMIT_CORE": (0, 0),  # A core file holds requests and environment.
    "RLIMIT_NOFILE": (4096, 16384),  # Enough for a client library, too few to starve the Pod.
}
"""Soft and hard limits of each worker and task; never above what this process has."""


class Folders(msgspec.Struct, frozen=True):
    """The folders of one epoch: the source as runtimed prepared it, and what this server makes beside it."""

    source: Path
    home: Path
    tmp: Path
    calls: Path
    """What passes by files: the outputs of a task, requests and answers of Bash calls (a folder for each worker)."""
    tmpdir: Path
    """What $TMPDIR says: `tmp`, or a link to it that is short enough for sockets."""

    @classmethod
    def of(cls, directory: str, work: Path, links: Path | None = None) -> Folders:
        """Check that `directory` is an existing folder below the work folder. Raises CallError InvalidArgument.

        `links`: a folder with a short path, for links to temporary folders whose own is too long.
        """
        source = Path(directory)
        if len(os.fsencode(directory)) > DIRECTORY_MAX_BYTES or not source.is_absolute():
            raise _invalid(f"directory {directory[:256]!r} is not an absolute path of at most {DIRECTORY_MAX_BYTES} B")
        resolved = source.resolve()
        if not resolved.is_relative_to(work.resolve()) or not resolved.is_dir():
            raise _invalid(f"directory {directory} is no folder below {work}")
        beside = resolved.parent
        tmp = tmpdir = beside / "tmp"
        if links is not None and len(os.fsencode(tmp)) > TMPDIR_MAX_BYTES:
            tmpdir = links / secrets.token_hex(4)
        return cls(source=resolved, home=beside / "home", tmp=tmp, calls=beside / "calls", tmpdir=tmpdir)

    def create(self) -> None:
        """Make them afresh: whatever stands in the place of one goes first, and a link is never followed.

        Raises CallError.
        """
        for folder in self.private:
            if os.path.lexists(folder):
                remove_tree(folder)
        try:
            for folder in self.private:
                folder.mkdir(mode=0o700)
            if self.tmpdir != self.tmp:
                self.tmpdir.symlink_to(self.tmp)
        except OSError as error:
            message = f"the Run's folders cannot be made: {error.strerror}"
            raise CallError(ErrorHead(reason="RuntimeServerError", message=message)) from error

    @property
    def private(self) -> tuple[Path, Path, Path]:
        """Those that this server makes, and removes at release."""
        return self.home, self.tmp, self.calls

    @property
    def own(self) -> tuple[str, ...]:
        """Those in which the user's code of this epoch, and no other's, does what it likes."""
        return tuple(str(folder) for folder in (self.source, *self.private))


def user_environment(epoch: Epoch, folders: Folders, env: Mapping[str, str], **more: str) -> dict[str, str]:
    """R8: PATH, HOME, TMPDIR, LANG, KRUNTIME_*, then the Run's own, which may set any of them."""
    return {
        "PATH": os.environ.get("PATH") or os.defpath,
        "HOME": str(folders.home),
        "TMPDIR": str(folders.tmpdir),
        "LANG": "C.UTF-8",
        "KRUNTIME_RUN_UID": epoch.run_uid,
        "KRUNTIME_ATTEMPT": str(epoch.attempt),
        "KRUNTIME_POD_UID": epoch.pod_uid,
        **more,
        **env,
    }


def any_job(epoch: Epoch, folders: Folders, env: Mapping[str, str], **more: str) -> dict[str, object]:
    """What the zygote is told of every process, whatever it runs; `more` are variables of its environment."""
    return {
        "root": str(folders.source),
        "env": user_environment(epoch, folders, env, **more),
        "limits": LIMITS,
        "private": folders.own,
        "readable": (),
    }


def find_script(folders: Folders, relative: str) -> Path:
    """The file in the source that `relative` names. Raises CallError SourceInvalid, naming the path looked for."""
    path = folders.source / relative
    try:
        resolved = path.resolve()
        found = resolved.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise _source_invalid(f"{relative[:256]!r} is no path: {error}") from error
    if not found:
        raise _source_invalid(f"no file {relative} in the source")
    if not resolved.is_relative_to(folders.source):
        raise _source_invalid(f"{relative} leads out of the source")
    return path


def remove_folders(folders: Folders) -> None:
    """Remove the private folders with whatever is in them. The source is runtimed's. Never raises."""
    for folder in folders.private:
        remove_tree(folder)
    if folders.tmpdir != folders.tmp:
        remove_tree(folders.tmpdir)  # The link.


def links_folder(short: Path, work: Path) -> Path:
    """The folder for links of the server of this work folder, empty. Raises OSError."""
    links = short / hashlib.sha256(os.fsencode(work)).hexdigest()[:6]
    remove_tree(links)
    links.mkdir(mode=0o700)
    return links.resolve()


def remove_tree(folder: Path) -> None:
    """Remove a folder with whatever user code has made of it. Never raises."""
    for _ in removal(folder):
        pass
    if os.path.lexists(folder):
        logger.warning("a folder cannot be removed", extra={"folder": str(folder)})


def read_regular_file(path: str | Path, limit_bytes: int, *, folder: int | None = None) -> bytes:
    """At most `limit_bytes` of a file that user code may have replaced by anything: never follows a link, never waits.
    `folder`: one that is open, in which `path` is a name.

    Raises OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(limit_bytes)


def make_folder(path: Path) -> int:
    """Make a folder that user code may be able to replace, and open it. Raises OSError."""
    path.mkdir(mode=0o700)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def remove_leftovers(work: Path) -> None:
    """Remove what an earlier server left below the work folder: private folders of epochs. Source and logs stay."""
    for attempt in work.glob("runs/*/*"):
        if attempt.is_dir() and not attempt.is_symlink():
            for name in ("home", "tmp", "calls"):
                remove_tree(attempt / name)


def boottime_us() -> int:
    """CLOCK_BOOTTIME in microseconds: comparable between the processes of a machine, and counting suspended time."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _invalid(message: str) -> CallError:
    return CallError(ErrorHead(reason=INVALID_ARGUMENT, message=message))


def _source_invalid(message: str) -> CallError:
    return CallError(ErrorHead(reason="SourceInvalid", message=message))
