"""`krt replay`, `krt diagram` and `krt explain`: a Run's path, folded again from its journal and drawn."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli.failure import NOT_FOUND, OTHER, Failure
from controlplane.cli.output import Format, OutputOption, colour, emit, print_object, print_table, say
from controlplane.cli.session import ContextOption, KubeconfigOption, NamespaceOption, Session
from controlplane.kube.codec import format_time
from controlplane.kube.errors import NotFound
from controlplane.kube.resources import EVENTS, RUNS
from statemachine import diagram as drawing
from statemachine.events import Observed
from statemachine.journal import Damaged, Entry, decode
from statemachine.replay import Fold, Moment, UnknownRules
from statemachine.replay import replay as fold
from statemachine.run import Phase, RunUID
from statemachine.table import TABLE

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

SUFFIX = ".krj"


def replay(
    what: Annotated[str, typer.Argument(help="Name of a Run, or a journal: a file, or a folder of segments.")],
    to: Annotated[int | None, typer.Option("--to", help="Stop after the record of this number.")] = None,
    without: Annotated[
        list[int] | None, typer.Option("--without", help="What if: leave the record of this number out; repeatable.")
    ] = None,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Fold a journal again and compare: the same events must give the same commands.

    \b
    Examples:
      krt replay diagnose-service
      krt replay ~/.kruntimes/journal/controlplane --to 12

    A divergence, a bad byte or a newer rule version ends with 1 and says where.
    """
    path = Path(what)
    uid, parts = (None, _segments(path)) if path.exists() else _of_run(Session(namespace, context, kubeconfig), what)
    try:
        outcome = fold(_entries(parts), run_uid=uid, to=to, without=frozenset(without or ()))
    except Damaged as damage:
        raise Failure("JournalDamaged", str(damage), OTHER) from damage
    except UnknownRules as newer:
        raise Failure("RulesUnknown", str(newer), OTHER) from newer
    _report(outcome, output)


def diagram(
    name: Annotated[str | None, typer.Argument(help="Name of a Run whose path is marked.")] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="As Mermaid source, for a page.")] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Draw the lifecycle, with a Run's path when one is named.

    \b
    Examples:
      krt diagram
      krt diagram diagnose-service --mermaid
    """
    path: list[Phase] = []
    if name is not None:
        uid, parts = _of_run(Session(namespace, context, kubeconfig), name)
        try:
            path = _path(fold(_entries(parts), run_uid=uid).moments)
        except (Damaged, UnknownRules) as error:
            raise Failure("JournalDamaged", str(error), OTHER) from error
    emit((drawing.mermaid(path) if mermaid else drawing.text(path)).rstrip())


def explain(
    name: Annotated[str, typer.Argument(help="Name of the Run.", show_default=False)],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Say why a Run is in its phase, what it waits for, and its last Events.

    \b
    Example:
      krt explain diagnose-service
    """
    session = Session(namespace, context, kubeconfig)

    async def work(client: "KubeClient") -> tuple[Any, list[Any]]:
        run = await client.get(RUNS, session.namespace, name)
        events = await client.list(EVENTS, session.namespace, fields=f"involvedObject.uid={run.metadata.uid}")
        return run, sorted(events.items, key=lambda event: event.last_timestamp or event.event_time or "")

    run, events = session.call(work)
    status = run.status
    emit(f"Run {name} is {colour(status.phase)}" + (f" ({status.reason}: {status.message})" if status.reason else ""))
    for condition in status.conditions:
        why = f"{condition.reason} {condition.message}".strip()
        emit(f"  {condition.type}={condition.status}  {why}")
    rows = [row for row in TABLE if Phase(status.phase) in row.sources]
    if rows:
        emit("\nWhat may happen next:")
        print_table(
            ("EVENT", "TO", "DECIDED BY", "NOTE"),
            [
                (
                    row.event.__name__,
                    " or ".join(dict.fromkeys(str(choice.to or status.phase) for choice in row.choices)),
                    row.decider,
                    row.note,
                )
                for row in rows
            ],
        )
    if events:
        emit("\nLast events:")
        print_table(
            ("LAST SEEN", "TYPE", "REASON", "MESSAGE"),
            [
                (event.last_timestamp or event.event_time or "", event.type, event.reason, event.message)
                for event in events[-8:]
            ],
        )


def _segments(path: Path) -> list[bytes]:
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise Failure("NotFound", f"{path} holds no journal segments (*{SUFFIX})", NOT_FOUND)
    try:
        return [file.read_bytes() for file in files]
    except OSError as error:
        raise Failure("JournalUnreadable", f"cannot read {path}: {error.strerror}", OTHER) from error


def _of_run(session: Session, name: str) -> tuple[RunUID, list[bytes]]:
    """The Run's UID and its journal, through the Kubernetes API."""

    async def work(client: "KubeClient") -> tuple[RunUID, list[bytes]]:
        run = await client.get(RUNS, session.namespace, name)
        path = f"/apis/logs.kruntimes.io/v1alpha1/namespaces/{session.namespace}/runs/{name}/journal"
        try:
            return RunUID(run.metadata.uid), [await client.raw("GET", path)]
        except NotFound as error:
            raise Failure("NotFound", f"Run {name} has no journal here: {error}", NOT_FOUND) from error

    return session.call(work)


def _entries(segments: Sequence[bytes]) -> Iterator[Entry]:
    for number, segment in enumerate(segments):
        yield from decode(segment, last=number == len(segments) - 1)


def _path(moments: Sequence[Moment]) -> list[Phase]:
    path: list[Phase] = []
    for moment in moments:
        if not path or path[-1] is not moment.run.phase:
            path.append(moment.run.phase)
    return path


def _report(outcome: Fold, output: Format) -> None:
    if output in (Format.JSON, Format.YAML):
        import msgspec

        print_object(msgspec.to_builtins(outcome), output)
    elif output is Format.NAME:
        for moment in outcome.moments:
            emit(str(moment.run.phase))
    else:
        print_table(
            ("SEQ", "TIME", "EVENT", "PHASE", "ATTEMPT", "OUTCOME"),
            [
                (
                    str(moment.seq),
                    format_time(moment.event.at_us),
                    type(moment.event).__name__,
                    str(moment.run.phase),
                    str(moment.run.status.attempt),
                    _outcome(moment),
                )
                for moment in outcome.moments
            ],
        )
    if outcome.torn is not None:
        say(f"note: the last record, at offset {outcome.torn.offset}, is torn and was left out")
    if outcome.lost:
        say(f"note: {outcome.lost} records are missing; what follows them is compared from the next observation on")
    if outcome.gaps:
        say(f"note: {outcome.gaps} observations skipped a phase that this process did not see")
    for seq, sentence in outcome.broken:
        say(f"note: record {seq} breaks an invariant: {sentence}")
    found = outcome.divergence
    if found is not None:
        raise Failure(
            "Diverged",
            f"record {found.index} at offset {found.offset} (seq {found.seq}): {found.what} differ: recorded "
            f"{found.recorded}, folded {found.folded}",
            OTHER,
        )
    say(f"{len(outcome.moments)} records of {len(outcome.runs)} Runs fold to the same commands")


def _outcome(moment: Moment) -> str:
    if moment.step.refusal is not None:
        return f"refused: {moment.step.refusal.message}"
    names = ", ".join(type(command).__name__ for command in moment.step.commands)
    if isinstance(moment.event, Observed) and moment.step.gap:
        return f"gap; {names}".rstrip("; ")
    return names
