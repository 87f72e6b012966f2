"""The folders of this Pod's Runs: where they are, and how they go.

`<work>/runs/<run UID>/<attempt>/src` holds the source; the Runtime Server makes `home` and `tmp` beside it. Logs are
`<work>/logs/<run UID>.ndjson`. Removal is cooperative: a large tree never stops the loop. Next: `worker.py`, `main.py`.
"""

import asyncio
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from runtimes.contract.limits import ARTIFACTS_FOLDER
from runtimes.contract.trees import removal

REMOVE_YIELD: Final = 256  # entries removed before other work gets a turn: some 5 ms of unlink(2)

_log = logging.getLogger(__name__)


class WorkDir:
    """The writable volume of the Pod."""

    def __init__(self, root: Path) -> None:
        self._runs = root / "runs"
        self._logs = root / "logs"

    def source(self, run_uid: str, attempt: int) -> Path:
        """The source root of one epoch, which is the working directory of its code."""
        return self._runs / run_uid / str(attempt) / "src"

    def artifacts(self, run_uid: str, attempt: int, name: str) -> Path | None:
        """A folder that the Runtime Server has handed over with what a task or call left; None for what is no name."""
        if not name or len(name) > 64 or not all(part.isdigit() for part in name.split("-")):
            return None
        return self._runs / run_uid / str(attempt) / ARTIFACTS_FOLDER / name

    def log(self, run_uid: str) -> Path:
        """Where the Runtime Server writes what the code prints."""
        return self._logs / f"{run_uid}.ndjson"

    async def release(self, run_uid: str, attempt: int) -> None:
        """Remove what an epoch left, and the Run's folder with its last epoch."""
        await remove_tree(self._runs / run_uid / str(attempt))
        try:
            (self._runs / run_uid).rmdir()
        except OSError:  # another epoch's folder is there, or nothing was ever made
            pass

    def forget_log(self, run_uid: str) -> None:
        """Remove the log of a Run whose object is gone, with the older part that rotation left."""
        for path in _entries(self._logs):
            if path.name.partition(".")[0] == run_uid:
                _unlink(path)

    async def sweep(self, *, epochs: Collection[tuple[str, int]], runs: Collection[str]) -> None:
        """Remove leftovers of earlier lives: folders of epochs that are not in `epochs`, logs of Runs not in `runs`."""
        for path in _entries(self._logs):
            if path.name.partition(".")[0] not in runs:
                _unlink(path)
        # Looked at before the first await: what is claimed while this removes is no leftover.
        left = [(folder, _leftovers(folder, epochs)) for folder in _entries(self._runs)]
        for folder, attempts in left:
            for attempt in attempts:
                await remove_tree(attempt)
            try:
                folder.rmdir()
            except OSError:  # holds a live epoch
                pass


def _leftovers(folder: Path, epochs: Collection[tuple[str, int]]) -> list[Path]:
    return [
        attempt
        for attempt in _entries(folder)
        if not (attempt.name.isdigit() and (folder.name, int(attempt.name)) in epochs)
    ]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


async def remove_tree(path: Path) -> None:
    """Remove a folder and all below it; absent is success. Modes that user code left behind are no obstacle.

    What cannot be removed (another user's, a read-only disk) is left for the next sweep: it never holds a Run.
    """
    for count, _ in enumerate(removal(path), 1):
        if count % REMOVE_YIELD == 0:
            await asyncio.sleep(0)
    if os.path.lexists(path):  # noqa: ASYNC240 - one lstat
        _log.warning("%s stays: it cannot be removed", path)


def _unlink(path: str | Path) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 — a Path for each entry of a large tree is slow
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("%s stays: %s", path, error.strerror)
