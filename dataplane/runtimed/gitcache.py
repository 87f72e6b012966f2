"""Bare repositories by URL, so that what was fetched once is not fetched again.

Any number of Runs check out of a repository at once; one at a time puts something into it, or takes it away. That holds
in this process (one `aiorwlock.RWLock` a repository) and across processes that share the folder (flock). What failed in
any way is not believed any more: the next one that writes begins from nothing. Next: `git.py`.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from aiorwlock import RWLock

from dataplane.runtimed.workdir import remove_tree

REPOSITORIES_MAX: Final = 32  # of one Pod; the one used longest ago goes first
REPOSITORY_MAX_BYTES: Final = 512 * 1024 * 1024  # shallow packs pile up, one a commit
LOCK_POLL_S: Final = 0.05
_DAMAGED: Final = "kruntimes-damaged"
"""A file in a repository out of which a checkout failed, while others may still be reading in it."""


class GitCache:
    """One folder of repositories. Nothing in it is needed: removing it costs the next fetches their time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, RWLock] = {}

    @asynccontextmanager
    async def reading(self, url: str) -> AsyncIterator[Path | None]:
        """The bare repository for a URL, beside others who read in it; None when there is none, or a damaged one.

        A block that raises condemns it; one that is cancelled does not: it has changed nothing. Raises OSError.
        """
        path = self._path(url)
        async with self._lock(path).reader, _file_lock(path.with_suffix(".lock"), fcntl.LOCK_SH):
            if not _sound(path):
                yield None
                return
            try:
                yield path
            except Exception:
                (path / _DAMAGED).touch()
                raise
            os.utime(path)

    @asynccontextmanager
    async def writing(self, url: str) -> AsyncIterator[Path]:
        """The bare repository for a URL, alone; it is gone if the block raises or is cancelled. Raises OSError."""
        path = self._path(url)
        async with self._lock(path).writer, _file_lock(path.with_suffix(".lock"), fcntl.LOCK_EX):
            try:
                if not _sound(path) or _size(path) > REPOSITORY_MAX_BYTES:
                    await remove_tree(path)
                    await asyncio.to_thread(_init, path)
                yield path
            except BaseException:
                await asyncio.shield(remove_tree(path))
                raise
            os.utime(path)
        await self._shrink()

    def _path(self, url: str) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.git"

    def _lock(self, path: Path) -> RWLock:
        return self._locks.setdefault(path.stem, RWLock())

    async def _shrink(self) -> None:
        found = sorted(self._folder.glob("*.git"), key=lambda path: path.stat().st_mtime)
        for path in found[: max(0, len(found) - REPOSITORIES_MAX)]:
            lock = self._lock(path)
            if not (lock.reader.locked or lock.writer.locked):
                async with lock.writer, _file_lock(path.with_suffix(".lock"), fcntl.LOCK_EX):
                    await remove_tree(path)


@asynccontextmanager
async def _file_lock(path: Path, kind: int) -> AsyncIterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


def _sound(path: Path) -> bool:
    return (path / "HEAD").is_file() and not (path / _DAMAGED).exists()


def _init(path: Path) -> None:
    """As `git init --bare`, without what a template or a configuration of the machine would add."""
    for folder in ("objects", "refs"):
        (path / folder).mkdir(mode=0o700, parents=True)
    (path / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
    (path / "HEAD").write_text("ref: refs/heads/none\n")


def _size(path: Path) -> int:
    packs = path / "objects" / "pack"
    return sum(pack.stat().st_size for pack in packs.glob("*.pack"))
