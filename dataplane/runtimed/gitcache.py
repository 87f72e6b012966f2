"""Bare repositories by URL, so that what was fetched once is not fetched again.

A repository is used by one fetch at a time, in this process and across processes that share the folder (flock). One
that failed in any way, or has grown too large, is removed: the next fetch begins from nothing. Next: `git.py`.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from dataplane.runtimed.workdir import remove_tree

REPOSITORIES_MAX: Final = 32  # of one Pod; the one used longest ago goes first
REPOSITORY_MAX_BYTES: Final = 512 * 1024 * 1024  # shallow packs pile up, one a commit
LOCK_POLL_S: Final = 0.05


class GitCache:
    """One folder of repositories. Nothing in it is needed: removing it costs the next fetches their time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def repository(self, url: str) -> AsyncIterator[Path]:
        """The bare repository for a URL, locked; it is gone if the block raises or is cancelled. Raises OSError."""
        name = hashlib.sha256(url.encode()).hexdigest()[:32]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with self._locks.setdefault(name, asyncio.Lock()), _file_lock(self._folder / f"{name}.lock"):
            path = self._folder / f"{name}.git"
            try:
                if not (path / "HEAD").is_file():
                    await remove_tree(path)
                    await asyncio.to_thread(_init, path)
                yield path
            except BaseException:
                await asyncio.shield(remove_tree(path))
                raise
            os.utime(path)
            if _size(path) > REPOSITORY_MAX_BYTES:
                await remove_tree(path)
        await self._shrink()

    async def _shrink(self) -> None:
        found = sorted(self._folder.glob("*.git"), key=lambda path: path.stat().st_mtime)
        for path in found[: max(0, len(found) - REPOSITORIES_MAX)]:
            lock = self._locks.setdefault(path.stem, asyncio.Lock())
            if not lock.locked():
                async with lock, _file_lock(path.with_suffix(".lock")):
                    await remove_tree(path)


@asynccontextmanager
async def _file_lock(path: Path) -> AsyncIterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


def _init(path: Path) -> None:
    """As `git init --bare`, without what a template or a configuration of the machine would add."""
    for folder in ("objects", "refs"):
        (path / folder).mkdir(mode=0o700, parents=True)
    (path / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
    (path / "HEAD").write_text("ref: refs/heads/none\n")


def _size(path: Path) -> int:
    packs = path / "objects" / "pack"
    return sum(pack.stat().st_size for pack in packs.glob("*.pack"))
