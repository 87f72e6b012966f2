"""What each kind of decision writes: the whole outcome, so that an added field shows."""

import pytest
from msgspec.structs import replace

from statemachine import commands as cmd
from statemachine import events as ev
from statemachine.effects import backoff_ms, clip
from statemachine.events import Role
from statemachine.reasons import Reason
from statemachine.run import Condition, Mode, Phase, Release, Run, Status, Target, TaskResult
from statemachine.step import step
from tests.statemachine.samples import DECISIONS, EPOCH, NOW, POD, run_in

CP, RD = Role.CONTROL_PLANE, Role.RUNTIMED


def patches(commands: tuple[cmd.Command, ...]) -> list[Status]:
    return [command.status for command in commands if isinstance(command, cmd.PatchStatus)]


def kinds(commands: tuple[cmd.Command, ...]) -> list[str]:
    return [type(command).__name__ for command in commands]


def test_binding_writes_one_patch_that_only_holds_for_the_pending_run() -> None:
    outcome = step(run_in(Phase.PENDING), DECISIONS[ev.Bound](), CP)
    status = Status(
        phase=Phase.SCHEDULED,
        attempt=1,
        pod_name="a",
        pod_uid=POD,
        scheduled=Condition(True, Reason.BOUND, since_us=NOW),
    )
    assert outcome.commands == (
        cmd.PatchStatus(cmd.Guard(Phase.PENDING, 0, None), status),
        cmd.EmitEvent(False, Reason.BOUND, "Assigned to Pod a, attempt 1"),
    )


def test_a_claim_puts_the_finalizer_on_first_and_only_when_it_is_missing() -> None:
    fresh = step(run_in(Phase.SCHEDULED), DECISIONS[ev.Claimed](), RD)
    assert kinds(fresh.commands) == ["PutFinalizer", "PatchStatus"]
    again = step(run_in(Phase.SCHEDULED, finalizer=True), DECISIONS[ev.Claimed](), RD)
    assert kinds(again.commands) == ["PatchStatus"]
    assert fresh.run == again.run


def test_ready_zeroes_failures_and_tells_the_condition() -> None:
    run = run_in(Phase.REGISTERING)
    run = replace(run, status=replace(run.status, failures=2))
    (status,) = patches(step(run, DECISIONS[ev.FunctionRegistered](), RD).commands)
    assert (status.phase, status.failures, status.ready_us) == (Phase.READY, 0, NOW)
    assert status.ready == Condition(True, Reason.FUNCTION_REGISTERED, since_us=NOW)
    assert status.endpoint_url == "https://gateway/run"


def test_a_failed_registration_backs_off_and_the_last_one_is_failed_with_the_exception() -> None:
    run = run_in(Phase.REGISTERING)
    first = step(run, DECISIONS[ev.RegistrationFailed](), RD)
    (status,) = patches(first.commands)
    assert (status.phase, status.failures, status.next_attempt_us) == (Phase.PENDING, 1, NOW + 1_000_000)
    assert status.scheduled == Condition(False, Reason.BACKING_OFF, "ValueError: no", NOW)
    assert (status.pod_uid, status.start_us) == (None, None)
    last = step(replace(run, status=replace(run.status, failures=2)), DECISIONS[ev.RegistrationFailed](), RD)
    (status,) = patches(last.commands)
    assert (status.phase, status.failures, status.reason) == (Phase.FAILED, 3, Reason.IMPORT_FAILED)
    assert status.ready == Condition(False, Reason.IMPORT_FAILED, "ValueError: no", NOW)
    assert status.pod_uid == POD
    assert kinds(last.commands) == ["PatchStatus", "EmitEvent", "TakeFinalizer"]


@pytest.mark.parametrize("reason", [Reason.SOURCE_INVALID, Reason.HANDLER_NOT_FOUND])
def test_what_cannot_get_better_is_not_retried_unless_the_policy_names_it(reason: Reason) -> None:
    run = run_in(Phase.REGISTERING)
    event = replace(DECISIONS[ev.RegistrationFailed](), reason=reason)
    assert step(run, event, RD).run.phase is Phase.FAILED
    named = replace(run, spec=replace(run.spec, retryable_reasons=(reason.value,)))
    assert step(named, event, RD).run.phase is Phase.PENDING
    assert step(named, DECISIONS[ev.RegistrationFailed](), RD).run.phase is Phase.FAILED


@pytest.mark.parametrize(("failures", "expected"), [(1, 1000), (2, 2000), (6, 32_000), (7, 60_000), (99, 60_000)])
def test_backoff_doubles_up_to_a_minute(failures: int, expected: int) -> None:
    assert backoff_ms(1000, failures) == expected


def test_a_move_counts_no_failure_and_closes_the_epoch_before_the_patch() -> None:
    outcome = step(run_in(Phase.READY), DECISIONS[ev.PodDraining](), RD)
    assert kinds(outcome.commands) == ["CloseEpoch", "PatchStatus", "EmitEvent"]
    (status,) = patches(outcome.commands)
    assert (status.failures, status.next_attempt_us, status.endpoint_url) == (0, None, None)
    assert status.ready == Condition(False, Reason.POD_DRAINING, Reason.POD_DRAINING.info.sentence, NOW)


