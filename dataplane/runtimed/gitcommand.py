"""One `git` command as a process of its own group, and what it said when it failed. Next: `git.py`."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

GIT_MESSAGE_MAX_BYTES: Final = 600  # the end of git's stderr: status.message holds 1,024
_OPTIONS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "safe.directory=*")


class GitFailed(Exception):
    """git ended with another status than 0, or could not be run; the message is its own."""


class Git:
    """Runs git in `folder` with exactly `environment`."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._environment = dict(environment)
        self._folder = folder

    def within(self, repository: Path) -> "Git":
        """The same on a bare repository."""
        return Git(self._environment | {"GIT_DIR": str(repository)}, repository)

    def into(self, directory: Path, index: Path) -> "Git":
        """The same, writing files into `directory` by an index of its own."""
        more = {"GIT_WORK_TREE": str(directory), "GIT_INDEX_FILE": str(index)}
        return Git(self._environment | more, directory)

    async def has(self, name: str) -> bool:
        """Whether the repository holds that object."""
        try:
            await self.run("cat-file", "-e", name)
        except GitFailed:
            return False
        return True

    async def run(self, *arguments: str) -> str:
        """Its stdout, stripped. The process group is gone when this returns or is cancelled. Raises GitFailed."""
        try:
            process = await asyncio.create_subprocess_exec(
                "git",
                *_OPTIONS,
                *arguments,
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise GitFailed(f"git cannot be run: {error.strerror}") from error
        try:
            output, complaint = await process.communicate()
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            await process.wait()
        if process.returncode != 0:
            text = complaint[-GIT_MESSAGE_MAX_BYTES:].decode(errors="replace").strip()
            raise GitFailed(f"git {arguments[0]}: {text or f'ended with status {process.returncode}'}")
        return output.decode(errors="replace").strip()
