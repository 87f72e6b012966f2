"""`krt replay` and `krt diagram`: a Run's path, folded again from its journal and drawn."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from controlplane.cli.failure import OTHER, Failure
from controlplane.cli.journalsource import Journal, from_api, from_files, looks_like_a_journal
from controlplane.cli.options import ContextOption, Format, KubeconfigOption, NamespaceOption, OutputOption
from controlplane.cli.output import emit, print_object, say
from controlplane.cli.session import Session
from controlplane.cli.tables import print_table
from controlplane.kube.codec import format_time
from statemachine import diagram as drawing
from statemachine.events import Observed
from statemachine.replay import Fold, Moment, UnknownRules
from statemachine.replay import replay as fold
from statemachine.run import Phase

What = Annotated[
    str,
    typer.Argument(
        help="Name of a Run; or a journal: a file, a folder of segments, a data directory.",
        show_default=False,
        metavar="NAME|PATH",
    ),
]
RunOption = Annotated[
    str | None, typer.Option("--run", help="Of a journal in files: only this Run, by name or UID.", metavar="RUN")
]


def replay(
    what: What,
    run: RunOption = None,
    to: Annotated[int | None, typer.Option("--to", help="Stop after the record of this number.", metavar="SEQ")] = None,
    without: Annotated[
        list[int] | None,
        typer.Option("--without", help="What if: leave the record of this number out; repeatable.", metavar="SEQ"),
    ] = None,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Fold a Run's journal again and compare.

    The same events must give the same commands.

    \b
    Examples:
      krt replay diagnose-service
      krt replay ~/.kruntimes/journal/controlplane --to 12
      krt replay copy.krj --run 2c24c1f0-9f8f-4f80-82d5-3dd16a12d1e6

    A divergence, a bad byte or a newer rule version ends with 1 and says where. No file is changed.
    """
    journals = _journals(what, run, Session(namespace, context, kubeconfig))
    left_out = frozenset(without or ())
    folds = [(journal, _fold(journal, to, left_out)) for journal in journals]
    if output in (Format.JSON, Format.YAML):
        facts: list[Any] = [msgspec.to_builtins(outcome) for _, outcome in folds]
        several = {"journals": [{"writer": j.writer, **one} for (j, _), one in zip(folds, facts, strict=True)]}
        print_object(facts[0] if len(facts) == 1 else several, output)
    for journal, outcome in folds:
        if len(folds) > 1:
            say(f"journal of {journal.writer}:")
        if output is Format.NAME:
            for moment in outcome.moments:
                emit(str(moment.run.phase))
        elif output not in (Format.JSON, Format.YAML):
            _print(outcome)
        _note(outcome, left_out)
        if not journal.whole:
            _note_beginning(outcome)
    for journal, outcome in folds:
        _judge(journal, outcome)
    records, runs = sum(len(one.moments) for _, one in folds), len({uid for _, one in folds for uid in one.runs})
    compared = "fold" if left_out else "fold to the same commands"
    say(f"{records} records of {runs} Run{'' if runs == 1 else 's'} {compared}")


def diagram(
    name: Annotated[
        str | None, typer.Argument(help="Name of a Run, or a journal, whose path is marked.", metavar="NAME|PATH")
    ] = None,
    run: RunOption = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As Mermaid source, for a page.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Draw the lifecycle, with a Run's path.

    \b
    Examples:
      krt diagram
      krt diagram diagnose-service --mermaid
    """
    path: list[Phase] = []
    if name is not None:
        journals = _journals(name, run, Session(namespace, context, kubeconfig))
        path = _path([moment for journal in journals for moment in _fold(journal, None, frozenset()).moments])
    emit((drawing.mermaid(path) if mermaid else drawing.text(path)).rstrip())


def _journals(what: str, run: str | None, session: Session) -> list[Journal]:
    return from_files(what, run) if run is not None or looks_like_a_journal(what) else [from_api(session, what)]


def _fold(journal: Journal, to: int | None, without: frozenset[int]) -> Fold:
    try:
        return fold(journal.entries(), run_uid=journal.run, to=to, without=without, whole=journal.whole)
    except UnknownRules as newer:
        raise Failure("RulesUnknown", f"{_in(journal)}{newer}", OTHER) from newer


def _path(moments: Sequence[Moment]) -> list[Phase]:
    path: list[Phase] = []
    for moment in moments:
        if not path or path[-1] is not moment.run.phase:
            path.append(moment.run.phase)
    return path


def _print(outcome: Fold) -> None:
    several = len(outcome.runs) > 1
    columns = ("SEQ", "TIME", "EVENT", "PHASE", "ATTEMPT", "OUTCOME")
    rows = [
        (
            moment.seq,
            format_time(moment.event.at_us),
            type(moment.event).__name__,
            moment.run.phase,
            moment.run.status.attempt,
            _outcome(moment),
        )
        for moment in outcome.moments
    ]
    if several:
        named = [(moment.run.name, *row) for moment, row in zip(outcome.moments, rows, strict=True)]
        print_table(("RUN", *columns), named)
    else:
        print_table(columns, rows)


def _outcome(moment: Moment) -> str:
    if moment.step.refusal is not None:
        return f"refused: {moment.step.refusal.message}"
    names = ", ".join(type(command).__name__ for command in moment.step.commands)
    if isinstance(moment.event, Observed) and moment.step.gap:
        return f"gap; {names}".rstrip("; ")
    return names


def _note(outcome: Fold, without: frozenset[int]) -> None:
    if outcome.torn is not None:
        say(f"note: the last record, at offset {outcome.torn.offset}, is torn and was left out")
    if outcome.lost:
        say(f"note: {outcome.lost} records are missing; what follows them is compared from the next observation on")
    if outcome.gaps:
        say(f"note: {outcome.gaps} observations skipped a phase that this process did not see")
    for seq, sentence in outcome.broken:
        say(f"note: record {seq} breaks an invariant: {sentence}")
    if without:
        seqs = ", ".join(map(str, sorted(without)))
        say(f"note: left out: {seqs}; nothing is compared from the first of them on")


def _note_beginning(outcome: Fold) -> None:
    """A control plane's journal goes with its Pod: that of its successor begins where it found the Run."""
    first = outcome.moments[0].run if outcome.moments else None
    if first is not None and (first.phase is not Phase.PENDING or first.status.attempt > 0):
        found = f"{first.phase}, attempt {first.status.attempt}"
        say(f"note: this journal begins with the Run in {found}; what was before went with an earlier control plane")


def _judge(journal: Journal, outcome: Fold) -> None:
    """Failure where folding again gave something else than the record says."""
    found = outcome.divergence
    if found is not None:
        raise Failure(
            "Diverged",
            f"{_in(journal)}record {found.index} at offset {found.offset} (seq {found.seq}): {found.what} differ: "
            f"recorded {found.recorded}, folded {found.folded}",
            OTHER,
        )


def _in(journal: Journal) -> str:
    """The segment that was read last; an API's journal is one piece without a name."""
    return f"{journal.reading}: " if journal.reading else ""
