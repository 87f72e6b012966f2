"""Puts the source of a Run on disk: inline text, or a shallow checkout by the `git` program.

Here: where a file may land, and what each failure is called. Not here: how git is run (`git.py`), what the Runtime
Server makes of the files. Next: `registration.py` calls `materialise`; `workdir.py` removes what it made.
"""

from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct

from controlplane.kube.types import RunObject
from dataplane.runtimed import git
from dataplane.runtimed.failures import SourceError
from statemachine.reasons import Reason


class Inline(Struct, frozen=True):
    """One file of text. `path` is relative to the source root."""

    path: str
    text: str


class Git(Struct, frozen=True):
    """A repository at a branch, tag or commit; no ref is the remote's HEAD."""

    url: str
    ref: str = ""


class Absent(Struct, frozen=True):
    """No source: an empty folder. A task may live on what the Runtime's image holds."""


Source = Inline | Git | Absent


def of_run(run: RunObject, default_script: str) -> Source:
    """What the spec asks for. `default_script` is the Runtime Server's name for a task without an entrypoint."""
    source = run.spec.source
    if source is None:
        return Absent()
    if source.git is not None:
        return Git(source.git.url, source.git.ref or "")
    if source.inline is None:
        return Absent()
    return Inline(source.inline_path or entrypoint(run, default_script), source.inline)


def entrypoint(run: RunObject, default_script: str) -> str:
    """The script of a task, relative to the source root."""
    task = run.spec.mode.task
    return str(PurePosixPath(task.entrypoint)) if task is not None and task.entrypoint else default_script


def target(root: Path, relative: str) -> Path:
    """Where a relative path lands below `root`; raises SourceInvalid for one that would leave it."""
    segments = relative.split("/")
    if "\0" in relative or any(segment in ("", ".", "..") for segment in segments):
        raise SourceError(Reason.SOURCE_INVALID, f"the path {relative!r} does not stay inside the source folder")
    return root.joinpath(*segments)


async def materialise(source: Source, directory: Path, **git_options: Any) -> None:
    """Make `directory` hold the source. Raises `SourceError`; what is left then is removed with the Run's folder."""
    _make(directory)
    match source:
        case Absent():
            return
        case Inline(path=path, text=text):
            _write(target(directory, path), text)
        case Git(url=url, ref=ref):
            await git.checkout(url, ref, directory, **git_options)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(Reason.SOURCE_FETCH_FAILED, f"{directory.name} cannot be made: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise SourceError(Reason.SOURCE_FETCH_FAILED, f"the source cannot be written: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise SourceError(Reason.SOURCE_INVALID, "the source is no text that UTF-8 can hold") from error
