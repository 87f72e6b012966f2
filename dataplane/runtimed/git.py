"""Fetches a commit with the `git` program: shallow, bounded in time, without prompts, hooks or a user's configuration.

Here: which URLs and refs are acceptable, how git is run, and its errors in our words. Not here: caching between Runs.
Next: `source.py`.
"""

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dataplane.runtimed.failures import SourceError
from dataplane.runtimed.workdir import remove_tree
from statemachine.reasons import Reason

GIT_TIMEOUT_S: Final = 50.0  # leaves 10 of registration's 60 s for the import
GIT_MESSAGE_MAX_BYTES: Final = 700  # the end of git's stderr: status.message holds 1,024
GIT_SCHEMES: Final = frozenset({"https", "ssh", "file"})
SCAN_YIELD: Final = 512  # directory entries looked at before other work gets a turn
_REF_FORBIDDEN: Final = frozenset("\0\n\t :^~?*[\\")  # git-check-ref-format(1)


async def checkout(
    url: str,
    ref: str,
    directory: Path,
    *,
    environ: Mapping[str, str] | None = None,
    timeout: float = GIT_TIMEOUT_S,
) -> None:
    """Fill the empty `directory` with the files of `ref` (branch, tag or commit; empty: HEAD), without `.git`.

    `environ` is what git inherits (PATH, proxies, SSH agent); None is this process's own. Raises `SourceError`.
    """
    _check(url, ref)
    environment = _environment(os.environ if environ is None else environ, directory.parent)
    try:
        async with asyncio.timeout(timeout):
            await _git(directory, environment, "init", "--quiet")
            await _fetch(url, ref, directory, environment)
            await _git(directory, environment, "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
    except TimeoutError as error:
        message = f"fetching {shown(url)} took longer than {timeout:g} s"
        raise SourceError(Reason.SOURCE_FETCH_FAILED, message) from error
    await remove_tree(directory / ".git")
    await refuse_escapes(directory)


def shown(url: str) -> str:
    """The URL without a password or token that somebody put into it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


async def refuse_escapes(directory: Path) -> None:
    """Raise SourceInvalid if a symbolic link leads out of `directory`, wherever it points."""
    for seen, path in enumerate(_entries(directory), 1):
        if seen % SCAN_YIELD == 0:
            await asyncio.sleep(0)
        if _leads_out(path, directory):
            link = path.relative_to(directory)
            raise SourceError(Reason.SOURCE_INVALID, f"the link {link} leads out of the repository")


def _entries(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory):
        for name in (*folders, *files):
            yield Path(folder, name)


def _leads_out(path: Path, directory: Path) -> bool:
    return path.is_symlink() and not path.resolve().is_relative_to(directory.resolve())


def _check(url: str, ref: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise SourceError(Reason.SOURCE_INVALID, f"git.url is no URL: {error}") from error
    if parts.scheme not in GIT_SCHEMES:
        raise SourceError(Reason.SOURCE_INVALID, f"git.url must be https, ssh or file, not {shown(url)}")
    if parts.scheme != "file" and (not parts.hostname or parts.hostname.startswith("-")):
        raise SourceError(Reason.SOURCE_INVALID, f"git.url names no host: {shown(url)}")
    if ref.startswith("-") or ".." in ref or _REF_FORBIDDEN & set(ref):
        raise SourceError(Reason.SOURCE_INVALID, f"git.ref {ref!r} is no branch, tag or commit")


async def _fetch(url: str, ref: str, directory: Path, environment: Mapping[str, str]) -> None:
    """One commit without history; a server that gives no bare commits is asked for everything it has."""
    shallow = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, ref or "HEAD")
    try:
        await _git(directory, environment, *shallow)
    except SourceError:
        if not _commit_like(ref):
            raise
        everything = ("+refs/heads/*:refs/source/heads/*", "+refs/tags/*:refs/source/tags/*")
        await _git(directory, environment, "fetch", "--quiet", "--no-recurse-submodules", "--", url, *everything)
        found = await _git(directory, environment, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", url=url)
        await _git(directory, environment, "update-ref", "--no-deref", "FETCH_HEAD", found)


def _commit_like(ref: str) -> bool:
    return 7 <= len(ref) <= 64 and all(digit in "0123456789abcdef" for digit in ref.lower())


def _environment(inherited: Mapping[str, str], home: Path) -> dict[str, str]:
    kept = {name: value for name, value in inherited.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_ALLOW_PROTOCOL": ":".join(sorted(GIT_SCHEMES)),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oStrictHostKeyChecking=accept-new -oConnectTimeout=10",
        "GIT_CEILING_DIRECTORIES": str(home),
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C.UTF-8",
    }


async def _git(directory: Path, environment: Mapping[str, str], *arguments: str, url: str = "") -> str:
    """Run git in its own process group, which is gone when this returns or is cancelled; its stdout, stripped."""
    options = ("-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0", "-c", "safe.directory=*")
    try:
        process = await asyncio.create_subprocess_exec(
            "git",
            *options,
            *arguments,
            cwd=directory,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise SourceError(Reason.SOURCE_FETCH_FAILED, f"git cannot be run: {error.strerror}") from error
    try:
        output, complaint = await process.communicate()
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        await process.wait()
    if process.returncode != 0:
        raise SourceError(Reason.SOURCE_FETCH_FAILED, _complaint(arguments[0], complaint, process.returncode))
    return output.decode(errors="replace").strip()


def _complaint(verb: str, stderr: bytes, status: int | None) -> str:
    text = stderr[-GIT_MESSAGE_MAX_BYTES:].decode(errors="replace").strip()
    return f"git {verb}: {text}" if text else f"git {verb} ended with status {status}"
