"""`krt explain`: why a Run is in its phase, what it waits for, and its last Events."""

from typing import Any, Final

import msgspec

from controlplane.cli.failure import printable
from controlplane.cli.options import (
    ContextOption,
    Format,
    KubeconfigOption,
    NamespaceOption,
    OutputOption,
    RunName,
    run_name,
)
from controlplane.cli.output import colour, emit, emit_name, print_object
from controlplane.cli.session import Session
from controlplane.cli.tables import print_table
from controlplane.kube.resources import EVENTS, RUNS
from controlplane.kube.types import KubeEvent
from controlplane.kube.types_kruntimes import RunObject
from controlplane.kube.wire import decode, decode_page
from statemachine.reasons import Reason
from statemachine.run import CLAIM_TIMEOUT_MS, REGISTRATION_TIMEOUT_MS, TERMINAL, Phase
from statemachine.table import TABLE

EVENTS_SHOWN: Final = 8

_WAITS: Final = {
    Phase.PENDING: "a Pod of Runtime {runtime} that is ready and has room",
    Phase.SCHEDULED: "the claim by Pod {pod}, for at most {claim} s",
    Phase.REGISTERING: "Pod {pod} to load the source and register the handler, for at most {registration} s",
    Phase.READY: "calls",
    Phase.RUNNING: "the end of the task on Pod {pod}",
    Phase.RELEASING: "Pod {pod} to end the calls in flight and to let go",
}


def explain(
    name: RunName,
    output: OutputOption = Format.TABLE,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Say why a Run is in its phase, and what it waits for.

    Its last Events are shown too, and what may happen next.

    \b
    Example:
      krt explain diagnose-service
    """
    session, name = Session(namespace, context, kubeconfig), run_name(name)

    run = decode(RunObject, session.api.ask("GET", RUNS.path(session.namespace, name)))
    query = {"fieldSelector": f"involvedObject.uid={run.metadata.uid}"}
    found = decode_page(EVENTS, session.api.ask("GET", EVENTS.path(session.namespace), query=query))
    events = sorted(found.items or (), key=_seen)
    if output is Format.NAME:
        emit_name(name)
    elif output in (Format.JSON, Format.YAML):
        print_object(_facts(run, events), output)
    else:
        _tell(run, events)


def _facts(run: RunObject, events: list[KubeEvent]) -> dict[str, Any]:
    return {
        "name": run.metadata.name,
        "uid": run.metadata.uid,
        "phase": run.status.phase,
        "reason": run.status.reason,
        "message": run.status.message,
        "meaning": _meaning(run),
        "waitsFor": _waits_for(run),
        "conditions": msgspec.to_builtins(run.status.conditions),
        "next": [
            {"event": event, "to": to, "decidedBy": decider, "note": note} for event, to, decider, note in _next(run)
        ],
        "events": [
            {"lastSeen": _seen(one), "type": one.type, "reason": one.reason, "message": one.message}
            for one in events[-EVENTS_SHOWN:]
        ],
    }


def _tell(run: RunObject, events: list[KubeEvent]) -> None:
    status = run.status
    why = f" ({status.reason}: {status.message.rstrip()})" if status.reason else ""
    emit(f"Run {run.metadata.name} is {colour(status.phase)}{_lines(why)}")
    if (meaning := _meaning(run)) and meaning not in why:
        emit(f"  {meaning}")
    for condition in status.conditions:
        emit(_lines(f"  {condition.type}={condition.status}  {condition.reason} {condition.message}".rstrip()))
    if waits := _waits_for(run):
        emit(f"  It waits for {waits}.")
    if rows := _next(run):
        emit("\nWhat may happen next:")
        print_table(("EVENT", "TO", "DECIDED BY", "NOTE"), rows)
    if events:
        emit("\nLast events:")
        print_table(
            ("LAST SEEN", "TYPE", "REASON", "MESSAGE"),
            [(_seen(one), one.type, one.reason, " ".join(one.message.split())) for one in events[-EVENTS_SHOWN:]],
        )


def _lines(text: str) -> str:
    """Text of several lines, such as a traceback: those after the first stand below it."""
    return "\n    ".join(printable(line) for line in text.split("\n"))


def _meaning(run: RunObject) -> str:
    """The sentence of the reason that says most: of a Run that waits, its Scheduled condition's."""
    said = [c.reason for c in run.status.conditions if c.type == "Scheduled" and c.status == "False"]
    reason = said[0] if said and Phase(run.status.phase) is Phase.PENDING else run.status.reason
    return Reason(reason).info.sentence if reason in set(Reason) else ""


def _waits_for(run: RunObject) -> str:
    status, metadata = run.status, run.metadata
    if metadata.deleting and Phase(status.phase) in TERMINAL:
        held = ", ".join(metadata.finalizers)
        return f"whoever holds the finalizers {held}" if held else ""
    if Phase(status.phase) is Phase.PENDING and status.next_attempt_time:
        return f"its next attempt at {status.next_attempt_time}"
    words = _WAITS.get(Phase(status.phase), "")
    return words.format(
        runtime=run.spec.runtime,
        pod=status.assigned_pod or "",
        claim=CLAIM_TIMEOUT_MS // 1000,
        registration=REGISTRATION_TIMEOUT_MS // 1000,
    )


def _next(run: RunObject) -> list[tuple[str, str, str, str]]:
    phase = Phase(run.status.phase)
    return [
        (
            row.event.__name__,
            " or ".join(dict.fromkeys(str(choice.to or phase) for choice in row.choices)),
            str(row.decider),
            row.note,
        )
        for row in TABLE
        if phase in row.sources
    ]


def _seen(event: KubeEvent) -> str:
    return event.last_timestamp or event.event_time or ""
