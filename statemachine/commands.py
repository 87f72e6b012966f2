"""What a process has to do after a step: one frozen Struct a command, named in the imperative.

Commands are idempotent and are performed in their order; performing stops at the first that fails, the object is read
again and comes back as `Observed`. `controlplane` and `dataplane.runtimed` perform them.
"""

from enum import StrEnum

import msgspec

from statemachine.reasons import Reason
from statemachine.run import Epoch, Phase, PodUID, Status


class Timer(StrEnum):
    """The timers of a Run, at most one of each. A firing that was superseded is refused by its event's guard."""

    CLAIM = "claim"  # control plane: ClaimExpired
    BACKOFF = "backoff"  # control plane: the Run may be bound
    TTL = "ttl"  # control plane: TtlExpired
    REGISTRATION = "registration"  # runtimed: RegistrationFailed/RegistrationTimedOut
    LIFETIME = "lifetime"  # runtimed: LifetimeExpired


class Guard(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state that a write is valid for: it becomes the `test` operations of the JSON Patch."""

    phase: Phase
    attempt: int
    pod_uid: PodUID | None = None


class _Command(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    pass


class PatchStatus(_Command, frozen=True, tag=True):
    """Write this status if the API still shows `guard`."""

    guard: Guard
    status: Status


class PutFinalizer(_Command, frozen=True, tag=True):
    """Put `kruntimes.io/cleanup` on if uid, attempt and Pod UID still hold. Nothing may run before its answer."""

    attempt: int
    pod_uid: PodUID


class TakeFinalizer(_Command, frozen=True, tag=True):
    """Take `kruntimes.io/cleanup` off if uid, attempt and Pod UID still hold."""

    attempt: int
    pod_uid: PodUID | None = None


class DeleteRun(_Command, frozen=True, tag=True):
    """Delete the object, with its UID as precondition."""


class Register(_Command, frozen=True, tag=True):
    """Materialise the source and register the function."""

    epoch: Epoch


class Execute(_Command, frozen=True, tag=True):
    """Materialise the source and hand the task over, once."""

    epoch: Epoch


class CloseEpoch(_Command, frozen=True, tag=True):
    """At the Runtime Server: no new calls, tombstone at once, calls in flight go on. Comes before the patch that ends
    an epoch, also when nothing is held there."""

    epoch: Epoch


class ReleaseEpoch(_Command, frozen=True, tag=True):
    """Drain, unregister, remove local state; then report Released, or go on silently when the epoch is over already."""

    epoch: Epoch


class SetTimer(_Command, frozen=True, tag=True):
    """Arm a timer, replacing one of the same name."""

    timer: Timer
    due_us: int


class DropTimer(_Command, frozen=True, tag=True):
    """Disarm a timer, if armed."""

    timer: Timer


class EmitEvent(_Command, frozen=True, tag=True):
    """Record a Kubernetes Event on the Run."""

    warning: bool
    reason: Reason
    message: str


Command = (
    PatchStatus
    | PutFinalizer
    | TakeFinalizer
    | DeleteRun
    | Register
    | Execute
    | CloseEpoch
    | ReleaseEpoch
    | SetTimer
    | DropTimer
    | EmitEvent
)
