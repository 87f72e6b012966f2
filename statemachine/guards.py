"""The named predicates of the table: each takes the Run and the event and says whether the row may be taken.

A guard that says no becomes the reason of the refusal, by its name. Nothing here decides what happens next.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from statemachine.events import (
    AssignmentLost,
    Bound,
    ClaimExpired,
    LifetimeExpired,
    PodDraining,
    Proof,
    RegistrationFailed,
    TaskExited,
    TtlExpired,
    Waiting,
)
from statemachine.reasons import REGISTRATION_FAILURES, TASK_FAILURES, WAITING_REASONS, Reason
from statemachine.run import CLAIM_TIMEOUT_MS, ENDED, FENCE_MS, Mode, Phase, Run, Target


class Guard(msgspec.Struct, frozen=True):
    """A predicate with the sentence that explains its refusal."""

    name: str
    sentence: str
    holds: Callable[[Run, Any], bool]


GUARDS: Final[dict[str, Guard]] = {}


def _guard(sentence: str) -> Callable[[Callable[[Run, Any], bool]], Guard]:
    def register(predicate: Callable[[Run, Any], bool]) -> Guard:
        guard = Guard(predicate.__name__.lstrip("_"), sentence, predicate)
        GUARDS[guard.name] = guard
        return guard

    return register


@_guard("the event names another epoch than the one in force")
def same_epoch(run: Run, event: Any) -> bool:
    return bool(event.epoch == run.epoch)


@_guard("spec.cancelRequested is not set")
def cancel_requested(run: Run, _: Any) -> bool:
    return run.cancel_requested


@_guard("the object is not being deleted")
def deleting(run: Run, _: Any) -> bool:
    return run.deleting


@_guard("the Run is being cancelled or deleted")
def wanted(run: Run, _: Any) -> bool:
    return not run.cancel_requested and not run.deleting


@_guard("the object is being deleted")
def not_deleting(run: Run, _: Any) -> bool:
    return not run.deleting


@_guard("the object is being deleted and cannot take a finalizer any more")
def finalizer_possible(run: Run, _: Any) -> bool:
    return run.finalizer or not run.deleting


@_guard("our finalizer is not on the object")
def finalizer_on(run: Run, _: Any) -> bool:
    return run.finalizer


@_guard("the Pod is not Ready, is deleting or has no room")
def pod_eligible(_: Run, event: Bound) -> bool:
    return event.pod_eligible


@_guard("the next attempt is not due yet")
def backoff_over(run: Run, event: Any) -> bool:
    return run.status.next_attempt_us is None or event.at_us >= run.status.next_attempt_us


@_guard("the same reason is on record already")
def waiting_changed(run: Run, event: Waiting) -> bool:
    on_record = run.status.scheduled
    return event.reason in WAITING_REASONS and (
        on_record is None or on_record.status or (on_record.reason, on_record.message) != (event.reason, event.message)
    )


@_guard("the claim is not overdue and its Pod can still make it")
def claim_overdue(_: Run, event: ClaimExpired) -> bool:
    return event.pod_lost or event.waited_ms >= CLAIM_TIMEOUT_MS


@_guard("the Run is a task")
def is_function(run: Run, _: Any) -> bool:
    return run.spec.mode is Mode.FUNCTION


@_guard("the Run is a function")
def is_task(run: Run, _: Any) -> bool:
    return run.spec.mode is Mode.TASK


@_guard("the reason is not one of a failed registration")
def registration_failure(_: Run, event: RegistrationFailed) -> bool:
    return event.reason in REGISTRATION_FAILURES


@_guard("the reason is not one of a failed task")
def task_failure(_: Run, event: TaskExited) -> bool:
    return event.failure is not None and event.failure in TASK_FAILURES


@_guard("the task failed")
def task_succeeded(_: Run, event: TaskExited) -> bool:
    return event.failure is None and event.result.exit_code == 0


@_guard("the attempts are used up, or the reason is not retried")
def retry_left(run: Run, event: Any) -> bool:
    return run.status.failures + 1 < run.spec.max_attempts and retryable(run, failure_reason(event))


@_guard("the task has been handed over and finishes within the Pod's grace")
def not_dispatched(run: Run, event: PodDraining) -> bool:
    return run.spec.mode is Mode.FUNCTION or not event.dispatched


@_guard("the owner is marked as unreachable already")
def owner_heard(run: Run, _: Any) -> bool:
    return run.status.ready is not None and run.status.ready.status


@_guard("the owner is not marked as unreachable")
def owner_silent(run: Run, _: Any) -> bool:
    ready = run.status.ready
    return ready is not None and not ready.status and ready.reason is Reason.OWNER_UNREACHABLE


@_guard("spec.timeout is not set or has not passed")
def lifetime_over(run: Run, event: LifetimeExpired) -> bool:
    start, lifetime = run.status.start_us, run.spec.lifetime_ms
    return start is not None and lifetime is not None and event.at_us >= start + lifetime * 1000


@_guard("ttlSecondsAfterFinished is not set or has not passed")
def ttl_over(run: Run, event: TtlExpired) -> bool:
    done, ttl = run.status.completion_us, run.spec.ttl_ms
    return done is not None and ttl is not None and event.at_us >= done + ttl * 1000


@_guard("the owner may still be serving: the fence has not passed")
def fenced(run: Run, event: AssignmentLost) -> bool:
    match event.proof:
        case Proof.POD_TERMINATED:
            return True
        case Proof.POD_DELETING:
            # A task may finish within its Pod's grace, so for it only the end of the grace counts.
            return run.phase is not Phase.RUNNING and event.held_ms >= FENCE_MS
        case Proof.POD_ABSENT | Proof.POD_PAST_GRACE:
            return event.held_ms >= FENCE_MS


@_guard("the Run still has a Pod, whose owner releases it")
def no_pod(run: Run, _: Any) -> bool:
    return run.status.pod_uid is None


@_guard("the Run ends otherwise")
def ends_gone(run: Run, _: Any) -> bool:
    return final_target(run) is Target.GONE and not run.foreign_finalizer


@_guard("the Run ends otherwise")
def ends_held(run: Run, _: Any) -> bool:
    return final_target(run) is Target.GONE and run.foreign_finalizer


@_guard("the Run ends otherwise")
def ends_cancelled(run: Run, _: Any) -> bool:
    return final_target(run) is Target.CANCELLED


@_guard("the Run ends otherwise")
def ends_timeout(run: Run, _: Any) -> bool:
    return final_target(run) is Target.TIMEOUT


@_guard("another finalizer holds the object")
def nothing_holds(run: Run, _: Any) -> bool:
    return not run.foreign_finalizer


def final_target(run: Run) -> Target:
    """The strongest of the release's target and what is requested by now: Gone > Cancelled > Timeout."""
    if run.deleting:
        return Target.GONE
    if run.cancel_requested:
        return Target.CANCELLED
    return run.status.release.target if run.status.release is not None else Target.TIMEOUT


def failure_reason(event: Any) -> Reason:
    """The reason that the retry policy judges."""
    match event:
        case RegistrationFailed(reason=reason):
            return reason
        case TaskExited(failure=Reason() as failure):
            return failure
        case _:
            return Reason.TASK_LOST


def retryable(run: Run, reason: Reason) -> bool:
    """Whether the Run's policy tries again after this failure."""
    if run.spec.retryable_reasons:
        return reason.value in run.spec.retryable_reasons
    return reason.info.retryable


def is_over(run: Run) -> bool:
    """Whether nothing but its removal can happen to the Run."""
    return run.phase in ENDED
