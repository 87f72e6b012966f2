"""Feeds the planner with what is seen and hands its decisions to the Runs' loop.

Facts come from informers (Runtimes, Pods) and from the loop (Runs, as last seen there, its own writes included). One
round of planning serves everything that happened in the same turn of the event loop. Nothing here writes to the API.
"""

from collections.abc import Callable
from typing import Final

from controlplane.kube.clock import Clock
from controlplane.kube.codec import whole_quantity
from controlplane.kube.informer import Change
from controlplane.kube.types import Pod, RuntimeObject
from controlplane.scheduler.planner import Bind, Planner, RuntimeKey
from controlplane.scheduler.pool import PodView
from controlplane.timers import Alarm, CallLater, Timers
from statemachine.events import Bound, Event, Waiting
from statemachine.reasons import Reason
from statemachine.run import OWNED, Phase, PodUID, Run, RunUID

RUNTIME_LABEL: Final = "kruntimes.io/runtime"
REFUSALS: Final = frozenset({Reason.BINDING_REFUSED, Reason.CLAIM_EXPIRED, Reason.NO_SLOT_HERE})


class Scheduler:
    """Binds Runs to Pods. `decide` takes a decision about one Run; `run_settled` must follow each."""

    def __init__(
        self, *, decide: Callable[[RunUID, Event], None], clock: Clock, timers: Timers, call_later: CallLater
    ) -> None:
        self.planner = Planner()
        self._decide = decide
        self._clock = clock
        self._timers = timers
        self._call_later = call_later
        self._started = False
        self._round: Alarm | None = None

    def start(self) -> None:
        """Plan from now on: call it once every fact of the first lists is in."""
        self._started = True
        self._kick()

    def close(self) -> None:
        """Plan no more."""
        self._started = False
        if self._round is not None:
            self._round.cancel()
            self._round = None
        self._timers.drop(self)

    def runtime_changed(self, change: Change[RuntimeObject]) -> None:
        """A Runtime appeared, changed or went."""
        obj = change.current or change.previous
        assert obj is not None
        key = (obj.metadata.namespace, obj.metadata.name)
        there = change.current is not None and not obj.metadata.deleting
        self.planner.runtime_seen(key, capacity_of(obj) if there else None)
        self._kick()

    def pod_changed(self, change: Change[Pod]) -> None:
        """A Pod of any Runtime appeared, changed or went."""
        pod = change.current
        if pod is None:
            assert change.previous is not None
            self.planner.pod_gone(PodUID(change.previous.metadata.uid))
        else:
            key = runtime_of(pod)
            if key is None:
                self.planner.pod_gone(PodUID(pod.metadata.uid))
            else:
                self.planner.pod_seen(key, PodView(PodUID(pod.metadata.uid), pod.metadata.name, is_open(pod)))
        self._kick()

    def run_changed(self, previous: Run | None, run: Run) -> None:
        """A Run is seen in a new state, or is gone."""
        if run.gone:
            self.planner.run_gone(run.uid)
        else:
            self._judge_pod(previous, run)
            self.planner.run_seen(run)
        self._kick()

    def run_settled(self, run: Run, event: Event) -> None:
        """A decision about this Run has been written, refused, given up or dropped; this is how the Run stands."""
        if isinstance(event, Bound):
            self._bind_settled(run)
        elif isinstance(event, Waiting):
            self.planner.wait_settled(run)
        else:
            return
        self._kick()

    def _bind_settled(self, run: Run) -> None:
        """A backoff that is over stays over, unless the wall clock was set back meanwhile: then it is waited for."""
        next_us = run.status.next_attempt_us
        due = next_us is None or next_us <= self._clock.now_us()
        self.planner.bind_settled(run, due=due)
        if next_us is not None and not due:
            self._timers.set(("backoff", run.uid), next_us, lambda: self.run_due(run.uid))

    def run_due(self, uid: RunUID) -> None:
        """The backoff of this Run has passed."""
        self.planner.due(uid)
        self._kick()

    def _judge_pod(self, previous: Run | None, run: Run) -> None:
        """A Pod that refuses bindings is left alone for a while, else the same Run would come straight back to it."""
        if previous is None or previous.phase is not Phase.SCHEDULED or previous.status.pod_uid is None:
            return
        key = (run.namespace, run.spec.runtime)
        if run.phase in OWNED:
            self.planner.claimed(key, previous.status.pod_uid)
        elif run.phase is Phase.PENDING and run.status.reason in REFUSALS:
            self.planner.refused(key, previous.status.pod_uid, self._clock.now_us())

    def _kick(self) -> None:
        if self._started and self._round is None:
            self._round = self._call_later(0, self._plan)

    def _plan(self) -> None:
        self._round = None
        now_us = self._clock.now_us()
        for decision in self.planner.plan(now_us):
            if isinstance(decision, Bind):
                bound = Bound(at_us=now_us, pod_name=decision.pod_name, pod_uid=decision.pod_uid)
                self._decide(decision.run_uid, bound)
            else:
                waiting = Waiting(at_us=now_us, reason=decision.reason, message=decision.message)
                self._decide(decision.run_uid, waiting)
        wake_us = self.planner.next_wake_us(now_us)
        if wake_us is None:
            self._timers.drop(self)
        else:
            self._timers.set(self, wake_us, self._wake)

    def _wake(self) -> None:
        self.planner.wake()
        self._kick()


def runtime_of(pod: Pod) -> RuntimeKey | None:
    """The Runtime that a Pod belongs to: its label names it and it runs under that Runtime's identity."""
    name = pod.metadata.labels.get(RUNTIME_LABEL)
    if not name or pod.spec.service_account_name != f"runtime-{name}":
        return None
    return pod.metadata.namespace, name


def is_open(pod: Pod) -> bool:
    """Whether a Pod may get bindings: Ready, not deleting, not ended."""
    return pod.ready and pod.status.phase == "Running"


def capacity_of(runtime: RuntimeObject) -> dict[str, int]:
    """What each Pod offers, whole amounts. The API has checked them."""
    return {resource: whole_quantity(amount) for resource, amount in runtime.spec.capacity.resources.items()}
