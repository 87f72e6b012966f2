"""One valid Run for every phase and one event of every kind: what the table tests put together in every combination."""

from collections.abc import Callable
from typing import Final, get_args

from msgspec.structs import replace

from statemachine import events as ev
from statemachine.reasons import Reason
from statemachine.run import (
    TERMINAL,
    Condition,
    Epoch,
    Mode,
    Phase,
    PodUID,
    Release,
    Run,
    RunSpec,
    RunUID,
    Status,
    Target,
    TaskResult,
)

NOW: Final = 1_000_000_000_000
POD: Final = PodUID("pod-a")
UID: Final = RunUID("run-1")
EPOCH: Final = Epoch(UID, 1, POD)


def run_in(phase: Phase, mode: Mode = Mode.FUNCTION, **changes: object) -> Run:
    """A Run that keeps every invariant, in this phase, with a lifetime and a TTL that have passed at NOW."""
    spec = RunSpec(
        "python",
        mode,
        handler="main.invoke" if mode is Mode.FUNCTION else None,
        max_attempts=3,
        idle_timeout_ms=1000,
        lifetime_ms=1000,
        ttl_ms=1000,
    )
    start = NOW - 10_000_000
    status = Status(phase=phase)
    if phase is not Phase.PENDING:
        scheduled = Condition(True, Reason.BOUND, since_us=start)
        status = replace(status, attempt=1, pod_name="a", pod_uid=POD, scheduled=scheduled)
    if phase not in (Phase.PENDING, Phase.SCHEDULED):
        status = replace(status, start_us=start)
    if phase is Phase.READY:
        ready = Condition(True, Reason.FUNCTION_REGISTERED, since_us=start)
        status = replace(status, ready=ready, ready_us=start, endpoint_url="https://gateway/run")
    if phase is Phase.RELEASING:
        status = replace(status, release=Release(Target.TIMEOUT, Reason.IDLE_TIMEOUT))
    if phase in TERMINAL:
        status = replace(status, completion_us=start)
    finalizer = phase not in (Phase.PENDING, Phase.SCHEDULED)
    return replace(Run(UID, "default", "sample", spec, status, finalizer=finalizer), **changes)


def modes_of(phase: Phase) -> tuple[Mode, ...]:
    """The modes that may be in this phase."""
    if phase in (Phase.REGISTERING, Phase.READY):
        return (Mode.FUNCTION,)
    if phase in (Phase.RUNNING, Phase.SUCCEEDED):
        return (Mode.TASK,)
    return (Mode.FUNCTION, Mode.TASK)


DECISIONS: Final[dict[type[ev.Event], Callable[[], ev.Event]]] = {
    ev.Waiting: lambda: ev.Waiting(at_us=NOW, reason=Reason.NO_CAPACITY),
    ev.Bound: lambda: ev.Bound(at_us=NOW, pod_name="a", pod_uid=POD),
    ev.CancelRequested: lambda: ev.CancelRequested(at_us=NOW),
    ev.DeletionRequested: lambda: ev.DeletionRequested(at_us=NOW),
    ev.TtlExpired: lambda: ev.TtlExpired(at_us=NOW),
    ev.Claimed: lambda: ev.Claimed(at_us=NOW, epoch=EPOCH),
    ev.BindingRefused: lambda: ev.BindingRefused(at_us=NOW, epoch=EPOCH),
    ev.ClaimExpired: lambda: ev.ClaimExpired(at_us=NOW, epoch=EPOCH, waited_ms=30_000),
    ev.FunctionRegistered: lambda: ev.FunctionRegistered(at_us=NOW, epoch=EPOCH, endpoint_url="https://gateway/run"),
    ev.RegistrationFailed: lambda: ev.RegistrationFailed(
        at_us=NOW, epoch=EPOCH, reason=Reason.IMPORT_FAILED, message="ValueError: no"
    ),
    ev.NoSlotHere: lambda: ev.NoSlotHere(at_us=NOW, epoch=EPOCH),
    ev.PodDraining: lambda: ev.PodDraining(at_us=NOW, epoch=EPOCH),
    ev.RegistrationLost: lambda: ev.RegistrationLost(at_us=NOW, epoch=EPOCH),
    ev.OwnerSilent: lambda: ev.OwnerSilent(at_us=NOW, epoch=EPOCH),
    ev.OwnerHeard: lambda: ev.OwnerHeard(at_us=NOW, epoch=EPOCH),
    ev.IdleExpired: lambda: ev.IdleExpired(at_us=NOW, epoch=EPOCH),
    ev.LifetimeExpired: lambda: ev.LifetimeExpired(at_us=NOW, epoch=EPOCH),
    ev.Released: lambda: ev.Released(at_us=NOW, epoch=EPOCH),
    ev.TaskExited: lambda: ev.TaskExited(at_us=NOW, epoch=EPOCH, result=TaskResult(exit_code=0)),
    ev.AssignmentLost: lambda: ev.AssignmentLost(at_us=NOW, epoch=EPOCH, proof=ev.Proof.POD_TERMINATED, held_ms=0),
}

assert set(DECISIONS) == set(get_args(ev.Event)) - {ev.Observed, ev.Removed}
