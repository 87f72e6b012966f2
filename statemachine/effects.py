"""What a decision writes: the Run as it will be, and the commands that make it so.

`decide` is called by `step.step` once the table has said yes and where to. It never looks at guards again.
"""

from typing import assert_never

from msgspec.structs import replace

from statemachine import commands as cmd
from statemachine import events as ev
from statemachine.guards import failure_reason, final_target
from statemachine.reasons import Reason
from statemachine.run import (
    BACKOFF_MAX_MS,
    MESSAGE_MAX_BYTES,
    TERMINAL,
    Condition,
    Mode,
    Phase,
    Release,
    Run,
    Status,
    Target,
    TaskResult,
)
from statemachine.text import cut_bytes

Decision = tuple[Run, tuple[cmd.Command, ...]]


def decide(run: Run, event: ev.Event, to: Phase) -> Decision:
    """The effect of a legal event whose row leads to `to`."""
    match event:
        case ev.Waiting(at_us=at, reason=reason, message=message):
            scheduled = condition(run.status.scheduled, at, False, reason, message)
            return _write(run, replace(run.status, scheduled=scheduled))
        case ev.Bound():
            return _bind(run, event)
        case ev.Claimed(at_us=at):
            return _claim(run, at, to)
        case ev.BindingRefused(at_us=at, message=message):
            return _move(run, at, Reason.BINDING_REFUSED, message)
        case ev.ClaimExpired(at_us=at):
            return _move(run, at, Reason.CLAIM_EXPIRED, "")
        case ev.NoSlotHere(at_us=at):
            return _move(run, at, Reason.NO_SLOT_HERE, "")
        case ev.PodDraining(at_us=at):
            return _move(run, at, Reason.POD_DRAINING, "")
        case ev.RegistrationLost(at_us=at, message=message):
            return _move(run, at, Reason.REGISTRATION_LOST, message)
        case ev.FunctionRegistered(at_us=at, endpoint_url=url):
            return _ready(run, at, url)
        case ev.RegistrationFailed(at_us=at, reason=reason, message=message):
            return _fail(run, at, to, reason, message, TaskResult())
        case ev.OwnerSilent(at_us=at, message=message):
            ready = condition(run.status.ready, at, False, Reason.OWNER_UNREACHABLE, message)
            return _write(run, replace(run.status, ready=ready), _note(True, Reason.OWNER_UNREACHABLE, message))
        case ev.OwnerHeard(at_us=at):
            ready = condition(run.status.ready, at, True, Reason.FUNCTION_REGISTERED, "")
            return _write(run, replace(run.status, ready=ready))
        case ev.IdleExpired(at_us=at):
            return _release(run, at, Target.TIMEOUT, Reason.IDLE_TIMEOUT)
        case ev.LifetimeExpired(at_us=at):
            return _release(run, at, Target.TIMEOUT, Reason.LIFETIME_EXCEEDED)
        case ev.CancelRequested(at_us=at):
            if to is Phase.RELEASING:
                return _release(run, at, Target.CANCELLED, Reason.CANCELLED)
            return _finish(run, at, Phase.CANCELLED, Reason.CANCELLED, "", run.status.result)
        case ev.DeletionRequested(at_us=at):
            return _delete(run, at, to)
        case ev.Released(at_us=at):
            return _released(run, at, to)
        case ev.TaskExited(at_us=at, result=result, failure=failure, message=message):
            if failure is None:
                return _finish(run, at, Phase.SUCCEEDED, Reason.COMPLETED, message, result)
            return _fail(run, at, to, failure, message, result)
        case ev.AssignmentLost(at_us=at):
            return _assignment_lost(run, event, at, to)
        case ev.TtlExpired():
            return run, (cmd.DeleteRun(),)
        case ev.Observed() | ev.Removed():
            raise AssertionError("what the API shows is adopted, not decided")
        case _ as unreachable:
            assert_never(unreachable)


def _bind(run: Run, event: ev.Bound) -> Decision:
    status = Status(
        phase=Phase.SCHEDULED,
        attempt=run.status.attempt + 1,
        failures=run.status.failures,
        pod_name=event.pod_name,
        pod_uid=event.pod_uid,
        scheduled=condition(run.status.scheduled, event.at_us, True, Reason.BOUND, ""),
        ready=run.status.ready,
    )
    message = f"Assigned to Pod {event.pod_name}, attempt {status.attempt}"
    return _write(run, status, _note(False, Reason.BOUND, message))


