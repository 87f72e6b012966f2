"""Ending a Pod's containers in order, as a pure plan: the containers first, then sidecars from the last to the first.

Lives here: which signal goes to whom, and when to look again. May not live here: sending it (`pod` does, next).
The order is Kubernetes' own, so that runtimed outlives the Runtime Server that it serves. A machine that stops deletes
no Pod, so nothing tells a sidecar but its signal: then all are asked at once.
"""

import math
import signal
from collections.abc import Sequence

from controlplane.embedded.node.limits import GRACE_DEFAULT_SECONDS, SIDECAR_GRACE_MIN_SECONDS
from controlplane.embedded.node.lives import Life
from controlplane.kube.codec import parse_time_us
from controlplane.kube.types import Pod


class Stopping:
    """One ending: its deadline (monotonic seconds), who was asked and who was killed already."""

    def __init__(self, deadline: float, *, all_at_once: bool = False) -> None:
        self._deadline = deadline
        self._all_at_once = all_at_once
        self._asked: set[str] = set()
        self._killed: set[str] = set()

    @staticmethod
    def grace_left(pod: Pod, now_us: int) -> float:
        """Seconds until the end of the grace that a deletion gave."""
        meta = pod.metadata
        if meta.deletion_grace_period_seconds == 0:
            return 0.0
        if meta.deletion_timestamp is not None:
            return max(0.0, (parse_time_us(meta.deletion_timestamp) - now_us) / 1_000_000)
        spec = pod.spec.termination_grace_period_seconds
        return GRACE_DEFAULT_SECONDS if spec is None else float(spec)

    def sooner(self, deadline: float) -> None:
        """Another deletion asked for an earlier end; a later one does not count."""
        self._deadline = min(self._deadline, deadline)

    def signals(self, lives: Sequence[Life], now: float) -> list[tuple[str, signal.Signals]]:
        """What to send now: SIGTERM once to those whose turn it is, SIGKILL to them after the deadline."""
        turn = self._turn(lives)
        sent = []
        for life in turn:
            if life.id not in self._asked:
                self._asked.add(life.id)
                sent.append((life.id, signal.SIGTERM))
                if life.sidecar:
                    self._deadline = max(self._deadline, now + SIDECAR_GRACE_MIN_SECONDS)
            elif now >= self._deadline and life.id not in self._killed:
                self._killed.add(life.id)
                sent.append((life.id, signal.SIGKILL))
        return sent

    def next_due(self, lives: Sequence[Life]) -> float:
        """When to look again without having been told anything."""
        return self._deadline if any(life.id not in self._killed for life in self._turn(lives)) else math.inf

    def _turn(self, lives: Sequence[Life]) -> list[Life]:
        living = [life for life in lives if life.lives]
        if self._all_at_once:
            return living
        return [life for life in living if not life.sidecar] or living[-1:]
