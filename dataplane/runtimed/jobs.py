"""What goes on in the background for one epoch: preparing, watching, waiting for idleness, clearing; and its gate.

Each job ends by changing the worker's local facts and waking it; none writes to the API. At most one of each kind runs.
Next: `worker.py` starts and ends them.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from dataplane.runtimed import results
from dataplane.runtimed.alarms import Alarm
from dataplane.runtimed.artifacts import TASK_UPLOAD_MAX_S, ArtifactsRefused, UploadFailed
from dataplane.runtimed.failures import EpochClosed, PreparationFailed, ServerLost
from dataplane.runtimed.gate import Gate
from dataplane.runtimed.local import Local, Stage
from dataplane.runtimed.ports import Pod, Tools
from runtimes.contract.messages import ArtifactRef
from statemachine.commands import Timer
from statemachine.reasons import Reason
from statemachine.run import REGISTRATION_TIMEOUT_MS, Epoch, Mode, Phase

if TYPE_CHECKING:
    from dataplane.runtimed.worker import Worker

DRAIN_MS: Final = 10_000  # what calls in flight get when their Run is released (L12)
RELEASE_MAX_S: Final = 25.0  # drain, kill and removal; a server that takes longer hangs and is condemned (R5)
WATCH_AGAIN_S: Final = 0.05  # a server that drains refuses at once; asking it again at once would never yield
CLEAR_AGAIN_S: Final = 1.0  # after a defect of ours ended a clearing: a slot is never kept by one
CALLS_LEAVE_S: Final = 5.0  # between the server's last answer and the last call's way out through the gate

_log = logging.getLogger(__name__)


class Jobs:
    """`due` holds the timers that have fired for the epoch in force. `gate` is there while calls may be inside."""

    def __init__(self, worker: "Worker", tools: Tools, pod: Pod) -> None:
        self.due: set[Timer] = set()
        self.gate: Gate | None = None
        self._worker = worker
        self._tools = tools
        self._pod = pod
        self._alarms: dict[Timer, Alarm] = {}
        self._idle_alarm = Alarm(tools.clock, tools.call_later, self._idle_rang)
        self._preparing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._idling: asyncio.Task[None] | None = None

    # --- timers

    def new_epoch(self) -> None:
        """Timers of an epoch that is over say nothing about the next one."""
        self.due.clear()
        for alarm in (*self._alarms.values(), self._idle_alarm):
            alarm.drop()

    def set_timer(self, timer: Timer, due_us: int) -> None:
        """Arm it; a moment that has passed is due at once."""
        if due_us <= self._tools.clock.now_us():
            self.due.add(timer)
            return
        if timer not in self._alarms:
            self._alarms[timer] = Alarm(self._tools.clock, self._tools.call_later, lambda: self._rang(timer))
        self._alarms[timer].set(due_us)

    def drop_timer(self, timer: Timer) -> None:
        """Disarm it."""
        self.due.discard(timer)
        if timer in self._alarms:
            self._alarms[timer].drop()

    def _rang(self, timer: Timer) -> None:
        self.due.add(timer)
        self._worker.wake()

    # --- the gate

    def open_gate(self) -> None:
        """A gate for the epoch; shut unless it serves."""
        self.gate = Gate()
        local = self._worker.local
        if local is None or not local.serves:
            self.gate.shut()

    def shut_gate(self) -> None:
        """No new calls."""
        if self.gate is not None:
            self.gate.shut()

    # --- preparing

    def prepare(self) -> None:
        """Source, then registration or execution."""
        assert self._worker.local is not None
        assert self._preparing is None, "one preparation an epoch"
        self._worker.local = replace(self._worker.local, started=True)
        self._preparing = self._spawn(self._prepare(self._worker.local), "prepare")

    async def end_preparation(self) -> None:
        """End it, if it runs: when this returns nothing more is registered or handed over by it."""
        job, self._preparing = self._preparing, None
        await _end(job)

    async def _prepare(self, local: Local) -> None:
        worker = self._worker
        obj, run = worker.view.obj, worker.view.run
        assert obj is not None
        assert run is not None
        try:
            if local.mode is Mode.FUNCTION:
                registration_id = await self._tools.preparation.register(
                    obj,
                    local.epoch,
                    idle_timeout_ms=run.spec.idle_timeout_ms,
                    timeout=self._time_left_s(run.status.start_us),
                )
            else:
                registration_id = ""
                if not await self._tools.preparation.execute(obj, local.epoch, may_dispatch=self._may_dispatch):
                    self._revert(local)
                    return
        except EpochClosed:
            worker.enter(Stage.GIVEN_UP, Reason.NO_SLOT_HERE)
        except PreparationFailed as error:
            worker.enter(Stage.FAILED, error.reason, error.message)
        except ServerLost as error:
            task = local.mode is Mode.TASK
            reason = Reason.TASK_LOST if task else Reason.RUNTIME_SERVER_ERROR
            worker.enter(Stage.FAILED, reason, f"the Runtime Server died while it was asked to start the code: {error}")
        else:
            assert worker.local is not None
            worker.local = replace(worker.local, stage=Stage.OPEN, registration_id=registration_id)
            self.open_gate()
            self.watch()
            worker.wake()

    def _time_left_s(self, start_us: int | None) -> float:
        now_us = self._tools.clock.now_us()
        spent_us = max(0, now_us - (start_us if start_us is not None else now_us))
        return max(0.0, REGISTRATION_TIMEOUT_MS / 1000 - spent_us / 1_000_000)

    def _may_dispatch(self) -> bool:
        """The lease, asked at the last moment; from a yes on the task counts as handed over."""
        local, host = self._worker.local, self._pod.host()
        if local is None or local.stage is not Stage.CLAIMED or not host.fresh or host.draining:
            return False
        self._worker.local = replace(local, dispatched=True)
        return True

    def _revert(self, local: Local) -> None:
        """Nothing was handed over: it is prepared again when the lease holds, or given up when the Pod drains."""
        self._preparing = None
        if self._worker.local is not None and self._worker.local.epoch == local.epoch:
            self._worker.local = replace(self._worker.local, started=False)
        self._worker.wake()

    # --- watching what runs

    def watch(self) -> None:
        """Learn of a lost registration, or of a task's end."""
        local = self._worker.local
        assert local is not None
        self._watching = self._spawn(self._watch(local), "watch")

    async def _watch(self, local: Local) -> None:
        link = self._tools.link
        while True:
            instance = link.instance
            try:
                if local.mode is Mode.FUNCTION:
                    why = await link.function_loss(local.registration_id)
                    if self._idling is not None:  # it may be closed by our own question whether it is idle
                        await asyncio.wait((self._idling,))
                    self._lost(local.epoch, why)
                    return
                exited = await link.task_exit(local.epoch)
            except ServerLost:
                if await link.settled() != instance:
                    return  # the daemon tells every worker that the server has died
                await asyncio.sleep(WATCH_AGAIN_S)
                continue
            stored, trouble = await self._store(local.epoch, exited)
            self._exited(local.epoch, exited, stored, trouble)
            return

    async def _store(self, epoch: Epoch, exited: results.Exit | None) -> tuple[tuple[ArtifactRef, ...], str]:
        """Store what a task left, before its end is written: the references, or why there are none."""
        if exited is None or exited.cancelled or exited.artifacts_error or not exited.artifacts:
            return (), "" if exited is None else exited.artifacts_error
        try:
            return await self._tools.artifacts.keep(epoch, exited.artifacts, timeout=TASK_UPLOAD_MAX_S), ""
        except (ArtifactsRefused, UploadFailed) as error:
            return (), str(error)

    def _lost(self, epoch: Epoch, why: str) -> None:
        worker = self._worker
        local = worker.local
        if local is None or local.epoch != epoch or local.stage is not Stage.OPEN or local.idle:
            return
        if worker.view.run is not None and worker.view.run.phase is Phase.REGISTERING:
            worker.enter(Stage.FAILED, Reason.RUNTIME_SERVER_ERROR, why)
        else:
            worker.enter(Stage.GIVEN_UP, Reason.REGISTRATION_LOST, why)

    def _exited(self, epoch: Epoch, exited: results.Exit | None, stored: tuple[ArtifactRef, ...], trouble: str) -> None:
        worker = self._worker
        local = worker.local
        if local is None or local.epoch != epoch or local.stage is not Stage.OPEN:
            return
        if exited is None:
            worker.enter(Stage.FAILED, Reason.TASK_LOST, "the Runtime Server does not know the task any more")
        elif not exited.cancelled:  # a cancelled one ends by whoever asked for it
            failure, message = results.failure(exited)
            if failure is None and trouble:
                failure, message = Reason.ARTIFACT_UPLOAD_FAILED, trouble
            worker.local = replace(local, result=results.result(exited, stored), reason=failure, message=message)
            worker.wake()

    # --- idleness

    def watch_idleness(self, idle_ms: int, *, fresh: bool) -> None:
        """Arm the idle alarm once. `fresh`: Ready was written just now, and the clock starts there (L5)."""
        if self._idle_alarm.armed or self._idling is not None:
            return
        if fresh:
            self._idling = self._spawn(self._restart_idle(idle_ms), "idle")
        else:
            self._idle_alarm.set(self._tools.clock.now_us())

    async def _restart_idle(self, idle_ms: int) -> None:
        assert self._worker.local is not None
        await self._tools.link.restart_idle(self._worker.local.registration_id)
        self._idling = None
        self._idle_alarm.set(self._tools.clock.now_us() + idle_ms * 1000)

    def _idle_rang(self) -> None:
        local, run = self._worker.local, self._worker.view.run
        if local is None or run is None or not local.serves or local.idle or run.spec.idle_timeout_ms is None:
            return
        self._idling = self._spawn(self._try_idle(local, run.spec.idle_timeout_ms), "idle")

    async def _try_idle(self, local: Local, idle_ms: int) -> None:
        """The decision is the server's, atomically; refused, it is asked again when it can first be true."""
        try:
            wait_ms = await self._tools.link.unregister_idle(local.epoch, local.registration_id, idle_ms)
        except ServerLost:
            wait_ms = idle_ms  # if it is dead this registration is lost; else it is asked again
        self._idling = None
        now = self._worker.local
        if now is None or now.epoch != local.epoch or now.stage is not Stage.OPEN:
            return
        if wait_ms:
            self._idle_alarm.set(self._tools.clock.now_us() + wait_ms * 1000)
            return
        self.shut_gate()
        self._worker.local = replace(now, idle=True)
        self._worker.wake()

    # --- clearing

    def clear(self) -> None:
        """Make nothing of the epoch be left here."""
        if self._clearing is not None:
            return
        local = self._worker.local
        assert local is not None
        self.shut_gate()
        if local.stage in (Stage.CLAIMED, Stage.OPEN):
            local = self._worker.local = replace(local, stage=Stage.CLOSING)
        self._clearing = self._spawn(self._clear(local), "clear")

    async def _clear(self, local: Local) -> None:
        worker = self._worker
        await self.end_preparation()
        run = worker.view.run
        released = run is not None and run.phase is Phase.RELEASING and run.epoch == local.epoch
        moving = self._pod.host().draining and not released
        ending = self._tools.link.clear_epoch(local.epoch, local.mode, drain_ms=None if moving else DRAIN_MS)
        if moving:
            await ending
        else:
            await self._bounded(ending)
        if self.gate is not None and not await self.gate.emptied(timeout=CALLS_LEAVE_S):
            _log.error("%d calls did not leave a cleared epoch", self.gate.in_flight, extra={"run": worker.uid})
        await _end(self._watching)
        await self._tools.workdir.release(local.epoch.run_uid, local.epoch.attempt)
        self.gate = self._watching = self._clearing = None
        if worker.local is not None and worker.local.epoch == local.epoch:
            worker.local = replace(worker.local, cleared=True)
        self._pod.slot_freed()
        worker.wake()

    async def _bounded(self, ending: Coroutine[Any, Any, None]) -> None:
        """A server that does not end an epoch in time is condemned: its container is restarted, and that ends it."""
        task = asyncio.ensure_future(ending)
        try:
            done, _ = await asyncio.wait((task,), timeout=RELEASE_MAX_S)
            if not done:
                _log.error("the Runtime Server does not end an epoch", extra={"run": self._worker.uid})
                await self._tools.link.condemn(f"an epoch of Run {self._worker.uid} did not end in time")
            await task
        finally:
            await _end(task)

    # --- the end

    async def stop(self) -> None:
        """End every job; the API and the Runtime Server keep what they have."""
        self.new_epoch()
        for job in (self._preparing, self._watching, self._clearing, self._idling):
            await _end(job)

    def let_go(self) -> None:
        """After the end, when nobody reaches the worker any more: both go at once, with the Run's object. In a cycle
        they would wait for the garbage collector, which looks at old objects once in some thousand Runs."""
        self.new_epoch()
        self._alarms.clear()
        del self._idle_alarm, self._worker

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work, name=f"{name} {self._worker.uid}")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """A job that raises is a defect of ours: said loudly, and the Run is given up rather than left hanging."""
        if task.cancelled() or task.exception() is None:
            return
        _log.error("%s failed", task.get_name(), exc_info=task.exception())
        if task is self._clearing:
            self._clearing = None
            self._tools.call_later(CLEAR_AGAIN_S, self._worker.wake)
            return
        self._idling = None if task is self._idling else self._idling
        local = self._worker.local
        if local is not None and local.stage in (Stage.CLAIMED, Stage.OPEN):
            self._worker.enter(Stage.FAILED, Reason.RUNTIME_SERVER_ERROR, f"a defect of runtimed: {task.exception()!r}")


async def _end(task: "asyncio.Task[None] | None") -> None:
    if task is None or task is asyncio.current_task():
        return
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
