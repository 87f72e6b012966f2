"""Where a call goes: one synchronous, pure decision over the projection's facts.

Here: `route`, which returns Forward, Hold or Refuse and does nothing. Not here: waiting, dialling, sending (`forward`),
how facts arrive (`feed`). The owner alone judges readiness; this decides only from whom to ask.
Next: `invoke` performs the decision and asks again when facts have changed.
"""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from statemachine.ownership import Miss, Owner, PodFact, Projection
from statemachine.reasons import Reason
from statemachine.run import TERMINAL, Mode, Phase, PodUID, RunUID

OWNER_MAY_ANSWER: Final = frozenset({Phase.SCHEDULED, Phase.REGISTERING, Phase.READY})


class Forward(Struct, frozen=True):
    """Send it to this Pod. `direct`: it is the owner as far as is known, else it finds the owner (one peer hop)."""

    pod: PodFact
    direct: bool
    attempt: int | None
    owner_uid: PodUID | None


class Hold(Struct, frozen=True):
    """Wait until a fact about the Run changes; `reason` is the answer when the wait has been too long.

    `unknown`: the UID was never seen (at most 1 s); else the Run is moving (at most 10 s).
    """

    reason: Reason
    message: str
    unknown: bool = False


class Refuse(Struct, frozen=True):
    """Answer now."""

    reason: Reason
    message: str = ""


Decision = Forward | Hold | Refuse


def find(projection: Projection, namespace: str, runtime: str, uid: RunUID) -> Owner | Hold | Refuse:
    """The Run as the projection knows it: what is asked before the caller is authorised to see it."""
    match projection.look_up(namespace, runtime, uid):
        case Miss.UNKNOWN:
            return Hold(Reason.RUN_NOT_FOUND, "no Run of that UID is known here", unknown=True)
        case Miss.DELETED:
            return Refuse(Reason.RUN_NOT_FOUND, "the Run was deleted")
        case Miss.ELSEWHERE:
            return Refuse(Reason.RUN_NOT_FOUND)
        case owner:
            return owner


def route(
    projection: Projection, owner: Owner, *, avoid: Collection[PodUID] = (), turn: int = 0, to_owner: bool = True
) -> Decision:
    """Where a call of this Run goes now.

    `to_owner`: to the owner when its address is known; False sends it to any ready endpoint, as a plain Service would.
    `avoid` are Pods that refused a connection a moment ago: others' calls are not sent through them, while a Run's own
    owner is always asked. `turn` spreads calls over the ready endpoints when the owner has no known address.
    """
    run = owner.run
    if run.phase in TERMINAL or run.phase in (Phase.RELEASING, Phase.GONE):
        return Refuse(Reason.RUN_FINISHED, f"the Run is {run.phase.value} and will not be Ready again")
    if run.mode is Mode.TASK or run.phase is Phase.RUNNING:
        return Refuse(Reason.NOT_A_FUNCTION)
    if run.phase not in OWNER_MAY_ANSWER or run.pod_uid is None:
        if run.attempt == 0:
            return Refuse(Reason.RUN_NOT_READY, "the Run has not been assigned to a Pod yet")
        return Hold(Reason.RUN_NOT_READY, "the Run is moving to another Pod")
    if owner.pod is not None and to_owner:
        return Forward(owner.pod, True, run.attempt, run.pod_uid)
    ready = [pod for pod in projection.ready_pods(run.namespace, run.runtime) if pod.uid not in avoid]
    if not ready:
        if run.attempt > 1 or run.phase is Phase.READY:
            return Hold(Reason.OWNER_UNREACHABLE, "no Pod of the Runtime is ready")
        return Refuse(Reason.RUN_NOT_READY, "no Pod of the Runtime is ready")
    return Forward(ready[turn % len(ready)], False, run.attempt, run.pod_uid)


def may_wait(owner: Owner, reason: Reason, *, moving: bool) -> bool:
    """Whether a call that its owner did not start may wait for the Run's next fact instead of being refused.

    A Run at its first registration is not moving: its caller is told RunNotReady at once.
    """
    match reason:
        case Reason.DRAINING | Reason.STALE_OWNER:
            return True
        case Reason.RUN_NOT_READY:
            return moving or owner.run.attempt > 1 or owner.run.phase is Phase.READY
        case _:
            return moving
