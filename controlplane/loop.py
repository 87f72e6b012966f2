"""The one loop of the control plane: receive → step → append to the journal → perform → report, for every Run.

What is received is either an object that the API shows (watch, answer to our own write, or a read) or a decision of
the scheduler, recovery or a timer. Order is kept per Run by its inbox; Runs are independent of each other. A decision
that fails leaves nothing behind: the object is read again and adopted, and the decision is judged anew against it.
`main` wires it; `performer` does the writing.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from msgspec.structs import replace

from controlplane.cell import Cell, Item
from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import Conflict, Invalid, KubeError, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.translate import translate
from controlplane.kube.types import RunObject
from controlplane.lean import LEAN_RUNS
from controlplane.metrics import LoopMetrics
from controlplane.performer import Performer
from controlplane.runtimers import RunTimers
from controlplane.tasks import Tasks
from controlplane.timers import CallLater, Timers, Vigil
from statemachine.commands import Command, DropTimer, EmitEvent, SetTimer
from statemachine.events import Bound, Event, Observed, Removed, Role, Waiting
from statemachine.run import Phase, Run, RunUID
from statemachine.step import Refusal, RefusalCode, Step, step

WRITES_MAX: Final = 16  # writes under way at once, one connection each: more only queue at the API server
RETRY_FIRST_S: Final = 0.05  # after a second failure in a row of one Run; the first is judged anew at once
RETRY_MAX_S: Final = 5.0  # below the 10 s in which a restarted API server must be noticed

_log = logging.getLogger(__name__)


class Journal(Protocol):
    """Takes a record of every step. Never raises."""

    def append(
        self,
        run_uid: RunUID,
        event: Event,
        commands: tuple[Command, ...],
        refusal: Refusal | None,
        gap: bool,
        *,
        fresh: bool,
    ) -> None:
        """Write down one step, before its commands are performed."""
        ...


Changed = Callable[[Run | None, Run], None]
"""A Run is seen in a new state; `run.gone` when it is no more. The first argument is None at first sight."""


class RunLoop:
    """Every Run of the cluster, as last seen, and every decision about them on its way."""

    def __init__(
        self,
        *,
        kube: Kube,
        performer: Performer,
        clock: Clock,
        timers: Timers,
        vigil: Vigil,
        call_later: CallLater,
        tasks: Tasks,
        journal: Journal | None,
        metrics: LoopMetrics,
    ) -> None:
        self._kube = kube
        self._performer = performer
        self._clock = clock
        self._timers = RunTimers(
            clock=clock, timers=timers, vigil=vigil, run=self.run, decide=self.decide, due=self._backoff_over
        )
        self._call_later = call_later
        self._tasks = tasks
        self._journal = journal
        self._metrics = metrics
        self._cells: dict[RunUID, Cell] = {}
        self._changed: list[Changed] = []
        self._settled: list[Callable[[Run, Event], None]] = []
        self._due: list[Callable[[RunUID], None]] = []
        self._writes = asyncio.Semaphore(WRITES_MAX)
        self._closed = False

    def follow(
        self,
        changed: Changed,
        *,
        settled: Callable[[Run, Event], None] | None = None,
        due: Callable[[RunUID], None] | None = None,
    ) -> None:
        """Tell of every change from now on; calls are quick and do not await. Call it before the first object arrives.

        `settled`: a decision has been written, refused, given up or dropped, and this is how the Run stands now.
        `due`: the backoff of a Run has passed.
        """
        self._changed.append(changed)
        if settled is not None:
            self._settled.append(settled)
        if due is not None:
            self._due.append(due)

    def run(self, uid: RunUID) -> Run | None:
        """The Run as last seen."""
        cell = self._cells.get(uid)
        return cell.run if cell is not None else None

    def runs(self) -> Iterator[Run]:
        """Every Run as last seen."""
        return (cell.run for cell in self._cells.values() if cell.run is not None)

    @property
    def busy(self) -> int:
        """How many Runs are being written for."""
        return sum(cell.task is not None for cell in self._cells.values())

    def changed(self, change: Change[RunObject]) -> None:
        """What a watch says: a hint to look at the object that comes with it."""
        obj = change.current or change.previous
        assert obj is not None
        uid = RunUID(obj.metadata.uid)
        cell = self._cells.get(uid)
        if change.current is None:
            if cell is not None:
                self._receive(cell, Removed(at_us=self._clock.now_us()))
            return
        if cell is None:
            cell = self._cells[uid] = Cell(obj)
        self._receive(cell, obj)

    def decide(self, uid: RunUID, event: Event) -> None:
        """Take a decision about a Run. It is written if the table allows it by the time it is this Run's turn."""
        cell = self._cells.get(uid)
        if cell is not None and cell.run is not None:
            self._receive(cell, event)

    def close(self) -> None:
        """Take no more. What is being written may be cut off: whoever comes next derives everything from the API."""
        self._closed = True

    def _receive(self, cell: Cell, item: Item) -> None:
        if self._closed:
            return
        for dropped in cell.receive(item):
            self._metrics.decided(type(dropped).__name__, "dropped")
            if cell.run is not None:
                self._settle(cell.run, dropped)
        self._drain(cell)

    def _drain(self, cell: Cell) -> None:
        while cell.inbox and cell.task is None and not self._closed:
            item = cell.inbox.popleft()
            if isinstance(item, RunObject):
                self._adopt(cell, item)
            elif isinstance(item, Removed):
                self._remove(cell, item)
            else:
                self._take(cell, item)

    def _adopt(self, cell: Cell, obj: RunObject) -> None:
        """Take over what the API shows, unless it is older than what is known, and what it asks for."""
        version = int(obj.metadata.resource_version or 0)
        if version <= cell.version:
            return
        events = translate(None if cell.run is None else cell.obj, obj, self._clock.now_us())
        cell.obj, cell.version = obj, version
        for event in events:
            if isinstance(event, Observed):
                self._observe(cell, event)
            else:
                cell.inbox.append(event)

    def _observe(self, cell: Cell, event: Observed) -> None:
        previous = cell.run
        if previous == event.run:
            return
        outcome = step(previous, event, Role.CONTROL_PLANE)
        self._write_down(event.run.uid, event, outcome, fresh=previous is None)
        cell.run = outcome.run
        self._measure(cell, previous, event)
        self._perform_local(outcome.run, outcome.commands)
        for tell in self._changed:
            tell(previous, outcome.run)

    def _measure(self, cell: Cell, previous: Run | None, event: Observed) -> None:
        self._metrics.observed(previous, event.run)
        phase = event.run.phase
        if previous is None and phase is Phase.PENDING and event.run.status.attempt == 0:
            cell.seen_us = event.at_us
        elif cell.seen_us and phase is not Phase.PENDING:
            if phase is Phase.SCHEDULED:
                self._metrics.bound(max(0, event.at_us - cell.seen_us) / 1_000_000)
            cell.seen_us = 0

    def _remove(self, cell: Cell, event: Removed) -> None:
        run = cell.run
        if run is None:
            return
        outcome = step(run, event, Role.CONTROL_PLANE)
        self._write_down(run.uid, event, outcome)
        self._cells.pop(run.uid, None)
        cell.inbox.clear()
        self._metrics.observed(run, outcome.run)
        self._timers.drop_all(run.uid)
        for tell in self._changed:
            tell(run, outcome.run)

    def _take(self, cell: Cell, event: Event) -> None:
        """Judge a decision; if the table allows it, write it down and start to perform it."""
        run = cell.run
        assert run is not None, "decisions are about Runs that were seen"
        outcome = step(run, event, Role.CONTROL_PLANE)
        if outcome.refusal is not None:
            self._refused(run, event, outcome)
            return
        self._write_down(run.uid, event, outcome)
        cell.task = self._tasks.spawn(self._carry_out(cell, run, event, outcome))

    def _refused(self, run: Run, event: Event, outcome: Step) -> None:
        refusal = outcome.refusal
        assert refusal is not None
        name = type(event).__name__
        self._metrics.decided(name, "refused")
        _log.debug("%s refused: %s", name, refusal.message, extra={"run": run.uid})
        if refusal.code is RefusalCode.GUARD:
            self._write_down(run.uid, event, outcome)
        self._settle(run, event)

    def _write_down(self, uid: RunUID, event: Event, outcome: Step, *, fresh: bool = False) -> None:
        if self._journal is not None:
            self._journal.append(uid, event, outcome.commands, outcome.refusal, outcome.gap, fresh=fresh)

    async def _carry_out(self, cell: Cell, run: Run, event: Event, outcome: Step) -> None:
        """Perform the commands in their order; report what the API then shows, whatever happened."""
        name = type(event).__name__
        shown: RunObject | None = None
        try:
            async with self._writes:
                shown = await self._performer.perform(run, cell.obj, outcome.commands)
        except KubeError as error:
            changed = isinstance(error, NotFound | Invalid | Conflict)
            self._metrics.decided(name, "conflict" if changed else "failed")
            level = logging.INFO if changed else logging.WARNING
            _log.log(level, "%s not written: %s", name, error, extra={"run": run.uid, "code": error.status.code})
            shown = await self._look_again(cell, run)
            self._again(cell, event)
        else:
            cell.failures = 0
            self._metrics.decided(name, "written")
            self._perform_local(run, outcome.commands)
        self._report(cell, run, event, shown)

    def _again(self, cell: Cell, event: Event) -> None:
        """Judge the same decision anew, after the object that was read. The scheduler chooses anew instead."""
        if not isinstance(event, Bound | Waiting):
            cell.inbox.append(replace(event, at_us=self._clock.now_us()))

    def _report(self, cell: Cell, run: Run, event: Event, shown: RunObject | None) -> None:
        cell.task = None
        if shown is None:
            cell.inbox.append(Removed(at_us=self._clock.now_us()))
        else:
            self._adopt(cell, shown)
        self._settle(cell.run or run, event)
        self._drain(cell)

    async def _look_again(self, cell: Cell, run: Run) -> RunObject | None:
        """The object as it is now, None when it is gone. Tries until the API answers, longer apart each time."""
        while True:
            await self._pause(cell.failures)
            cell.failures += 1
            try:
                obj = await self._kube.get(LEAN_RUNS, run.namespace, run.name)
            except NotFound:
                return None
            except KubeError as error:
                _log.warning("cannot read a Run again: %s", error, extra={"run": run.uid, "code": error.status.code})
                continue
            return obj if obj.metadata.uid == run.uid else None

    async def _pause(self, failures: int) -> None:
        if failures == 0:
            return
        woken = asyncio.get_running_loop().create_future()
        delay_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(failures - 1, 16))
        alarm = self._call_later(delay_s, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            alarm.cancel()

    def _settle(self, run: Run, event: Event) -> None:
        for tell in self._settled:
            tell(run, event)

    def _perform_local(self, run: Run, commands: tuple[Command, ...]) -> None:
        """The commands that need no API: timers and Events (which are queued and sent later)."""
        for command in commands:
            if isinstance(command, SetTimer):
                self._timers.set(run.uid, command)
            elif isinstance(command, DropTimer):
                self._timers.drop(run.uid, command.timer)
            elif isinstance(command, EmitEvent):
                self._performer.emit(run, command)

    def _backoff_over(self, uid: RunUID) -> None:
        for tell in self._due:
            tell(uid)
