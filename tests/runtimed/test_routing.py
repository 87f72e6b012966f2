"""Where a call goes from a Pod: facts in, decision out, as a table (L3, O1, O2)."""

import pytest
from msgspec.structs import replace

from dataplane.runtimed.local import Local, Stage
from dataplane.runtimed.routing import Await, Here, Pass, Refuse, Serve, route
from dataplane.wire.messages import InvokeRequest
from statemachine.ownership import PodFact, Projection, RunFact
from statemachine.reasons import Reason
from statemachine.run import Epoch, Mode, Phase, PodUID, Run, RunSpec, RunUID, Status

UID, ME, PEER = RunUID("u"), PodUID("pod-1"), PodUID("pod-2")
EPOCH = Epoch(UID, 2, ME)
OPEN = Local(EPOCH, Mode.FUNCTION, Stage.OPEN)
POD = PodFact(uid=PEER, namespace="default", runtime="python", address="10.0.0.2", port=8443, ready=True)
HEAD = InvokeRequest(
    namespace="default", runtime="python", run_uid=UID, invocation_id="i", deadline_ms=1000, user="jane"
)


def here(local: Local | None = None, phase: Phase = Phase.READY, *, fresh: bool = True, moved: bool = False) -> Here:
    status = Status(phase=phase, attempt=3 if moved else 2, pod_name="p", pod_uid=PEER if moved else ME)
    run = Run(UID, "default", "f", RunSpec(runtime="python", mode=Mode.FUNCTION), status)
    return Here(ME, local, run if local is not None else None, fresh, False)


def facts(
    phase: Phase | None = Phase.READY,
    pod: PodUID | None = PEER,
    mode: Mode = Mode.FUNCTION,
    attempt: int = 3,
    *,
    known_peer: bool = True,
) -> Projection:
    projection = Projection()
    if phase is not None:
        projection.run_seen(RunFact(UID, "default", "python", "f", phase, attempt, "p", pod, mode))
    if known_peer:
        projection.pod_seen(POD)
    return projection


@pytest.mark.parametrize(
    ("local", "reason", "moving"),
    [
        (replace(OPEN, stage=Stage.CLAIMED), Reason.RUN_NOT_READY, False),
        (replace(OPEN, stage=Stage.FAILED), Reason.RUN_NOT_READY, False),
        (replace(OPEN, stage=Stage.GIVEN_UP), Reason.RUN_NOT_READY, True),
        (replace(OPEN, stage=Stage.CLOSING), Reason.RUN_FINISHED, False),
        (replace(OPEN, idle=True), Reason.RUN_FINISHED, False),
        (replace(OPEN, mode=Mode.TASK), Reason.NOT_A_FUNCTION, False),
    ],
)
def test_the_owner_alone_says_whether_calls_pass(local: Local, reason: Reason, moving: bool) -> None:
    assert route(HEAD, here(OPEN), facts(None)) == Serve(OPEN)
    refused = route(HEAD, here(local), facts(None))
    assert isinstance(refused, Refuse)
    assert (refused.reason, refused.moving) == (reason, moving)


def test_without_a_fresh_lease_nothing_is_dispatched() -> None:
    refused = route(HEAD, here(OPEN, fresh=False), facts(None))
    assert isinstance(refused, Refuse)
    assert refused.reason is Reason.STALE_OWNER


def test_an_epoch_that_is_named_is_the_only_one_that_serves() -> None:
    named = replace(HEAD, attempt=2, pod_uid=ME)
    assert route(named, here(OPEN), facts()) == Serve(OPEN)
    for other in (replace(HEAD, attempt=1, pod_uid=ME), replace(HEAD, attempt=3, pod_uid=ME)):
        refused = route(other, here(OPEN), facts())
        assert isinstance(refused, Refuse)
        assert refused.reason is Reason.STALE_OWNER


def test_a_moved_run_is_passed_on_while_its_old_epoch_drains_here() -> None:
    draining = here(replace(OPEN, stage=Stage.GIVEN_UP), moved=True)
    assert route(HEAD, draining, facts()) == Pass(POD, 3)
    refused = route(replace(HEAD, attempt=2, pod_uid=ME), draining, facts())
    assert isinstance(refused, Refuse)
    assert refused.moving


@pytest.mark.parametrize(
    ("head", "projection", "expected"),
    [
        (HEAD, facts(), Pass(POD, 3)),
        (replace(HEAD, attempt=4, pod_uid=PEER), facts(), Pass(POD, 4)),
        (replace(HEAD, hops=1), facts(), Reason.STALE_OWNER),
        (HEAD, facts(known_peer=False), Reason.OWNER_UNREACHABLE),
        (HEAD, facts(Phase.PENDING, None), Reason.RUN_NOT_READY),
        (HEAD, facts(Phase.SCHEDULED, ME), Reason.RUN_NOT_READY),
        (HEAD, facts(Phase.RELEASING), Reason.RUN_FINISHED),
        (HEAD, facts(Phase.TIMEOUT), Reason.RUN_FINISHED),
        (HEAD, facts(Phase.RUNNING, mode=Mode.TASK), Reason.NOT_A_FUNCTION),
        (HEAD, facts(None), Await()),
        (replace(HEAD, runtime="bash"), facts(), Reason.RUN_NOT_FOUND),
    ],
)
def test_anothers_run_is_asked_of_its_owner_once(
    head: InvokeRequest, projection: Projection, expected: Pass | Await | Reason
) -> None:
    decision = route(head, here(), projection)
    assert (decision.reason if isinstance(decision, Refuse) else decision) == expected


def test_a_deleted_run_is_not_found_at_once() -> None:
    projection = facts()
    projection.run_gone(UID)
    assert route(HEAD, here(), projection) == Refuse(Reason.RUN_NOT_FOUND)
