"""What a Pod does next for one Run: facts in, action out, as tables (L2, L7)."""

from typing import Any

import pytest
from msgspec.structs import replace

from dataplane.runtimed.decide import (
    NOTHING,
    Action,
    Adopt,
    Clear,
    Decide,
    Drop,
    Enter,
    Host,
    Prepare,
    PutFinalizer,
    TakeFinalizer,
    decide,
)
from dataplane.runtimed.local import Local, Stage
from dataplane.runtimed.slots import Room
from statemachine import events as ev
from statemachine.commands import Timer
from statemachine.events import Role
from statemachine.reasons import Reason
from statemachine.run import Condition, Epoch, Mode, Phase, PodUID, Release, Run, RunSpec, RunUID, Status, Target
from statemachine.run import TaskResult as Result
from statemachine.step import step

NOW = 1_000_000
ME = PodUID("pod-1")
EPOCH = Epoch(RunUID("u"), 1, ME)
HOST = Host(pod_uid=ME)


def run(phase: Phase, mode: Mode = Mode.FUNCTION, **more: Any) -> Run:
    status = Status(phase=phase, attempt=1, pod_name="p", pod_uid=ME, start_us=1, ready=more.pop("ready", None))
    if phase is Phase.PENDING:
        status = Status(phase=phase, attempt=1)
    if phase is Phase.RELEASING:
        status = replace(status, release=Release(Target.CANCELLED, Reason.CANCELLED))
    spec = RunSpec(runtime="python", mode=mode, lifetime_ms=1)
    return Run(RunUID("u"), "default", "f", spec, status, finalizer=more.pop("finalizer", True), **more)


def local(stage: Stage, mode: Mode = Mode.FUNCTION, **more: Any) -> Local:
    return Local(EPOCH, mode, stage, **more)


def act(seen: Run | None, known: Local | None, host: Host = HOST, **more: Any) -> Action:
    room, due = more.pop("room", Room.FREE), more.pop("due", set())
    return decide(seen, known, host, room=room, due=due, at_us=NOW, url="https://x")


CLAIM = Decide(ev.Claimed(at_us=NOW, epoch=EPOCH))
OTHER = replace(run(Phase.SCHEDULED), status=replace(run(Phase.SCHEDULED).status, pod_uid=PodUID("pod-2")))


@pytest.mark.parametrize(
    ("seen", "host", "room", "expected"),
    [
        (run(Phase.SCHEDULED), HOST, Room.FREE, CLAIM),
        (OTHER, HOST, Room.FREE, NOTHING),
        (run(Phase.SCHEDULED), HOST, Room.LATER, NOTHING),
        (run(Phase.SCHEDULED), replace(HOST, server_up=False), Room.FREE, NOTHING),
        (run(Phase.SCHEDULED), replace(HOST, fresh=False), Room.FREE, NOTHING),
        (run(Phase.SCHEDULED, deleting=True), HOST, Room.FREE, NOTHING),
        (run(Phase.SCHEDULED, cancel_requested=True), HOST, Room.FREE, NOTHING),
        (run(Phase.REGISTERING), HOST, Room.FREE, Adopt()),
        (run(Phase.READY), replace(HOST, server_up=False), Room.FREE, NOTHING),
        (run(Phase.FAILED), HOST, Room.FREE, TakeFinalizer(EPOCH)),
        (run(Phase.FAILED, finalizer=False), HOST, Room.FREE, NOTHING),
        (None, HOST, Room.FREE, NOTHING),
    ],
)
def test_a_run_that_is_unknown_here(seen: Run | None, host: Host, room: Room, expected: Action) -> None:
    assert act(seen, None, host, room=room) == expected


@pytest.mark.parametrize(("host", "room"), [(replace(HOST, draining=True), Room.FREE), (HOST, Room.FULL)])
def test_a_binding_that_cannot_be_served_is_refused(host: Host, room: Room) -> None:
    action = act(run(Phase.SCHEDULED), None, host, room=room)
    assert isinstance(action, Decide)
    assert isinstance(action.event, ev.BindingRefused)


