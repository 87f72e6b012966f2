"""Where one call goes from here, a pure decision: serve it, pass it to a peer once, refuse it, or wait a moment.

The Kubernetes API is never asked. The owner judges by its own facts alone; for another's Run the projection names the
Pod to ask. Nothing is done here. Next: `serving.py` performs.
"""

from msgspec import Struct

from dataplane.runtimed.local import Local, Stage
from dataplane.wire.messages import HOPS_MAX, InvokeRequest
from statemachine.ownership import Miss, PodFact, Projection
from statemachine.reasons import Reason
from statemachine.run import TERMINAL, Mode, Phase, PodUID, Run, RunUID


class Serve(Struct, frozen=True):
    """It is ours and open."""

    local: Local


class Pass(Struct, frozen=True):
    """Ask that peer, which is the owner as far as is known."""

    pod: PodFact
    attempt: int


class Refuse(Struct, frozen=True):
    """Answer now. `moving`: the Run leaves this owner, and the call may wait for the next one."""

    reason: Reason
    message: str = ""
    moving: bool = False


class Await(Struct, frozen=True):
    """A UID never seen: the projection may be a moment behind."""


Decision = Serve | Pass | Refuse | Await


class Here(Struct, frozen=True):
    """What this Pod knows of the Run by itself: its epoch, the object as last shown, the lease."""

    pod_uid: PodUID
    local: Local | None
    run: Run | None
    fresh: bool
    draining: bool


def route(head: InvokeRequest, here: Here, projection: Projection) -> Decision:
    """Where this call goes. An epoch that the caller names is the only one that may serve it (L3)."""
    local = here.local
    if local is not None and _is_for(head, local, here):
        return _own(local, here)
    match projection.look_up(head.namespace, head.runtime, RunUID(head.run_uid)):
        case Miss.UNKNOWN:
            return Await()
        case Miss.DELETED | Miss.ELSEWHERE:
            return Refuse(Reason.RUN_NOT_FOUND)
        case owner:
            fact = owner.run
    if fact.mode is Mode.TASK:
        return Refuse(Reason.NOT_A_FUNCTION)
    if fact.phase in TERMINAL or fact.phase is Phase.RELEASING:
        return Refuse(Reason.RUN_FINISHED, f"the Run is {fact.phase}")
    if head.pod_uid == here.pod_uid:
        return Refuse(Reason.STALE_OWNER, "this Pod does not hold the epoch that the call names")
    owner_uid = PodUID(head.pod_uid) if head.pod_uid is not None else fact.pod_uid
    if owner_uid is None or owner_uid == here.pod_uid:
        return Refuse(Reason.RUN_NOT_READY, "the Run waits for its owner", moving=fact.attempt > 0)
    if head.hops >= HOPS_MAX:
        return Refuse(Reason.STALE_OWNER, "this Pod is not the owner any more")
    pod = projection.pod(owner_uid)
    if pod is None:
        return Refuse(Reason.OWNER_UNREACHABLE, "the owner's address is not known here")
    attempt = head.attempt if head.attempt is not None else fact.attempt
    return Pass(pod, attempt)


def _is_for(head: InvokeRequest, local: Local, here: Here) -> bool:
    """Whether the call is for the epoch that this Pod holds: by its name, or unnamed while the Run is still here."""
    if head.pod_uid not in (None, here.pod_uid):
        return False
    if head.attempt is not None:
        return head.attempt == local.epoch.attempt
    return here.run is None or here.run.epoch == local.epoch


def _own(local: Local, here: Here) -> Decision:
    """This Pod holds the very epoch: it alone says whether calls pass."""
    if local.mode is Mode.TASK:
        return Refuse(Reason.NOT_A_FUNCTION)
    if not here.fresh and local.stage is Stage.OPEN:
        return Refuse(Reason.STALE_OWNER, "the Pod cannot prove that it is still the owner", moving=here.draining)
    match local.stage:
        case Stage.OPEN if not local.idle:
            return Serve(local)
        case Stage.CLAIMED | Stage.FAILED:
            return Refuse(Reason.RUN_NOT_READY, "the function is being registered")
        case Stage.GIVEN_UP:
            return Refuse(Reason.RUN_NOT_READY, "the Run is moving to another Pod", moving=True)
        case _:
            run = here.run
            if run is not None and run.epoch != local.epoch and run.phase not in TERMINAL:
                return Refuse(Reason.RUN_NOT_READY, "the Run is moving to another Pod", moving=True)
            return Refuse(Reason.RUN_FINISHED, "the Run is being released")
