"""Executes the table with the `transitions` library; nothing else knows that it is there.

One machine serves every Run. `transitions` keeps state on a model, so each step gets a light cursor that is thrown
away: attaching a model to the machine costs 70-170 microseconds, a cursor next to nothing. Automatic transitions are
off, and its exceptions never leave this file: the only outcomes are a phase or the name of what refused.
"""

from collections.abc import Callable
from typing import Any, Final

from transitions import Machine

from statemachine.events import Event
from statemachine.guards import Guard
from statemachine.run import Phase, Run
from statemachine.table import INDEX, TABLE


class _Cursor:
    """Where one step stands: the model of one trigger."""

    __slots__ = ("refused", "state")

    def __init__(self, state: str) -> None:
        self.state = state
        self.refused: Guard | None = None


def _condition(guard: Guard) -> Callable[[_Cursor, Run, Event], bool]:
    def holds(cursor: _Cursor, run: Run, event: Event) -> bool:
        if guard.holds(run, event):
            return True
        if cursor.refused is None:
            cursor.refused = guard
        return False

    return holds


def _build() -> Machine:
    machine = Machine(
        model=None,
        states=[phase.value for phase in Phase],
        initial=Phase.PENDING.value,
        auto_transitions=False,
        ignore_invalid_triggers=True,
    )
    for row in TABLE:
        for source in row.sources:
            for choice in row.choices:
                machine.add_transition(
                    row.event.__name__,
                    source.value,
                    (choice.to or source).value,
                    conditions=[_condition(guard) for guard in (*row.guards, *choice.guards)],
                )
    return machine


_MACHINE: Final[Any] = _build()


def advance(run: Run, event: Event) -> tuple[Phase | None, Guard | None]:
    """The phase that the table leads to, or None with the guard that refused (None too: no such row)."""
    if (run.phase, type(event)) not in INDEX:
        return None, None
    cursor = _Cursor(run.phase.value)
    if _MACHINE.events[type(event).__name__].trigger(cursor, cursor, run, event):
        return Phase(cursor.state), None
    return None, cursor.refused
