"""Takes Runs back from owners that cannot have them any more, and marks those that are not heard.

What informers say about a Pod is a reason to ask the API itself; only its answer proves anything. The time that a proof
must be held is counted by a Vigil, so a standstill of this process or of the machine moves no Run. Decisions go to the
loop, which repeats them until they are written or no longer legal.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import KubeError, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.ownerreports import report_text
from controlplane.kube.resources import PODS
from controlplane.kube.types import KubeEvent, Pod
from controlplane.recovery.fence import Fence, PodState, end_of_grace_us, state_of
from controlplane.tasks import Tasks
from controlplane.timers import Timers, Vigil
from statemachine.events import AssignmentLost, ClaimExpired, Event, OwnerSilent
from statemachine.run import OWNED, SILENCE_MS, Phase, PodUID, Run, RunUID

PROBE_AGAIN_MS: Final = 2_000  # after an answer that proves nothing although a watch said otherwise, or no answer
PAST_GRACE_SLACK_US: Final = 500_000  # a deletionTimestamp has whole seconds: ask once it has passed for certain

_log = logging.getLogger(__name__)


class Recovery:
    """Follows Pods that own Runs. `run` reads a Run as last seen; `decide` hands a decision to the loop."""

    def __init__(
        self,
        *,
        kube: Kube,
        clock: Clock,
        timers: Timers,
        vigil: Vigil,
        tasks: Tasks,
        run: Callable[[RunUID], Run | None],
        decide: Callable[[RunUID, Event], None],
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._timers = timers
        self._vigil = vigil
        self._tasks = tasks
        self._run = run
        self._decide = decide
        self._pods: dict[PodUID, Pod] = {}
        self._owned: dict[PodUID, set[RunUID]] = {}
        self._fences: dict[PodUID, Fence] = {}
        self._probes: dict[PodUID, asyncio.Task[None]] = {}
        self._silent: set[PodUID] = set()
        self._started = False

    def start(self) -> None:
        """Judge from now on: call it once the first lists of Pods and Runs are in."""
        self._started = True
        for uid in list(self._owned):
            self._look_at(uid)

    def close(self) -> None:
        """Judge no more."""
        self._started = False

    def pod_changed(self, change: Change[Pod]) -> None:
        """A Pod of any Runtime appeared, changed or went."""
        if change.current is None:
            assert change.previous is not None
            uid = PodUID(change.previous.metadata.uid)
            self._pods.pop(uid, None)
        else:
            uid = PodUID(change.current.metadata.uid)
            self._pods[uid] = change.current
        if self._started:
            self._listen(uid)
            self._look_at(uid)

    def run_changed(self, previous: Run | None, run: Run) -> None:
        """A Run is seen in a new state, or is gone."""
        before = _owner(previous)
        after = _owner(run)
        if before is not None and before != after:
            self._forget(before, run.uid)
        if after is not None:
            self._owned.setdefault(after, set()).add(run.uid)
            if self._started and (before != after or previous is None or previous.phase is not run.phase):
                self._listen(after)
                self._look_at(after)

    def _forget(self, pod_uid: PodUID, run_uid: RunUID) -> None:
        runs = self._owned.get(pod_uid)
        if runs is None:
            return
        runs.discard(run_uid)
        if not runs:
            del self._owned[pod_uid]
            self._close_case(pod_uid)
            self._vigil.drop(("silence", pod_uid))
            self._silent.discard(pod_uid)

    # Owners that are not heard.

    def _listen(self, uid: PodUID) -> None:
        """Start, go on with or end the span after which a Pod that is not Ready is called silent."""
        pod, key = self._pods.get(uid), ("silence", uid)
        quiet = pod is not None and not pod.ready and not pod.metadata.deleting and not pod.finished
        if not quiet or uid not in self._owned:
            self._vigil.drop(key)
            self._silent.discard(uid)
        elif key not in self._vigil and uid not in self._silent:
            self._vigil.watch(key, SILENCE_MS, lambda: self._call_silent(uid))

    def report_seen(self, change: Change[KubeEvent]) -> None:
        """A gateway met nobody at an owner's address. A report about an earlier epoch is about nobody."""
        report = change.current
        if report is None or not self._started:
            return
        run = self._run(RunUID(report.involved_object.uid))
        if run is None or run.epoch is None or run.phase is not Phase.READY:
            return
        if report.message == report_text(run.epoch.pod_uid, run.epoch.attempt):
            silent = OwnerSilent(at_us=self._clock.now_us(), epoch=run.epoch, message=report.message)
            self._decide(run.uid, silent)

    def _call_silent(self, uid: PodUID) -> None:
        """Once per silence: an owner that is heard although its Pod is not Ready is not marked again and again."""
        self._silent.add(uid)
        pod = self._pods.get(uid)
        message = f"Pod {pod.metadata.name if pod is not None else uid} is not Ready for {SILENCE_MS // 1000} s"
        for run in self._runs_of(uid):
            if run.phase is Phase.READY and run.epoch is not None:
                self._decide(run.uid, OwnerSilent(at_us=self._clock.now_us(), epoch=run.epoch, message=message))

    # Owners that are lost.

    def _look_at(self, uid: PodUID) -> None:
        """Open a case for a Pod that looks lost and owns Runs; go on with one that is open."""
        if uid not in self._owned:
            return
        pod = self._pods.get(uid)
        if pod is not None and not pod.metadata.deleting and not pod.finished:
            if uid in self._fences and not self._fences[uid].proven:
                self._close_case(uid)
            return
        fence = self._fences.get(uid)
        if fence is None:
            run = next(iter(self._runs_of(uid)), None)
            if run is None or run.status.pod_name is None:
                return
            fence = self._fences[uid] = Fence(uid, run.status.pod_name, run.namespace)
            self._probe(fence)
        elif fence.state is not PodState.ENDED and (pod is None or pod.finished):
            self._probe(fence)  # more may be proven by now
        self._judge(fence)

    def _close_case(self, uid: PodUID) -> None:
        self._fences.pop(uid, None)
        self._vigil.drop(("fence", uid))
        self._vigil.drop(("probe", uid))
        self._timers.drop(("grace", uid))
        probe = self._probes.pop(uid, None)
        if probe is not None:
            probe.cancel()

    def _probe(self, fence: Fence) -> None:
        """Ask the API itself about the Pod, unless that is under way."""
        if self._started and fence.uid not in self._probes:
            self._probes[fence.uid] = self._tasks.spawn(self._ask(fence))

    async def _ask(self, fence: Fence) -> None:
        pod: Pod | None = None
        state: PodState | None = None
        try:
            pod = await self._kube.get(PODS, fence.namespace, fence.name)
        except NotFound:
            state = PodState.ABSENT
        except KubeError as error:
            _log.warning("cannot read Pod %s: %s", fence.name, error, extra={"code": error.status.code})
        else:
            state = state_of(pod, fence.uid, self._clock.now_us())
        self._probes.pop(fence.uid, None)
        if self._fences.get(fence.uid) is not fence:
            return
        if state is None or state is PodState.PRESENT:
            self._vigil.watch(("probe", fence.uid), PROBE_AGAIN_MS, lambda: self._probe(fence))
            return
        fence.learn(state, self._vigil.attended_ms())
        if pod is not None and state is PodState.DELETING:
            self._ask_after_grace(fence, pod)
        self._judge(fence)

    def _ask_after_grace(self, fence: Fence, pod: Pod) -> None:
        """For a task only the end of the grace counts: ask again then."""
        end_us = end_of_grace_us(pod)
        if end_us is not None:
            self._timers.set(("grace", fence.uid), end_us + PAST_GRACE_SLACK_US, lambda: self._probe(fence))

    def _judge(self, fence: Fence) -> None:
        """Decide what is proven by now, and come back when the next thing is."""
        if not fence.proven:
            return
        attended_ms = self._vigil.attended_ms()
        next_ms: int | None = None
        for run in self._runs_of(fence.uid):
            if run.epoch is None:
                continue
            now_us = self._clock.now_us()
            if run.phase is Phase.SCHEDULED:
                self._decide(run.uid, ClaimExpired(at_us=now_us, epoch=run.epoch, pod_lost=True))
                continue
            verdict = fence.verdict(run, attended_ms)
            if verdict is None:
                continue
            if verdict.due_in_ms == 0:
                lost = AssignmentLost(at_us=now_us, epoch=run.epoch, proof=verdict.proof, held_ms=verdict.held_ms)
                self._decide(run.uid, lost)
            elif next_ms is None or verdict.due_in_ms < next_ms:
                next_ms = verdict.due_in_ms
        if next_ms is not None:
            self._vigil.watch(("fence", fence.uid), next_ms, lambda: self._judge(fence))

    def _runs_of(self, uid: PodUID) -> Iterable[Run]:
        runs = (self._run(run_uid) for run_uid in tuple(self._owned.get(uid, ())))
        return [run for run in runs if run is not None and run.status.pod_uid == uid]


def _owner(run: Run | None) -> PodUID | None:
    """The Pod that a Run is assigned to, if it can be lost with it."""
    if run is None or run.gone or run.status.pod_uid is None:
        return None
    return run.status.pod_uid if run.phase is Phase.SCHEDULED or run.phase in OWNED else None