DRAINING = replace(HOST, draining=True)
CLAIMED, OPEN = local(Stage.CLAIMED), local(Stage.OPEN)


@pytest.mark.parametrize(
    ("seen", "known", "host", "due", "expected"),
    [
        # a claim
        (run(Phase.REGISTERING), CLAIMED, HOST, set(), Prepare()),
        (run(Phase.REGISTERING, finalizer=False), CLAIMED, HOST, set(), PutFinalizer(EPOCH)),
        (run(Phase.REGISTERING), replace(CLAIMED, started=True), HOST, set(), NOTHING),
        (run(Phase.REGISTERING), CLAIMED, replace(HOST, server_up=False), set(), NOTHING),
        (run(Phase.RUNNING, Mode.TASK), local(Stage.CLAIMED, Mode.TASK), replace(HOST, fresh=False), set(), NOTHING),
        (run(Phase.REGISTERING), CLAIMED, DRAINING, set(), Enter(Stage.GIVEN_UP, Reason.POD_DRAINING)),
        (
            run(Phase.REGISTERING),
            replace(CLAIMED, started=True),
            HOST,
            {Timer.REGISTRATION},
            Enter(Stage.FAILED, Reason.REGISTRATION_TIMED_OUT),
        ),
        (run(Phase.READY), CLAIMED, HOST, set(), Enter(Stage.GIVEN_UP, Reason.REGISTRATION_LOST)),
        # what serves
        (
            run(Phase.REGISTERING),
            OPEN,
            HOST,
            set(),
            Decide(ev.FunctionRegistered(at_us=NOW, epoch=EPOCH, endpoint_url="https://x")),
        ),
        (run(Phase.READY), OPEN, HOST, set(), NOTHING),
        (run(Phase.READY), OPEN, DRAINING, set(), Enter(Stage.GIVEN_UP, Reason.POD_DRAINING)),
        (run(Phase.READY, deleting=True), OPEN, HOST, set(), Decide(ev.DeletionRequested(at_us=NOW))),
        (run(Phase.READY, cancel_requested=True), OPEN, HOST, set(), Decide(ev.CancelRequested(at_us=NOW))),
        (
            run(Phase.READY),
            OPEN,
            HOST,
            {Timer.LIFETIME},
            Decide(ev.LifetimeExpired(at_us=NOW, epoch=EPOCH)),
        ),
        (run(Phase.READY), replace(OPEN, idle=True), HOST, set(), Decide(ev.IdleExpired(at_us=NOW, epoch=EPOCH))),
        # tasks
        (run(Phase.RUNNING, Mode.TASK), local(Stage.OPEN, Mode.TASK, dispatched=True), DRAINING, set(), NOTHING),
        (
            run(Phase.RUNNING, Mode.TASK, cancel_requested=True),
            local(Stage.OPEN, Mode.TASK, dispatched=True, result=Result(exit_code=0)),
            HOST,
            set(),
            Decide(ev.TaskExited(at_us=NOW, epoch=EPOCH, result=Result(exit_code=0))),
        ),
        # a release
        (run(Phase.RELEASING), local(Stage.CLOSING), HOST, set(), Clear()),
        (
            run(Phase.RELEASING),
            local(Stage.CLOSING, cleared=True),
            HOST,
            set(),
            Decide(ev.Released(at_us=NOW, epoch=EPOCH)),
        ),
        # a failure: local state first
        (run(Phase.REGISTERING), local(Stage.FAILED, reason=Reason.IMPORT_FAILED), HOST, set(), Clear()),
        (
            run(Phase.REGISTERING),
            local(Stage.FAILED, reason=Reason.IMPORT_FAILED, message="m", cleared=True),
            HOST,
            set(),
            Decide(ev.RegistrationFailed(at_us=NOW, epoch=EPOCH, reason=Reason.IMPORT_FAILED, message="m")),
        ),
        (
            run(Phase.READY),
            local(Stage.FAILED, reason=Reason.RUNTIME_SERVER_ERROR),
            HOST,
            set(),
            Enter(Stage.GIVEN_UP, Reason.REGISTRATION_LOST),
        ),
        # the epoch is over
        (None, OPEN, HOST, set(), Clear()),
        (None, local(Stage.OPEN, cleared=True), HOST, set(), Drop()),
        (run(Phase.PENDING), OPEN, HOST, set(), Clear()),
        (run(Phase.PENDING), local(Stage.GIVEN_UP, cleared=True), HOST, set(), Drop()),
        (run(Phase.SUCCEEDED, Mode.TASK), local(Stage.OPEN, Mode.TASK), HOST, set(), Clear()),
        (
            run(Phase.SUCCEEDED, Mode.TASK),
            local(Stage.OPEN, Mode.TASK, cleared=True),
            HOST,
            set(),
            TakeFinalizer(EPOCH),
        ),
        (run(Phase.CANCELLED, finalizer=False), local(Stage.CLOSING, cleared=True), HOST, set(), Drop()),
    ],
)
def test_a_run_that_is_known_here(
    seen: Run | None, known: Local, host: Host, due: set[Timer], expected: Action
) -> None:
    assert act(seen, known, host, due=due) == expected


