"""The fence: what proves that an owner is gone, and how long the proof must be held."""

import pytest

from controlplane.recovery.fence import Fence, PodState, Verdict, state_of
from statemachine.events import Proof
from statemachine.run import FENCE_MS, Mode, Phase, PodUID, Run, RunSpec, RunUID, Status
from tests.kit.builders import runtime_pod

UID = PodUID("pod-1")
NOW = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
TEN_MINUTES = 600_000_000
ENDED = {"runtimed": {"terminated": {}}, "runtime": {"terminated": {}}}


def run(phase: Phase) -> Run:
    return Run(
        uid=RunUID("r"),
        namespace="default",
        name="r",
        spec=RunSpec(runtime="python", mode=Mode.TASK if phase is Phase.RUNNING else Mode.FUNCTION),
        status=Status(phase=phase, attempt=1, pod_name="p", pod_uid=UID),
    )


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (None, PodState.ABSENT),
        (runtime_pod(uid="another"), PodState.ABSENT),
        (runtime_pod(), PodState.PRESENT),
        (runtime_pod(ready=False), PodState.PRESENT),
        (runtime_pod(phase="Unknown", ready=False), PodState.PRESENT),
        (runtime_pod(deleting=True), PodState.DELETING),
        (runtime_pod(phase="Failed", container_states=ENDED), PodState.ENDED),
        (runtime_pod(phase="Succeeded", container_states=ENDED), PodState.ENDED),
        (runtime_pod(phase="Failed"), PodState.PRESENT),
        (runtime_pod(phase="Failed", container_states={"runtime": {"terminated": {}}}), PodState.PRESENT),
        (runtime_pod(phase="Running", container_states=ENDED), PodState.PRESENT),
    ],
)
def test_what_an_answer_says_about_a_pod(pod: object, state: PodState):
    assert state_of(pod, UID, NOW) is state  # type: ignore[arg-type]


def test_the_grace_ends_at_the_deletion_timestamp():
    pod = runtime_pod(deleting=True)
    assert state_of(pod, UID, NOW + TEN_MINUTES) is PodState.DELETING
    assert state_of(pod, UID, NOW + TEN_MINUTES + 1) is PodState.PAST_GRACE


def test_nothing_is_proven_by_a_pod_that_is_there():
    fence = Fence(UID, "p", "default")
    fence.learn(PodState.PRESENT, 0)
    assert not fence.proven
    assert fence.verdict(run(Phase.READY), 10**9) is None


@pytest.mark.parametrize("phase", [Phase.REGISTERING, Phase.READY, Phase.RELEASING])
def test_a_function_counts_from_the_first_sight_of_gone_or_deleting(phase: Phase):
    fence = Fence(UID, "p", "default")
    fence.learn(PodState.DELETING, 1_000)
    assert fence.verdict(run(phase), 1_000) == Verdict(Proof.POD_DELETING, 0, FENCE_MS)
    fence.learn(PodState.ABSENT, 31_000)
    assert fence.verdict(run(phase), 31_000) == Verdict(Proof.POD_ABSENT, 30_000, 30_000)
    assert fence.verdict(run(phase), 61_000) == Verdict(Proof.POD_ABSENT, 60_000, 0)


def test_a_task_counts_from_the_end_of_the_grace():
    fence = Fence(UID, "p", "default")
    fence.learn(PodState.DELETING, 1_000)
    assert fence.verdict(run(Phase.RUNNING), 500_000) is None
    fence.learn(PodState.PAST_GRACE, 500_000)
    assert fence.verdict(run(Phase.RUNNING), 510_000) == Verdict(Proof.POD_PAST_GRACE, 10_000, 50_000)
    fence.learn(PodState.ABSENT, 520_000)
    assert fence.verdict(run(Phase.RUNNING), 560_000) == Verdict(Proof.POD_ABSENT, 60_000, 0)


@pytest.mark.parametrize("phase", [Phase.REGISTERING, Phase.READY, Phase.RELEASING, Phase.RUNNING])
def test_a_pod_that_has_ended_needs_no_waiting(phase: Phase):
    fence = Fence(UID, "p", "default")
    fence.learn(PodState.DELETING, 0)
    fence.learn(PodState.ENDED, 5_000)
    verdict = fence.verdict(run(phase), 5_000)
    assert verdict is not None and (verdict.proof, verdict.due_in_ms) == (Proof.POD_TERMINATED, 0)
    fence.learn(PodState.PRESENT, 6_000)
    assert fence.state is PodState.ENDED, "what is proven stays proven"
