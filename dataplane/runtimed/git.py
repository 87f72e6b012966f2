"""Fetches a commit with the `git` program: shallow, bounded in time, without prompts, hooks or a user's configuration.

Here: which URLs and refs are acceptable, the order of git's commands, and that nothing of it leads out of the folder.
Not here: how a command is run (`gitcommand.py`), what a host is shown (`gitauth.py`), what is kept (`gitcache.py`).
Next: `source.py`.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from dataplane.runtimed.failures import SourceError
from dataplane.runtimed.gitauth import GitAuth, host_of
from dataplane.runtimed.gitcache import GitCache
from dataplane.runtimed.gitcommand import Git, GitFailed
from dataplane.runtimed.workdir import remove_tree
from statemachine.reasons import Reason

GIT_TIMEOUT_S: Final = 50.0  # leaves 10 of registration's 60 s for the import
GIT_SCHEMES: Final = frozenset({"https", "ssh", "file"})
FETCHES_MAX: Final = 3  # others may have taken the repository away between a fetch and the checkout
SCAN_YIELD: Final = 512  # directory entries looked at before other work gets a turn
_REF_FORBIDDEN: Final = frozenset("\0\n\t :^~?*[\\")  # git-check-ref-format(1)
_NO_AUTH: Final = GitAuth({})


async def checkout(
    url: str,
    ref: str,
    directory: Path,
    *,
    environ: Mapping[str, str] | None = None,
    auth: GitAuth = _NO_AUTH,
    cache: GitCache | None = None,
    timeout: float = GIT_TIMEOUT_S,
) -> None:
    """Fill the empty `directory` with the files of `ref` (branch, tag or commit; empty: HEAD), without `.git`.

    `environ` is what git inherits (PATH, proxies); None is this process's own. With a `cache` what was fetched before
    is not fetched again. Raises `SourceError`.
    """
    parts = _check(url, ref)
    environment = _environment(os.environ if environ is None else environ, directory.parent)
    git = Git(environment | auth.environment(parts), directory)
    try:
        async with asyncio.timeout(timeout):
            if cache is None:
                await _alone(git, url, ref, directory)
            else:
                await _cached(git, cache, url, ref, directory)
    except TimeoutError as error:
        message = f"fetching {shown(url)} took longer than {timeout:g} s"
        raise SourceError(Reason.SOURCE_FETCH_FAILED, message) from error
    except GitFailed as error:
        raise SourceError(Reason.SOURCE_FETCH_FAILED, _why(error, url, ref, parts, auth)) from error
    await refuse_escapes(directory)


async def _alone(git: Git, url: str, ref: str, directory: Path) -> None:
    await git.run("init", "--quiet")
    await git.run("checkout", "--quiet", "--force", "--detach", await _fetch(git, url, ref))
    await remove_tree(directory / ".git")


async def _cached(git: Git, cache: GitCache, url: str, ref: str, directory: Path) -> None:
    """Fetch what is not there, alone in the cache's repository; check out beside others who do."""
    commit = ref if len(ref) == 40 and _commit_like(ref) else ""
    for _ in range(FETCHES_MAX):
        if commit:
            async with cache.reading(url) as repository:
                if repository is not None and await git.within(repository).has(f"{commit}^{{commit}}"):
                    await _check_out(git.within(repository), commit, directory)
                    return
        async with cache.writing(url) as repository:
            within = git.within(repository)
            commit = await _fetch(within, url, ref)
            await within.run("update-ref", f"refs/kept/{commit}", commit)  # told to the server as held, at the next one
    raise GitFailed(f"the cache lost the commit {FETCHES_MAX} times")


async def _check_out(git: Git, commit: str, directory: Path) -> None:
    """By an index of its own, so that checkouts do not meet in one."""
    index = directory.parent / "index"
    try:
        out = git.into(directory, index)
        await out.run("read-tree", commit)
        await out.run("checkout-index", "--all", "--force", "--quiet")
    finally:
        index.unlink(missing_ok=True)


async def _fetch(git: Git, url: str, ref: str) -> str:
    """One commit without history; a server that gives no bare commits is asked for everything it has. Its id."""
    shallow = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--", url, ref or "HEAD")
    try:
        await git.run(*shallow)
    except GitFailed:
        if not _commit_like(ref):
            raise
        everything = ("+refs/heads/*:refs/source/heads/*", "+refs/tags/*:refs/source/tags/*")
        await git.run("fetch", "--quiet", "--no-recurse-submodules", "--", url, *everything)
        return await git.run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    return await git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}")


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
    if not path.is_symlink():
        return False
    try:
        return not path.resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError):  # a link to itself leads nowhere
        return False


def _check(url: str, ref: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise SourceError(Reason.SOURCE_INVALID, f"git.url is no URL: {error}") from error
    if parts.scheme not in GIT_SCHEMES:
        raise SourceError(Reason.SOURCE_INVALID, f"git.url must be https, ssh or file, not {shown(url)}")
    if parts.scheme != "file" and (not parts.hostname or parts.hostname.startswith("-")):
        raise SourceError(Reason.SOURCE_INVALID, f"git.url names no host: {shown(url)}")
    if (parts.username or "").startswith("-"):
        raise SourceError(Reason.SOURCE_INVALID, f"git.url names no user: {shown(url)}")
    if ref.startswith("-") or ".." in ref or _REF_FORBIDDEN & set(ref):
        raise SourceError(Reason.SOURCE_INVALID, f"git.ref {ref!r} is no branch, tag or commit")
    return parts


def _commit_like(ref: str) -> bool:
    return 7 <= len(ref) <= 64 and all(digit in "0123456789abcdef" for digit in ref.lower())


def _environment(inherited: Mapping[str, str], home: Path) -> dict[str, str]:
    kept = {name: value for name, value in inherited.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_ALLOW_PROTOCOL": ":".join(sorted(GIT_SCHEMES)),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "GIT_CEILING_DIRECTORIES": str(home),
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C.UTF-8",
    }


_HINTS: Final = (
    ("couldn't find remote ref", "{url} has no branch, tag or commit {ref!r}"),
    ("needed a single revision", "{url} has no branch, tag or commit {ref!r}"),
    ("could not resolve host", "the host {host} is not known here"),
    ("connection refused", "nothing listens at {host}"),
    ("couldn't connect to server", "nothing listens at {host}"),
    ("host key verification failed", "{host} is another server than known_hosts of its Secret says"),
    ("ssl certificate problem", "the certificate of {host} is not trusted; put its CA into ca.crt of its Secret"),
    (
        "certificate verification failed",
        "the certificate of {host} is not trusted; put its CA into ca.crt of its Secret",
    ),
    ("repository not found", "{url} is not there, or may not be read with this credential"),
    ("authentication failed", "{host} did not take the credential: {credential}"),
    ("could not read username", "{host} asks for a credential: {credential}"),
    ("could not read password", "{host} asks for a credential: {credential}"),
    ("permission denied (", "{host} did not take the credential: {credential}"),
    ("does not appear to be a git repository", "{url} is no git repository"),
    ("no space left on device", "the disk of the Pod is full"),
)
"""What git says, in lower case, and what it means; the first that fits. Its own words follow."""


def _why(error: GitFailed, url: str, ref: str, parts: SplitResult, auth: GitAuth) -> str:
    said = str(error)
    for needle, meaning in _HINTS:
        if needle in said.lower():
            host = host_of(parts)
            meant = meaning.format(url=shown(url), ref=ref or "HEAD", host=host, credential=auth.explain(host))
            return f"{meant} ({said})"
    return said