def test_a_release_closes_the_epoch_writes_and_then_releases() -> None:
    outcome = step(run_in(Phase.READY), DECISIONS[ev.IdleExpired](), RD)
    assert kinds(outcome.commands) == ["CloseEpoch", "PatchStatus", "EmitEvent", "ReleaseEpoch"]
    assert outcome.run.status.release == Release(Target.TIMEOUT, Reason.IDLE_TIMEOUT)


@pytest.mark.parametrize(
    ("deleting", "cancelled", "phase", "reason"),
    [
        (False, False, Phase.TIMEOUT, Reason.IDLE_TIMEOUT),
        (False, True, Phase.CANCELLED, Reason.CANCELLED),
        (True, False, Phase.GONE, None),
        (True, True, Phase.GONE, None),
    ],
)
def test_a_released_run_becomes_the_strongest_of_what_is_wanted(
    deleting: bool, cancelled: bool, phase: Phase, reason: Reason | None
) -> None:
    run = run_in(Phase.RELEASING, deleting=deleting, cancel_requested=cancelled)
    outcome = step(run, DECISIONS[ev.Released](), RD)
    assert outcome.run.phase is phase
    assert [status.reason for status in patches(outcome.commands)] == ([reason] if reason else [])
    assert outcome.commands[-1] == cmd.TakeFinalizer(1, POD)


def test_a_foreign_finalizer_keeps_a_released_run_without_pod_slot_or_endpoint() -> None:
    run = run_in(Phase.RELEASING, deleting=True, foreign_finalizer=True)
    outcome = step(run, DECISIONS[ev.Released](), RD)
    (status,) = patches(outcome.commands)
    assert (status.phase, status.pod_uid, status.endpoint_url) == (Phase.RELEASING, None, None)
    assert status.release == Release(Target.GONE, Reason.DELETED)
    assert not outcome.run.holds_slot
    assert outcome.commands[-1] == cmd.TakeFinalizer(1, None)


def test_a_task_result_is_in_the_patch_of_its_phase() -> None:
    result = TaskResult(exit_code=0, outputs=(("answer", "42"),))
    event = replace(DECISIONS[ev.TaskExited](), result=result)
    (status,) = patches(step(run_in(Phase.RUNNING, Mode.TASK), event, RD).commands)
    assert (status.phase, status.reason, status.result) == (Phase.SUCCEEDED, Reason.COMPLETED, result)


def test_a_lost_task_counts_as_a_failure() -> None:
    run = run_in(Phase.RUNNING, Mode.TASK)
    assert step(run, DECISIONS[ev.AssignmentLost](), CP).run.status.failures == 1
    last = replace(run, spec=replace(run.spec, max_attempts=1))
    outcome = step(last, DECISIONS[ev.AssignmentLost](), CP)
    assert (outcome.run.phase, outcome.run.status.reason) == (Phase.FAILED, Reason.TASK_LOST)


def test_cancel_and_timeout_emit_no_warning() -> None:
    for run, event, role in [
        (run_in(Phase.PENDING, cancel_requested=True), DECISIONS[ev.CancelRequested](), CP),
        (run_in(Phase.READY, cancel_requested=True), DECISIONS[ev.CancelRequested](), RD),
        (run_in(Phase.RELEASING), DECISIONS[ev.Released](), RD),
        (run_in(Phase.READY), DECISIONS[ev.LifetimeExpired](), RD),
    ]:
        notes = [c for c in step(run, event, role).commands if isinstance(c, cmd.EmitEvent)]
        assert notes
        assert not any(note.warning for note in notes)


def test_a_condition_keeps_its_transition_time_while_its_status_stays() -> None:
    run = run_in(Phase.PENDING)
    waiting = step(run, DECISIONS[ev.Waiting](), CP).run
    later = step(waiting, ev.Waiting(at_us=NOW + 5, reason=Reason.NEVER_FITS), CP).run
    assert later.status.scheduled == Condition(False, Reason.NEVER_FITS, "", NOW)
    assert step(later, ev.Waiting(at_us=NOW + 9, reason=Reason.NEVER_FITS), CP).refusal is not None


def test_messages_are_cut_at_a_character_within_the_bound() -> None:
    assert clip("short") == "short"
    assert len(clip("é" * 1000).encode()) <= 1024
    assert clip("é" * 1000).endswith("…")


def test_timers_follow_the_state_and_are_dropped_with_it() -> None:
    scheduled = run_in(Phase.SCHEDULED)
    armed = step(run_in(Phase.PENDING), ev.Observed(at_us=NOW, run=scheduled), CP)
    assert armed.commands == (cmd.SetTimer(cmd.Timer.CLAIM, NOW + 30_000_000),)
    assert step(scheduled, ev.Observed(at_us=NOW + 1, run=scheduled), CP).commands == ()
    claimed = step(scheduled, ev.Observed(at_us=NOW, run=run_in(Phase.REGISTERING)), CP)
    assert claimed.commands == (cmd.DropTimer(cmd.Timer.CLAIM),)
    registering = run_in(Phase.REGISTERING)
    owed = step(scheduled, ev.Observed(at_us=NOW, run=registering), RD)
    assert kinds(owed.commands) == ["Register", "SetTimer", "SetTimer"]
    ready: Run = run_in(Phase.READY)
    after = step(registering, ev.Observed(at_us=NOW, run=ready), RD)
    assert after.commands[0] == cmd.DropTimer(cmd.Timer.REGISTRATION)
    assert ready.epoch == EPOCH