def _claim(run: Run, at_us: int, to: Phase) -> Decision:
    status = run.status
    assert status.pod_uid is not None
    after = replace(status, phase=to, start_us=at_us, reason="", message="")
    claimed, patch = _write(run, after)
    if run.finalizer:
        return claimed, patch
    return replace(claimed, finalizer=True), (cmd.PutFinalizer(status.attempt, status.pod_uid), *patch)


def _ready(run: Run, at_us: int, url: str | None) -> Decision:
    ready = condition(run.status.ready, at_us, True, Reason.FUNCTION_REGISTERED, "")
    status = replace(
        run.status, phase=Phase.READY, reason="", message="", failures=0, endpoint_url=url, ready=ready, ready_us=at_us
    )
    message = f"Function {run.spec.handler} is registered and takes calls"
    return _write(run, status, _note(False, Reason.FUNCTION_REGISTERED, message))


def _move(run: Run, at_us: int, reason: Reason, message: str) -> Decision:
    """Back to Pending without a failure. The shell has closed the epoch where the Run was owned."""
    text = message or reason.info.sentence
    after, patch = _write(run, _unassigned(run, at_us, reason, text, run.status.failures, None))
    close: tuple[cmd.Command, ...] = ()
    if run.epoch is not None and run.phase not in (Phase.SCHEDULED, Phase.PENDING):
        close = (cmd.CloseEpoch(run.epoch),)
    # A drain or a full Pod is business as usual; a Pod that did not answer, or lost what it held, is not.
    warning = reason in (Reason.CLAIM_EXPIRED, Reason.REGISTRATION_LOST)
    return after, (*close, *patch, _note(warning, reason, text))


def _unassigned(run: Run, at_us: int, reason: Reason, text: str, failures: int, next_us: int | None) -> Status:
    why = Reason.BACKING_OFF if next_us is not None else reason
    ready = run.status.ready
    return Status(
        phase=Phase.PENDING,
        reason=reason,
        message=clip(text),
        attempt=run.status.attempt,
        failures=failures,
        scheduled=condition(run.status.scheduled, at_us, False, why, text),
        ready=None if ready is None else condition(ready, at_us, False, reason, text),
        next_attempt_us=next_us,
    )


def _fail(run: Run, at_us: int, to: Phase, reason: Reason, message: str, result: TaskResult) -> Decision:
    failures = run.status.failures + 1
    text = clip(message or reason.info.sentence)
    if to is Phase.PENDING:
        next_us = at_us + backoff_ms(run.spec.backoff_ms, failures) * 1000
        status = _unassigned(run, at_us, reason, text, failures, next_us)
        return _write(run, status, _note(True, reason, text))
    failed = replace(run, status=replace(run.status, failures=failures))
    return _finish(failed, at_us, Phase.FAILED, reason, text, result, before=run)


def _finish(
    run: Run, at_us: int, phase: Phase, reason: Reason, message: str, result: TaskResult, before: Run | None = None
) -> Decision:
    """Into a terminal phase, finalizer off. `run` may carry changes that `before`, as the API has it, does not."""
    before = before or run
    text = clip(message or reason.info.sentence)
    ready = run.status.ready
    if run.spec.mode is Mode.FUNCTION:
        ready = condition(ready, at_us, False, reason, text)
    status = replace(
        run.status,
        phase=phase,
        reason=reason,
        message=text,
        ready=ready,
        endpoint_url=None,
        completion_us=at_us,
        next_attempt_us=None,
        release=None,
        result=result,
    )
    warning = phase is Phase.FAILED
    after, patch = _write(before, status, _note(warning, reason, text))
    if not before.finalizer:
        return after, patch
    off = cmd.TakeFinalizer(before.status.attempt, before.status.pod_uid)
    gone = before.deleting and not before.foreign_finalizer
    return replace(after, finalizer=False, gone=gone), (*patch, off)


