"""One Run in this Pod: looks, decides, performs, looks again, until nothing of it is here.

Here: the loop, and how each action and command is performed. Not here: what is right to do (`decide.py`), what a row
writes (`statemachine`), the work in the background (`jobs.py`). One task a Run; it sleeps while nothing changes.
Next: `crew.py` makes a worker for each Run of its Pod, `serving.py` asks it whether calls may pass.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final, assert_never

from msgspec.structs import replace

from controlplane.kube.backoff import Backoff
from controlplane.kube.errors import KubeError
from controlplane.kube.types import RunObject
from dataplane.runtimed import adoption
from dataplane.runtimed import decide as rules
from dataplane.runtimed.failures import ServerLost
from dataplane.runtimed.jobs import Jobs
from dataplane.runtimed.local import Local, Stage
from dataplane.runtimed.ports import Pod, Tools
from dataplane.runtimed.slots import Room
from dataplane.runtimed.view import View
from statemachine import commands as cmd
from statemachine.events import Claimed, Event, FunctionRegistered
from statemachine.reasons import Reason
from statemachine.run import OWNED, Epoch, Mode, Phase, Run, RunUID

RETRY_FIRST_S: Final = 0.05  # after a failed write; the first refusal in a row is followed at once
RETRY_MAX_S: Final = 2.0  # an API server that restarts is met soon
REFUSALS_EXPECTED: Final = 3  # in a row; more is no race any more and worth a word

_log = logging.getLogger(__name__)


class Worker:
    """`starting`: the Run was found by the first list of this process's life, so that nothing of it is begun (L4)."""

    def __init__(self, uid: RunUID, tools: Tools, pod: Pod, *, starting: bool = False) -> None:
        self.uid = uid
        self.local: Local | None = None
        self.left_at = ""  # the resourceVersion at which nothing of the Run was left to do here
        self.view = View(uid, tools.clock, tools.journal, pod.shown)
        self._tools = tools
        self._pod = pod
        self._starting = starting
        self._became_ready = False
        self._refusals = 0
        self._wake = asyncio.Event()
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, tools.rng)
        self.jobs = Jobs(self, tools, pod)

    # --- what others tell it

    def observe(self, obj: RunObject) -> None:
        """A watch, a list or an answer shows the Run."""
        before = self.view.run.epoch if self.view.run is not None else None
        duties = self.view.observe(obj)
        if self.view.run is not None and self.view.run.epoch != before:
            self.jobs.new_epoch()
        for command in duties:
            # Registering, executing and releasing follow from `decide`, which also knows what has been done of it.
            match command:
                case cmd.SetTimer(timer=timer, due_us=due_us):
                    self.jobs.set_timer(timer, due_us)
                case cmd.DropTimer(timer=timer):
                    self.jobs.drop_timer(timer)
                case _:
                    pass
        self.wake()

    def removed(self) -> None:
        """The object is gone."""
        self.view.removed()
        self.wake()

    def take_over(self, epoch: Epoch, mode: Mode) -> None:
        """The Runtime Server holds an epoch that the API gives to nobody here: it keeps its slot until it is gone."""
        self.local = Local(epoch, mode, Stage.CLOSING)
        self.jobs.open_gate()
        self.wake()

    def server_died(self) -> None:
        """The Runtime Server's process is gone, with all it held."""
        local = self.local
        if local is None or local.stage is not Stage.OPEN:
            return
        phase = self.view.run.phase if self.view.run is not None else None
        why = "the Runtime Server was restarted"
        if local.mode is Mode.TASK:
            if local.result is None:
                self.enter(Stage.FAILED, Reason.TASK_LOST, f"{why} while the task ran")
        elif phase is Phase.READY:
            self.enter(Stage.GIVEN_UP, Reason.REGISTRATION_LOST, why)
        else:
            self.enter(Stage.FAILED, Reason.RUNTIME_SERVER_ERROR, why)

    @property
    def holding(self) -> Local | None:
        """What counts against the capacity: what is known here, or else what the API gives to this Pod."""
        run = self.view.run
        if self.local is not None or run is None or run.epoch is None or run.phase not in OWNED or not self._ours():
            return self.local
        return Local(run.epoch, run.spec.mode, Stage.CLAIMED, requests=run.spec.requests)

    def wake(self) -> None:
        """Something may have changed: look again."""
        self._wake.set()

    # --- what it does

    async def run(self) -> None:
        """Until nothing of the Run is here. Cancelled at the end of the process, which changes nothing in the API."""
        try:
            while True:
                self._wake.clear()
                action = self._next()
                if isinstance(action, rules.Nothing) and self.local is None and not self._ours():
                    self.left_at = self.view.obj.metadata.resource_version if self.view.obj is not None else ""
                    return
                if not await self._perform(action):
                    await self._wake.wait()
        finally:
            await self.jobs.stop()

    def _ours(self) -> bool:
        run, me = self.view.run, self._pod.host().pod_uid
        return run is not None and run.holds_slot and run.status.pod_uid == me

    def _next(self) -> rules.Action:
        run = self.view.run
        requests = run.spec.requests if run is not None else ()
        waiting = run is not None and self.local is None and run.phase is Phase.SCHEDULED
        return rules.decide(
            run,
            self.local,
            self._pod.host(),
            room=self._pod.room(self.uid, requests) if waiting else Room.FREE,
            due=self.jobs.due,
            at_us=self._tools.clock.now_us(),
            url=self._tools.endpoint_url(self.uid),
        )

    async def _perform(self, action: rules.Action) -> bool:
        """Do it; False when there is nothing to do until something changes."""
        match action:
            case rules.Nothing():
                self._settled()
                return False
            case rules.Prepare():
                self.jobs.prepare()
                return False
            case rules.Clear():
                self.jobs.clear()
                return False
            case rules.Enter(stage=stage, reason=reason, message=message):
                self.enter(stage, reason, message)
                await self.jobs.end_preparation()
            case rules.Drop():
                self._drop()
            case rules.Adopt():
                return await self._adopt()
            case rules.Decide(event=event):
                return await self._decide(event)
            case rules.PutFinalizer(epoch=epoch):
                await self._write((cmd.PutFinalizer(epoch.attempt, epoch.pod_uid),))
            case rules.TakeFinalizer(epoch=epoch):
                await self._write((cmd.TakeFinalizer(epoch.attempt, epoch.pod_uid),))
            case _ as unreachable:
                assert_never(unreachable)
        return True

    def _settled(self) -> None:
        """Nothing to do: a Ready function that may expire is watched for idleness from here on."""
        run, local = self.view.run, self.local
        if run is None or local is None or run.spec.idle_timeout_ms is None:
            return
        if run.phase is Phase.READY and local.serves and not local.idle:
            self.jobs.watch_idleness(run.spec.idle_timeout_ms, fresh=self._became_ready)
            self._became_ready = False

    async def _decide(self, event: Event) -> bool:
        assert self.view.run is not None
        outcome = self.view.decided(event)
        if outcome.refusal is not None:
            return False
        if not isinstance(event, Claimed):
            self._became_ready = isinstance(event, FunctionRegistered)
            await self._carry_out(outcome.commands)
            return True
        # The slot is taken before the first await, so that two claims never meet in one slot.
        self.local = Local(event.epoch, self.view.run.spec.mode, Stage.CLAIMED, requests=self.view.run.spec.requests)
        self._starting = False
        if not await self._write(outcome.commands) and not self._claim_landed(event.epoch):
            self._drop()
        return True

    def _claim_landed(self, epoch: Epoch) -> bool:
        run = self.view.run
        return run is not None and run.epoch == epoch and run.phase in (Phase.REGISTERING, Phase.RUNNING)

    async def _carry_out(self, commands: Sequence[cmd.Command]) -> None:
        """Close first, then write, then remember what the write makes of the epoch here."""
        local = self.local
        for command in commands:
            if isinstance(command, cmd.CloseEpoch) and local is not None:
                self.jobs.shut_gate()
                await self.jobs.end_preparation()
                await self._tools.link.close_epoch(command.epoch, local.mode)
        if not await self._write(commands):
            return
        if any(isinstance(command, cmd.ReleaseEpoch) for command in commands) and self.local is not None:
            self.local = replace(self.local, stage=Stage.CLOSING)

    async def _write(self, commands: Sequence[cmd.Command]) -> bool:
        """Send what belongs to the API, both endpoints at once; Events only of what has been written."""
        obj, run = self.view.obj, self.view.run
        if obj is None or run is None:
            return False
        calls: list[Awaitable[RunObject | None]] = []
        for command in commands:
            match command:
                case cmd.PatchStatus():
                    calls.append(self._tools.writes.status(run, command))
                case cmd.PutFinalizer():
                    calls.append(self._tools.writes.put_finalizer(obj, command))
                case cmd.TakeFinalizer() if self.local is None or self.local.cleared:
                    calls.append(self._tools.writes.take_finalizer(obj, command))
                case _:
                    pass  # a task's finalizer waits for its local state; what is no write is not for here
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failed: list[KubeError] = []
        for answer in answers:
            if isinstance(answer, KubeError):
                failed.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer is None:
                self.removed()
            else:
                self.observe(answer)
        if failed:
            await self._refused(failed[0])
            return False
        self._backoff.reset()
        self._refusals = 0
        for command in commands:
            if isinstance(command, cmd.EmitEvent):
                kind = "Warning" if command.warning else "Normal"
                self._tools.recorder.emit(obj, kind, command.reason.value, command.message)
        return True

    async def _refused(self, error: KubeError) -> None:
        """Read again before deciding anew: the first time at once, then ever later."""
        self._refusals += 1
        expected = not error.retryable and self._refusals < REFUSALS_EXPECTED  # somebody was faster
        level = logging.DEBUG if expected else logging.WARNING
        _log.log(level, "a write was not taken: %s", error, extra={"run": self.uid})
        while self.view.obj is not None:
            await self._backoff.pause_after_first()
            metadata = self.view.obj.metadata
            try:
                current = await self._tools.writes.read(metadata.namespace, metadata.name, metadata.uid)
            except KubeError as unreadable:
                _log.warning("the Run cannot be read: %s", unreadable, extra={"run": self.uid})
                continue
            self.removed() if current is None else self.observe(current)
            return

    async def _adopt(self) -> bool:
        run = self.view.run
        assert run is not None
        assert run.epoch is not None
        try:
            held = await self._held(run, run.epoch)
        except ServerLost:
            return False  # its next Hello wakes us
        if self.view.run is not run:
            return True  # changed meanwhile: look again
        room = self._pod.room(self.uid, run.spec.requests) is Room.FREE
        found = adoption.adopt(
            run.phase,
            run.spec.mode,
            held,
            starting=self._starting,
            server_younger=self._server_younger(run),
            room=room,
        )
        self._starting = False
        message = "" if found.reason is None else found.reason.info.sentence
        self.local = Local(
            run.epoch,
            run.spec.mode,
            found.stage,
            requests=run.spec.requests,
            registration_id=held.registration_id if held is not None else "",
            started=found.stage is Stage.OPEN,
            dispatched=held is not None and run.spec.mode is Mode.TASK,
            cleared=found.cleared,
            reason=found.reason,
            message=message,
        )
        self.jobs.open_gate()
        _log.info("took up %s as %s", run.phase, found.stage, extra={"run": self.uid, "attempt": run.epoch.attempt})
        if found.stage is Stage.OPEN:
            self.jobs.watch()
        return True

    async def _held(self, run: Run, epoch: Epoch) -> adoption.Held | None:
        entry = (await self._tools.link.held()).get(epoch)
        if entry is None:
            return None
        if run.spec.mode is Mode.FUNCTION or entry.open:
            return adoption.Held(entry.open, entry.registration_id)
        exited = await self._tools.link.task_exit(epoch)  # closed: it has ended, or was told to
        return adoption.Held(exited is not None and not exited.cancelled)

    def _server_younger(self, run: Run) -> bool:
        """Whether the Runtime Server started after the claim: one is on the boot clock, the other on the wall's."""
        hello, claimed_us = self._tools.link.hello, run.status.start_us
        if hello is None or claimed_us is None:
            return False
        age_us = int(self._tools.clock.monotonic() * 1_000_000) - hello.started_boottime_us
        return self._tools.clock.now_us() - age_us > claimed_us

    def enter(self, stage: Stage, reason: Reason | None = None, message: str = "") -> None:
        """Move the local stage; away from OPEN and CLAIMED no call gets in any more."""
        assert self.local is not None
        if stage not in (Stage.OPEN, Stage.CLAIMED):
            self.jobs.shut_gate()
        text = message or (reason.info.sentence if reason is not None else "")
        self.local = replace(self.local, stage=stage, reason=reason, message=text)
        self.wake()

    def _drop(self) -> None:
        self.local = None
        self.jobs.new_epoch()
        self._pod.slot_freed()
