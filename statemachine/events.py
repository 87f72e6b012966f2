"""What may happen to a Run: one frozen Struct an event, named in the past tense.

`Observed` and `Removed` say what the API shows; every other event is a decision that a process is about to write. The
tag of each Struct is its name in the journal. Shells build them; `step.step` consumes them.
"""

from enum import StrEnum

import msgspec

from statemachine.reasons import Reason
from statemachine.run import Epoch, PodUID, Run, TaskResult


class Role(StrEnum):
    """Which process decides. A decision by the other one is refused, so that two processes never fight over a row."""

    CONTROL_PLANE = "controlplane"
    RUNTIMED = "runtimed"


class Proof(StrEnum):
    """Why an owner cannot be serving any more (spec: the fence)."""

    POD_TERMINATED = "PodTerminated"  # phase Succeeded or Failed, every container terminated: holds at once
    POD_ABSENT = "PodAbsent"  # the API itself said that the Pod is not there
    POD_DELETING = "PodDeleting"  # the API itself showed a deletionTimestamp
    POD_PAST_GRACE = "PodPastGrace"  # deleting, and the deletionTimestamp (end of grace) has passed


class _Event(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    at_us: int


class Observed(_Event, frozen=True, tag=True):
    """The API shows this state. It is adopted, over skipped phases too."""

    run: Run
    resource_version: str = ""


class Removed(_Event, frozen=True, tag=True):
    """The object is gone from the API."""

    resource_version: str = ""


class Waiting(_Event, frozen=True, tag=True):
    """The scheduler found no Pod; `reason` is one of WAITING_REASONS."""

    reason: Reason
    message: str = ""


class Bound(_Event, frozen=True, tag=True):
    """The scheduler chose a Pod. `pod_eligible`: it is Ready, not deleting and has room, as the scheduler sees it."""

    pod_name: str
    pod_uid: PodUID
    pod_eligible: bool = True


class CancelRequested(_Event, frozen=True, tag=True):
    """`spec.cancelRequested` is true."""


class DeletionRequested(_Event, frozen=True, tag=True):
    """The object has a deletionTimestamp."""


class TtlExpired(_Event, frozen=True, tag=True):
    """`ttlSecondsAfterFinished` has passed since completion."""


class Claimed(_Event, frozen=True, tag=True):
    """The runtimed of the assigned Pod takes the Run."""

    epoch: Epoch


class BindingRefused(_Event, frozen=True, tag=True):
    """The runtimed of the assigned Pod has no free slot, or is draining."""

    epoch: Epoch
    message: str = ""


class ClaimExpired(_Event, frozen=True, tag=True):
    """Nobody claimed in time, or the Pod cannot claim any more (`pod_lost`: gone, deleting or terminal)."""

    epoch: Epoch
    waited_ms: int = 0
    pod_lost: bool = False


class FunctionRegistered(_Event, frozen=True, tag=True):
    """The Runtime Server took the registration. `endpoint_url` is None when no gateway is installed."""

    epoch: Epoch
    endpoint_url: str | None = None


class RegistrationFailed(_Event, frozen=True, tag=True):
    """Registration failed with a reason of REGISTRATION_FAILURES, and nothing of it is left at the Runtime Server."""

    epoch: Epoch
    reason: Reason
    message: str


class NoSlotHere(_Event, frozen=True, tag=True):
    """A claim landed late, or a starting runtimed finds a claim closed or never begun."""

    epoch: Epoch


class PodDraining(_Event, frozen=True, tag=True):
    """The own Pod is deleting, or the process was told to stop. `dispatched`: a task has been handed over already."""

    epoch: Epoch
    dispatched: bool = False


class RegistrationLost(_Event, frozen=True, tag=True):
    """The Runtime Server holds no open registration of this epoch."""

    epoch: Epoch
    message: str = ""


class OwnerSilent(_Event, frozen=True, tag=True):
    """The owner's Pod is NotReady for 30 s, or refused a connection."""

    epoch: Epoch
    message: str = ""


class OwnerHeard(_Event, frozen=True, tag=True):
    """The owner serves again."""

    epoch: Epoch


class IdleExpired(_Event, frozen=True, tag=True):
    """The Runtime Server, which holds the clock, unregistered an idle function."""

    epoch: Epoch


class LifetimeExpired(_Event, frozen=True, tag=True):
    """`spec.timeout` has passed since `startTime`."""

    epoch: Epoch


class Released(_Event, frozen=True, tag=True):
    """Drained, unregistered or the server dead, local state gone, slot free."""

    epoch: Epoch


class TaskExited(_Event, frozen=True, tag=True):
    """The task's process ended. `failure` (of TASK_FAILURES) with its message when that was no success."""

    epoch: Epoch
    result: TaskResult = TaskResult()
    failure: Reason | None = None
    message: str = ""


class AssignmentLost(_Event, frozen=True, tag=True):
    """The owner's Pod is gone for good. `held_ms`: how long this process has known it, standstills left out."""

    epoch: Epoch
    proof: Proof
    held_ms: int


Event = (
    Observed
    | Removed
    | Waiting
    | Bound
    | CancelRequested
    | DeletionRequested
    | TtlExpired
    | Claimed
    | BindingRefused
    | ClaimExpired
    | FunctionRegistered
    | RegistrationFailed
    | NoSlotHere
    | PodDraining
    | RegistrationLost
    | OwnerSilent
    | OwnerHeard
    | IdleExpired
    | LifetimeExpired
    | Released
    | TaskExited
    | AssignmentLost
)