def _release(run: Run, at_us: int, target: Target, reason: Reason) -> Decision:
    assert run.epoch is not None
    ready = run.status.ready
    if ready is not None:
        ready = condition(ready, at_us, False, Reason.RELEASING, reason.info.sentence)
    status = replace(
        run.status,
        phase=Phase.RELEASING,
        reason=reason,
        message=reason.info.sentence,
        ready=ready,
        release=Release(target, reason),
    )
    after, patch = _write(run, status, _note(False, reason, reason.info.sentence))
    return after, (cmd.CloseEpoch(run.epoch), *patch, cmd.ReleaseEpoch(run.epoch))


def _released(run: Run, at_us: int, to: Phase) -> Decision:
    target = final_target(run)
    release = run.status.release
    match target:
        case Target.GONE if to is Phase.GONE:
            off = cmd.TakeFinalizer(run.status.attempt, run.status.pod_uid)
            return replace(run, finalizer=False, gone=True), (off,)
        case Target.GONE:
            # Another's finalizer holds the object: it keeps Releasing, without Pod, slot or endpoint.
            status = replace(
                run.status,
                reason=Reason.DELETED,
                message=Reason.DELETED.info.sentence,
                pod_name=None,
                pod_uid=None,
                endpoint_url=None,
                start_us=None,
                ready_us=None,
                release=Release(Target.GONE, Reason.DELETED),
            )
            held, patch = _write(run, status)
            return replace(held, finalizer=False), (*patch, cmd.TakeFinalizer(run.status.attempt, None))
        case Target.CANCELLED:
            return _finish(run, at_us, Phase.CANCELLED, Reason.CANCELLED, "", run.status.result)
        case Target.TIMEOUT:
            reason = release.reason if release is not None else Reason.LIFETIME_EXCEEDED
            return _finish(run, at_us, Phase.TIMEOUT, reason, "", run.status.result)
        case _ as unreachable:
            assert_never(unreachable)


def _delete(run: Run, at_us: int, to: Phase) -> Decision:
    match run.phase:
        case Phase.SCHEDULED:
            return _write(run, _unassigned(run, at_us, Reason.DELETED, "", run.status.failures, None))
        case Phase.REGISTERING | Phase.READY | Phase.RUNNING:
            return _release(run, at_us, Target.GONE, Reason.DELETED)
        case _:
            off = cmd.TakeFinalizer(run.status.attempt, run.status.pod_uid)
            return replace(run, finalizer=False, gone=to is Phase.GONE), (off,)


def _assignment_lost(run: Run, event: ev.AssignmentLost, at_us: int, to: Phase) -> Decision:
    if run.phase is Phase.RELEASING:
        return _released(run, at_us, to)
    if run.phase is Phase.RUNNING:
        return _fail(run, at_us, to, failure_reason(event), f"The task's Pod is lost: {event.proof}", TaskResult())
    text = f"The owner is lost: {event.proof}"
    return _write(
        run,
        _unassigned(run, at_us, Reason.ASSIGNMENT_LOST, text, run.status.failures, None),
        _note(True, Reason.ASSIGNMENT_LOST, text),
    )


def _write(run: Run, status: Status, *more: cmd.Command) -> Decision:
    assert run.status.phase not in TERMINAL, "a terminal phase is never left"
    guard = cmd.Guard(run.status.phase, run.status.attempt, run.status.pod_uid)
    return replace(run, status=status), (cmd.PatchStatus(guard, status), *more)


def _note(warning: bool, reason: Reason, message: str) -> cmd.EmitEvent:
    return cmd.EmitEvent(warning, reason, clip(message or reason.info.sentence))


def condition(old: Condition | None, at_us: int, status: bool, reason: Reason, message: str) -> Condition:
    """The next state of a condition: its transition time moves only when its status does."""
    since_us = old.since_us if old is not None and old.status == status else at_us
    return Condition(status, reason, clip(message), since_us)


def backoff_ms(base_ms: int, failures: int) -> int:
    """The wait before the next attempt after this many failures in a row: doubling, at most 60 s (but never less than
    a longer `backoff` that the user asked for)."""
    doubled = base_ms << min(failures - 1, 32)
    return max(base_ms, min(doubled, BACKOFF_MAX_MS))


def clip(text: str) -> str:
    """The text within the bound of `status.message`, cut at a character."""
    return cut_bytes(text, MESSAGE_MAX_BYTES)
