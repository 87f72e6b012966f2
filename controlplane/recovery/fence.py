"""What the API itself has said about an owner's Pod, for how long it has been known, and what that proves.

Pure: no I/O and no clock; times are milliseconds attended by the decider (`timers.Vigil`). `recovery` keeps one Fence
per Pod that looks lost. The table's guard has the last word on every proof given here.
"""

from enum import Enum

import msgspec

from controlplane.kube.codec import parse_time_us
from controlplane.kube.types import Pod
from statemachine.events import Proof
from statemachine.run import FENCE_MS, Phase, PodUID, Run


class PodState(Enum):
    """How a read of the API found the Pod of one UID."""

    PRESENT = "present"  # there, neither deleting nor ended: nothing is proven
    DELETING = "deleting"  # its owner may still finish what it has
    PAST_GRACE = "past grace"  # deleting, and the deletionTimestamp (the end of the grace) has passed
    ABSENT = "absent"  # no such Pod, or another one of that name
    ENDED = "ended"  # phase Succeeded or Failed, every container terminated


def state_of(pod: Pod | None, uid: PodUID, now_us: int) -> PodState:
    """What an answer about the Pod of that name says about the one with this UID."""
    if pod is None or pod.metadata.uid != uid:
        return PodState.ABSENT
    if pod.finished:
        return PodState.ENDED
    if not pod.metadata.deleting:
        return PodState.PRESENT
    end_us = end_of_grace_us(pod)
    return PodState.PAST_GRACE if end_us is not None and now_us > end_us else PodState.DELETING


def end_of_grace_us(pod: Pod) -> int | None:
    """When the grace of a deleting Pod ends: its deletionTimestamp. None when it is not deleting."""
    text = pod.metadata.deletion_timestamp
    try:
        return None if text is None else parse_time_us(text)
    except ValueError:
        return None


class Verdict(msgspec.Struct, frozen=True):
    """What may be said about one Run now: a proof held for so long, or how long until it counts."""

    proof: Proof
    held_ms: int
    due_in_ms: int


class Fence:
    """One Pod: since when it has been known to be going, to be past its grace, or to be gone."""

    def __init__(self, uid: PodUID, name: str, namespace: str) -> None:
        self.uid = uid
        self.name = name
        self.namespace = namespace
        self.state = PodState.PRESENT
        self._going_since_ms: int | None = None  # gone or deleting
        self._over_since_ms: int | None = None  # gone or past its grace

    def learn(self, state: PodState, attended_ms: int) -> None:
        """Adopt what a read of the API itself has shown. What is proven stays proven: a UID never comes back."""
        if state is PodState.PRESENT or self.state is PodState.ENDED:
            return
        self.state = state
        if self._going_since_ms is None:
            self._going_since_ms = attended_ms
        if state is not PodState.DELETING and self._over_since_ms is None:
            self._over_since_ms = attended_ms

    @property
    def proven(self) -> bool:
        """Whether any read has shown the Pod to be lost or going."""
        return self._going_since_ms is not None

    def verdict(self, run: Run, attended_ms: int) -> Verdict | None:
        """What this proves about a Run that the Pod owns; None while it proves nothing that waiting would complete."""
        if self.state is PodState.ENDED:
            return Verdict(Proof.POD_TERMINATED, attended_ms - (self._going_since_ms or attended_ms), 0)
        running = run.phase is Phase.RUNNING
        since_ms = self._over_since_ms if running else self._going_since_ms
        if since_ms is None:
            return None
        held_ms = attended_ms - since_ms
        return Verdict(self._proof(), held_ms, max(0, FENCE_MS - held_ms))

    def _proof(self) -> Proof:
        match self.state:
            case PodState.ABSENT:
                return Proof.POD_ABSENT
            case PodState.PAST_GRACE:
                return Proof.POD_PAST_GRACE
            case _:
                return Proof.POD_DELETING
