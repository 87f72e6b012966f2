"""Folds a journal again and compares: the same events must give the same commands, or the divergence is reported.

Pure like the rest: it takes records, not files. `krt replay`, `krt explain` and the tests call it. Every released rule
version stays in RULES, so that a journal of any age folds as it was written.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from statemachine.events import Event, Observed, Removed, Role
from statemachine.invariants import violations
from statemachine.journal import RULES_VERSION, Entry, Record
from statemachine.run import Run, RunUID
from statemachine.step import Step, step

Rules = Callable[[Run | None, Event, Role], Step]
RULES: Final[dict[int, Rules]] = {RULES_VERSION: step}


class Divergence(msgspec.Struct, frozen=True):
    """The first place where folding again gives something else than the record says."""

    index: int
    offset: int
    seq: int
    run_uid: RunUID
    what: str
    recorded: str
    folded: str


class Moment(msgspec.Struct, frozen=True):
    """One folded record: the Run after it, and what was said about it."""

    seq: int
    writer: str
    event: Event
    run: Run
    step: Step


class Fold(msgspec.Struct, frozen=True):
    """The outcome of a replay.

    `runs` holds the final state of each Run, `moments` the way there in order. `lost` counts the records that are
    missing (not written, or their segment is gone): what follows them is compared from the next observation on.
    `broken`: (seq, the sentence of an invariant that an observed change broke).
    """

    runs: dict[RunUID, Run]
    moments: tuple[Moment, ...]
    divergence: Divergence | None
    torn: Entry | None
    gaps: int
    lost: int
    broken: tuple[tuple[int, str], ...]


class UnknownRules(Exception):
    """A record was decided by rules that this program does not have: a newer kruntimes wrote it."""

    def __init__(self, entry: Entry, rules: int) -> None:
        super().__init__(
            f"record {entry.index} at offset {entry.offset} was decided by rule version {rules}; "
            f"this program knows {', '.join(map(str, sorted(RULES)))}"
        )
        self.entry = entry


def replay(
    entries: Iterable[Entry],
    *,
    run_uid: RunUID | None = None,
    to: int | None = None,
    without: frozenset[int] = frozenset(),
    whole: bool = True,
) -> Fold:
    """Fold entries of one writer, in order.

    run_uid: only that Run. to: stop after this seq. without: leave these seqs out (what if); nothing is compared from
    the first of them on, since the commands then differ by intent. whole: the entries are all that the writer wrote, so
    that a missing number is a missing record; False for those of one Run alone, as the API gives them.
    Raises UnknownRules.
    """
    folder = _Folder(without)
    torn: Entry | None = None
    for entry in entries:
        record = entry.record
        if record is None:
            torn = entry
            break
        if to is not None and record.seq > to:
            break
        if record.rules not in RULES:
            raise UnknownRules(entry, record.rules)
        if whole:
            folder.count(record)
        if run_uid in (None, record.run_uid) and not folder.fold(entry, record):
            break
    return Fold(
        folder.runs, tuple(folder.moments), folder.divergence, torn, folder.gaps, folder.lost, tuple(folder.broken)
    )


class _Folder:
    """The fold in progress."""

    def __init__(self, without: frozenset[int]) -> None:
        self.runs: dict[RunUID, Run] = {}
        self.moments: list[Moment] = []
        self.broken: list[tuple[int, str]] = []
        self.divergence: Divergence | None = None
        self.gaps = 0
        self.lost = 0
        self._without = without
        self._comparing = True
        self._seq = 0
        self._certain: set[RunUID] = set()  # Runs of which nothing is missing since their last observation

    def count(self, record: Record) -> None:
        """Notice records that are missing before this one."""
        if record.seq > self._seq + 1:
            self.lost += record.seq - self._seq - 1
            self._certain.clear()
        self._seq = record.seq

    def fold(self, entry: Entry, record: Record) -> bool:
        """Fold one record; False when it diverged."""
        if record.seq in self._without:
            self._comparing = False
            return True
        observed = isinstance(record.event, Observed)
        before = None if record.fresh else self.runs.get(record.run_uid)
        certain = self._comparing and (record.fresh or record.run_uid in self._certain)
        if before is None and not observed:
            # The Run's beginning is missing: its next observation is where the fold takes it up.
            return True
        folded = RULES[record.rules](before, record.event, record.role)
        if certain and (found := _compare(entry, folded)) is not None:
            self.divergence = found
            return False
        after = self.runs.get(record.run_uid, folded.run)
        if observed or isinstance(record.event, Removed):
            after = folded.run
            self._certain.add(record.run_uid)
            self.gaps += folded.gap
            if certain and not folded.gap:
                self.broken.extend((record.seq, sentence) for sentence in violations(before, after))
        self.runs[record.run_uid] = after
        self.moments.append(Moment(record.seq, record.writer, record.event, after, folded))
        return True


def _compare(entry: Entry, folded: Step) -> Divergence | None:
    record = entry.record
    assert record is not None
    if folded.commands != record.commands:
        return _diverged(entry, "commands", _words(record.commands), _words(folded.commands))
    if folded.refusal != record.refusal:
        return _diverged(entry, "refusal", _words(record.refusal), _words(folded.refusal))
    if folded.gap != record.gap:
        return _diverged(entry, "gap", str(record.gap), str(folded.gap))
    return None


def _diverged(entry: Entry, what: str, recorded: str, folded: str) -> Divergence:
    record = entry.record
    assert record is not None
    return Divergence(entry.index, entry.offset, record.seq, record.run_uid, what, recorded, folded)


def _words(value: object) -> str:
    return msgspec.json.encode(value).decode()