@pytest.mark.parametrize(
    ("phase", "reason", "event"),
    [
        (Phase.REGISTERING, Reason.NO_SLOT_HERE, ev.NoSlotHere),
        (Phase.REGISTERING, Reason.REGISTRATION_LOST, ev.NoSlotHere),
        (Phase.REGISTERING, Reason.POD_DRAINING, ev.PodDraining),
        (Phase.READY, Reason.NO_SLOT_HERE, ev.RegistrationLost),
        (Phase.READY, Reason.REGISTRATION_LOST, ev.RegistrationLost),
        (Phase.READY, Reason.POD_DRAINING, ev.PodDraining),
    ],
)
def test_a_given_up_epoch_goes_back_by_the_row_of_its_phase(phase: Phase, reason: Reason, event: type) -> None:
    action = act(run(phase), local(Stage.GIVEN_UP, reason=reason))
    assert isinstance(action, Decide)
    assert isinstance(action.event, event)
    assert step(run(phase), action.event, Role.RUNTIMED).refusal is None


def test_an_unreachable_owner_says_that_it_is_heard_only_when_its_pod_is_ready() -> None:
    silent = run(Phase.READY, ready=Condition(False, Reason.OWNER_UNREACHABLE))
    assert act(silent, OPEN) == Decide(ev.OwnerHeard(at_us=NOW, epoch=EPOCH))
    assert act(silent, OPEN, replace(HOST, heard=False)) == NOTHING
    assert act(silent, OPEN, replace(HOST, fresh=False)) == NOTHING


def test_every_decision_is_one_that_the_table_lets_runtimed_make() -> None:
    """Every combination of phase, stage and request: what is decided is a legal row, or the very guard says why not."""
    for phase in (Phase.SCHEDULED, Phase.REGISTERING, Phase.READY, Phase.RUNNING, Phase.RELEASING):
        for mode in Mode:
            if (phase is Phase.RUNNING) != (mode is Mode.TASK) and phase not in (Phase.SCHEDULED, Phase.RELEASING):
                continue
            for known in (None, *(local(stage, mode, reason=_reason(mode)) for stage in Stage)):
                for more in ({}, {"deleting": True}, {"cancel_requested": True}):
                    for host in (HOST, DRAINING):
                        for cleared in (False, True):
                            here = None if known is None else replace(known, cleared=cleared)
                            if phase is Phase.SCHEDULED and here is not None:
                                continue
                            seen = run(phase, mode, **more)
                            action = act(seen, here, host, due={Timer.LIFETIME} if mode is Mode.TASK else set())
                            if isinstance(action, Decide):
                                outcome = step(seen, action.event, Role.RUNTIMED)
                                assert outcome.refusal is None, (seen, here, action)


def _reason(mode: Mode) -> Reason:
    return Reason.TASK_LOST if mode is Mode.TASK else Reason.IMPORT_FAILED
