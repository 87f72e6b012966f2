"""One Run as the API shows it, kept in step with the state machine: observed in, decided events out, both on record.

It never goes back: an object older than the known one is a late watch line. Next: `worker.py` holds one.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from controlplane.kube.clock import Clock
from controlplane.kube.translate import run_from_object
from controlplane.kube.types import RunObject
from statemachine.commands import Command
from statemachine.events import Event, Observed, Removed, Role
from statemachine.run import Run, RunUID
from statemachine.step import Refusal, Step, step

_log = logging.getLogger(__name__)


class Journal(Protocol):
    """`controlplane.kube.journalfile.JournalFile`, or nothing."""

    def append(
        self,
        run_uid: RunUID,
        event: Event,
        commands: Sequence[Command] = (),
        refusal: Refusal | None = None,
        gap: bool = False,
        *,
        fresh: bool = False,
    ) -> None: ...


class NoJournal:
    """Keeps no record."""

    def append(
        self,
        run_uid: RunUID,
        event: Event,
        commands: Sequence[Command] = (),
        refusal: Refusal | None = None,
        gap: bool = False,
        *,
        fresh: bool = False,
    ) -> None:
        return None


class View:
    """`obj` and `run` are None before the first sight and after the object has gone."""

    def __init__(self, uid: RunUID, clock: Clock, journal: Journal, on_change: Callable[["View"], None]) -> None:
        self.uid = uid
        self.obj: RunObject | None = None
        self.run: Run | None = None
        self._clock = clock
        self._journal = journal
        self._on_change = on_change

    def observe(self, obj: RunObject) -> Sequence[Command]:
        """Adopt what the API shows; the duties that follow from it. Nothing for what is known already."""
        revision = obj.metadata.resource_version
        if self.obj is not None and not_newer(revision, self.obj.metadata.resource_version):
            return ()
        self.obj = obj
        if obj.metadata.deleting and not obj.metadata.finalizers:
            self.removed()  # the answer to the write that took the last finalizer off shows the object as it went
            return ()
        run = run_from_object(obj)
        event = Observed(at_us=self._clock.now_us(), run=run, resource_version=revision)
        return self._take(step(self.run, event, Role.RUNTIMED), event)

    def removed(self) -> None:
        """The object is gone."""
        if self.run is None:
            return
        event = Removed(at_us=self._clock.now_us())
        self._take(step(self.run, event, Role.RUNTIMED), event)
        self.run = None
        self._on_change(self)

    def decided(self, event: Event) -> Step:
        """What a decision would write and command; the view itself changes only by what the API then answers."""
        assert self.run is not None, "a decision is about a Run that is there"
        outcome = step(self.run, event, Role.RUNTIMED)
        self._journal.append(self.uid, event, outcome.commands, outcome.refusal)
        if outcome.refusal is not None:
            _log.debug("not decided: %s", outcome.refusal.message, extra={"run": self.uid})
        return outcome

    def _take(self, outcome: Step, event: Event) -> Sequence[Command]:
        self._journal.append(self.uid, event, outcome.commands, gap=outcome.gap, fresh=self.run is None)
        self.run = outcome.run
        if not outcome.run.gone:
            self._on_change(self)
        return outcome.commands


def not_newer(revision: str, known: str) -> bool:
    """Whether a resourceVersion is the known one or an older: those of one kind order as numbers (KEP-5504)."""
    return int(revision) <= int(known) if revision.isdigit() and known.isdigit() else revision == known
