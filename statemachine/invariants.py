"""What always holds, as functions whose docstrings are the sentences. Step tests, replay and simulation share the list.

Each takes the Run before (None at first sight) and after, and returns whether the sentence holds.
"""

from collections.abc import Callable
from typing import Final

from statemachine.reasons import Reason
from statemachine.run import MESSAGE_MAX_BYTES, OWNED, TERMINAL, Mode, Phase, Run, Target

Invariant = Callable[[Run | None, Run], bool]


def pod_name_and_uid_go_together(_: Run | None, run: Run) -> bool:
    """assignedPod and assignedPodUID are set and cleared together."""
    return (run.status.pod_name is None) == (run.status.pod_uid is None)


def owned_phases_have_a_pod(_: Run | None, run: Run) -> bool:
    """Scheduled, Registering, Ready, Running and Releasing have a Pod; only Releasing → gone may have let go of it."""
    if run.phase is Phase.SCHEDULED or run.phase in OWNED:
        held = run.status.release
        let_go = run.phase is Phase.RELEASING and held is not None and held.target is Target.GONE
        return run.status.pod_uid is not None or let_go
    return True


def pending_is_unassigned(_: Run | None, run: Run) -> bool:
    """A Pending Run has no Pod, no endpoint, no startTime, no readyTime and is not Ready."""
    status = run.status
    return run.phase is not Phase.PENDING or (
        (status.pod_uid, status.endpoint_url, status.start_us, status.ready_us) == (None, None, None, None)
        and not (status.ready is not None and status.ready.status)
    )


def ready_is_true_only_when_ready(_: Run | None, run: Run) -> bool:
    """Ready=True only in phase Ready, with reason FunctionRegistered."""
    ready = run.status.ready
    if ready is None or not ready.status:
        return True
    return run.phase is Phase.READY and ready.reason is Reason.FUNCTION_REGISTERED


def failures_stay_within_attempts(_: Run | None, run: Run) -> bool:
    """failures never exceeds maxAttempts."""
    return 0 <= run.status.failures <= run.spec.max_attempts


def release_only_in_releasing(_: Run | None, run: Run) -> bool:
    """release is set in Releasing and nowhere else."""
    return (run.status.release is not None) == (run.phase is Phase.RELEASING) or run.gone


def modes_keep_to_their_phases(_: Run | None, run: Run) -> bool:
    """A task is never Registering or Ready; a function is never Running or Succeeded."""
    if run.spec.mode is Mode.TASK:
        return run.phase not in (Phase.REGISTERING, Phase.READY)
    return run.phase not in (Phase.RUNNING, Phase.SUCCEEDED)


def terminal_is_complete(_: Run | None, run: Run) -> bool:
    """A terminal Run has a completionTime and no endpoint."""
    status = run.status
    return run.phase not in TERMINAL or (status.completion_us is not None and status.endpoint_url is None)


def owned_has_started(_: Run | None, run: Run) -> bool:
    """A Registering, Ready or Running Run has a startTime, a Ready one a readyTime."""
    if run.phase in (Phase.REGISTERING, Phase.RUNNING):
        return run.status.start_us is not None
    if run.phase is Phase.READY:
        return run.status.start_us is not None and run.status.ready_us is not None
    return True


def message_is_bounded(_: Run | None, run: Run) -> bool:
    """status.message is at most 1024 bytes."""
    return len(run.status.message.encode()) <= MESSAGE_MAX_BYTES


def identity_never_changes(before: Run | None, run: Run) -> bool:
    """UID, namespace, name and the immutable part of the spec never change."""
    if before is None:
        return True
    old, new = before.spec, run.spec
    return (before.uid, before.namespace, before.name, old.runtime, old.mode, old.handler) == (
        run.uid,
        run.namespace,
        run.name,
        new.runtime,
        new.mode,
        new.handler,
    )


def attempt_grows_by_binding_alone(before: Run | None, run: Run) -> bool:
    """attempt never falls, and rises by one exactly when the Run is bound."""
    if before is None:
        return True
    rise = run.status.attempt - before.status.attempt
    bound = before.phase is Phase.PENDING and run.phase is Phase.SCHEDULED
    return rise == int(bound)


def terminal_is_never_left(before: Run | None, run: Run) -> bool:
    """A terminal phase has no way out but removal."""
    return before is None or before.phase not in TERMINAL or run.phase in (before.phase, Phase.GONE)


def gone_is_never_left(before: Run | None, run: Run) -> bool:
    """A removed Run never comes back."""
    return before is None or not before.gone or run.gone


def requests_are_kept(before: Run | None, run: Run) -> bool:
    """cancelRequested and deletion are never taken back."""
    if before is None:
        return True
    return run.cancel_requested >= before.cancel_requested and run.deleting >= before.deleting


INVARIANTS: Final[tuple[Invariant, ...]] = (
    pod_name_and_uid_go_together,
    owned_phases_have_a_pod,
    pending_is_unassigned,
    ready_is_true_only_when_ready,
    failures_stay_within_attempts,
    release_only_in_releasing,
    modes_keep_to_their_phases,
    terminal_is_complete,
    owned_has_started,
    message_is_bounded,
    identity_never_changes,
    attempt_grows_by_binding_alone,
    terminal_is_never_left,
    gone_is_never_left,
    requests_are_kept,
)


def violations(before: Run | None, run: Run) -> list[str]:
    """The sentences that this change breaks."""
    return [(invariant.__doc__ or "").strip() for invariant in INVARIANTS if not invariant(before, run)]
