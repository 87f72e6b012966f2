"""The one function that everything goes through: a Run and an event in, a Run and commands out.

It never awaits, logs or raises for an expected refusal. A refused event returns the very same Run and no command.
The shells in `controlplane` and `dataplane.runtimed` call it, and `replay.py` calls it again.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from statemachine.commands import Command
from statemachine.duties import duties
from statemachine.effects import decide
from statemachine.events import Event, Observed, Removed, Role
from statemachine.machine import advance
from statemachine.run import Phase, Run
from statemachine.table import INDEX, TABLE


class RefusalCode(StrEnum):
    """Why an event changed nothing."""

    ILLEGAL = "Illegal"  # no such row in the table
    NOT_DECIDER = "NotDecider"  # a row, but another process decides it
    GUARD = "Guard"  # a row whose guard says no


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an event changed nothing. `guard` names the predicate."""

    code: RefusalCode
    message: str
    guard: str = ""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome. `gap`: an observed change that no single row explains; it is adopted all the same."""

    run: Run
    commands: tuple[Command, ...] = ()
    refusal: Refusal | None = None
    gap: bool = False


def step(run: Run | None, event: Event, role: Role) -> Step:
    """Apply one event.

    `run` is None only before the first `Observed`. A decision's Run is what the API will show once its commands have
    succeeded; a shell keeps it only then, in the form in which the API returns it as `Observed`.
    """
    if isinstance(event, Observed):
        return _observe(run, event, role)
    assert run is not None, "the first event of a Run is Observed"
    if isinstance(event, Removed):
        gone = replace(run, gone=True)
        return Step(gone, duties(run, gone, role, event.at_us))
    return _decide(run, event, role)


def _observe(run: Run | None, event: Observed, role: Role) -> Step:
    seen = event.run
    assert run is None or run.uid == seen.uid, "an object keeps its UID"
    gap = run is not None and not explained(run, seen)
    return Step(seen, duties(run, seen, role, event.at_us), gap=gap)


def _decide(run: Run, event: Event, role: Role) -> Step:
    row = INDEX.get((run.phase, type(event)))
    name = type(event).__name__
    if row is None:
        return Step(run, refusal=Refusal(RefusalCode.ILLEGAL, f"{name} is not possible in {run.phase}"))
    if row.decider.role is not role:
        message = f"{name} in {run.phase} is for the {row.decider} to decide"
        return Step(run, refusal=Refusal(RefusalCode.NOT_DECIDER, message))
    to, guard = advance(run, event)
    if to is None:
        assert guard is not None
        message = f"{name} in {run.phase}: {guard.sentence}"
        return Step(run, refusal=Refusal(RefusalCode.GUARD, message, guard.name))
    after, commands = decide(run, event, to)
    return Step(after, commands)


def _moves() -> frozenset[tuple[Phase, Phase]]:
    return frozenset((source, choice.to or source) for row in TABLE for source in row.sources for choice in row.choices)


_MOVES = _moves()


def explained(before: Run, after: Run) -> bool:
    """Whether one row of the table, or none at all, leads from one observed state to the other."""
    same = before.phase is after.phase and before.status.attempt == after.status.attempt
    bindings = after.status.attempt - before.status.attempt
    bound = (before.phase, after.phase) == (Phase.PENDING, Phase.SCHEDULED)
    return same or ((before.phase, after.phase) in _MOVES and bindings == int(bound))
