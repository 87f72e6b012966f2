"""Folds a journal again and compares: the same events must give the same commands, or the divergence is reported.

Pure like the rest: it takes records, not files. `krt replay`, `krt explain` and the tests call it. Every released rule
version stays in RULES, so that a journal of any age folds as it was written.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from statemachine.events import Event, Observed, Removed, Role
from statemachine.invariants import violations
from statemachine.journal import RULES_VERSION, Entry
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
    """The outcome of a replay. `runs` holds the final state of each Run, `moments` the way there in order."""

    runs: dict[RunUID, Run]
    moments: tuple[Moment, ...]
    divergence: Divergence | None
    torn: Entry | None
    gaps: int
    broken: tuple[tuple[int, str], ...]  # (seq, the sentence of an invariant that an observed change broke)


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
) -> Fold:
    """Fold entries of one writer, in order.

    run_uid: only that Run. to: stop after this seq. without: leave these seqs out (what if); nothing is compared from
    the first of them on, since the commands then differ by intent. Raises UnknownRules.
    """
    runs: dict[RunUID, Run] = {}
    moments: list[Moment] = []
    broken: list[tuple[int, str]] = []
    divergence: Divergence | None = None
    torn: Entry | None = None
    gaps = 0
    comparing = True
    for entry in entries:
        record = entry.record
        if record is None:
            torn = entry
            break
        if to is not None and record.seq > to:
            break
        rules = RULES.get(record.rules)
        if rules is None:
            raise UnknownRules(entry, record.rules)
        if run_uid is not None and record.run_uid != run_uid:
            continue
        if record.seq in without:
            comparing = False
            continue
        before = runs.get(record.run_uid)
        if before is None and not isinstance(record.event, Observed):
            if comparing:
                divergence = _diverged(entry, "first event", type(record.event).__name__, "Observed")
                break
            continue
        folded = rules(before, record.event, record.role)
        if comparing and (found := _compare(entry, folded)) is not None:
            divergence = found
            break
        after = before if before is not None else folded.run
        if isinstance(record.event, Observed | Removed):
            after = folded.run
            gaps += folded.gap
            if not folded.gap:
                broken.extend((record.seq, sentence) for sentence in violations(before, after))
        runs[record.run_uid] = after
        moments.append(Moment(record.seq, record.writer, record.event, after, folded))
    return Fold(runs, tuple(moments), divergence, torn, gaps, tuple(broken))


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
