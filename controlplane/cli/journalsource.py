"""Where `krt replay` and `krt diagram` read a journal: a file, a folder of segments, a data directory, or the API.

Lives here: finding and decoding, one segment in memory at a time. May not live here: folding and telling (`journals`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from controlplane.cli.failure import NOT_FOUND, OTHER, Failure
from controlplane.cli.options import run_name
from controlplane.cli.plain import LOGS_API, runs_path
from controlplane.cli.session import Session
from controlplane.kube.errors import NotFound
from statemachine.events import Observed
from statemachine.journal import MAGIC, Damaged, Entry, decode
from statemachine.run import RunUID

SUFFIX: Final = ".krj"
_JOURNALS: Final = "journal"  # in a data directory


@dataclass
class Journal:
    """The segments of one writer, oldest first. `whole`: nothing of other Runs was left out of it. `reading` names the
    segment that was read last: offsets count from its start."""

    writer: str
    segments: list[tuple[str, Callable[[], bytes]]]
    whole: bool
    run: RunUID | None = None
    reading: str = field(default="", init=False)

    def entries(self) -> Iterator[Entry]:
        """Every entry in order. Failure for damage, naming segment, record and offset."""
        for number, (name, read) in enumerate(self.segments):
            self.reading = name
            try:
                yield from decode(read(), last=number == len(self.segments) - 1)
            except Damaged as damage:
                where = f"{name}: " if name else ""
                raise Failure("JournalDamaged", f"{where}{damage}", OTHER) from damage


def looks_like_a_journal(what: str) -> bool:
    """Whether an argument means files: it has a slash or the suffix, or is a folder of segments or a segment."""
    path = Path(what)
    if what.endswith(SUFFIX) or what in (".", "..") or what.startswith(("/", "./", "../", "~")):
        return True
    try:
        if path.is_dir():
            return bool(_writers(path))
        with path.open("rb") as file:
            return "/" in what or file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def from_files(what: str, run: str | None) -> list[Journal]:
    """The journals below a path, one a writer; with `run`, a name or UID, only that Run's records count."""
    path = Path(what).expanduser()
    if path.is_dir():
        folders = _writers(path)
        if not folders:
            raise Failure("NotFound", f"{path} holds no journal segments (*{SUFFIX})", NOT_FOUND)
    journals = (
        [Journal(folder.name, [_segment(file) for file in files], True) for folder, files in folders.items()]
        if path.is_dir()
        else [Journal(path.parent.name, [_segment(path)], True)]
    )
    if run is None:
        return journals
    found = [journal for journal in journals if _narrow(journal, run)]
    if not found:
        raise Failure("NotFound", f"{path} has no record of a Run {run}", NOT_FOUND)
    return found


def from_api(session: Session, name: str) -> Journal:
    """The Run's journal, through the Kubernetes API: the control plane's records of this Run."""
    name = run_name(name)

    run = session.api.get(runs_path(session.namespace, name))
    try:
        raw = session.api.ask(
            "GET", runs_path(session.namespace, name, api=LOGS_API, subresource="journal"), accept="*/*"
        )
    except NotFound as error:
        raise Failure("NotFound", f"Run {name} has no journal here: {error}", NOT_FOUND) from error
    return Journal("controlplane", [("", lambda: raw)], False, RunUID(run["metadata"]["uid"]))


def _writers(path: Path) -> dict[Path, list[Path]]:
    """The folders with segments: this one, or those right below it or below its `journal`."""
    try:
        for place in (path, path / _JOURNALS):
            here = sorted(place.glob(f"*{SUFFIX}"))
            if here:
                return {place: here}
            below = {folder: sorted(folder.glob(f"*{SUFFIX}")) for folder in sorted(place.glob("*/"))}
            if any(below.values()):
                return {folder: files for folder, files in below.items() if files}
    except OSError as error:
        raise Failure("JournalUnreadable", f"cannot read {path}: {error.strerror}", OTHER) from error
    return {}


def _segment(path: Path) -> tuple[str, Callable[[], bytes]]:
    def read() -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise Failure("NotFound", f"there is no {path}", NOT_FOUND) from error
        except OSError as error:
            raise Failure("JournalUnreadable", f"cannot read {path}: {error.strerror}", OTHER) from error

    return str(path), read


def _narrow(journal: Journal, run: str) -> bool:
    """Find the Run that is meant: by its UID, else the last one of that name. False if there is none."""
    named: RunUID | None = None
    for entry in journal.entries():
        record = entry.record
        if record is None:
            break
        if record.run_uid == run:
            journal.run = record.run_uid
            return True
        if isinstance(record.event, Observed) and record.event.run.name == run:
            named = record.run_uid
    journal.run = named
    return named is not None
