"""Every (phase, event) pair: what is legal goes where the specification says, and everything else changes nothing."""

import itertools

import pytest
from msgspec.structs import replace

from statemachine import events as ev
from statemachine.events import Role
from statemachine.invariants import violations
from statemachine.reasons import Reason
from statemachine.run import Condition, Mode, Phase, Run
from statemachine.step import RefusalCode, step
from tests.statemachine.samples import DECISIONS, modes_of, run_in

P, S, G, R, L, U = Phase.PENDING, Phase.SCHEDULED, Phase.REGISTERING, Phase.READY, Phase.RELEASING, Phase.RUNNING
TERMINAL = (Phase.SUCCEEDED, Phase.FAILED, Phase.TIMEOUT, Phase.CANCELLED)
CP, RD = Role.CONTROL_PLANE, Role.RUNTIMED

# (phase, event) -> (who decides, the phase that follows for the samples of `samples.py`), written out by hand from the
# specification so that a change of the table shows here.
LEGAL: dict[tuple[Phase, type[ev.Event]], tuple[Role, Phase]] = {
    (P, ev.Waiting): (CP, P),
    (P, ev.Bound): (CP, S),
    (P, ev.CancelRequested): (CP, Phase.CANCELLED),
    (S, ev.CancelRequested): (CP, Phase.CANCELLED),
    (S, ev.DeletionRequested): (CP, P),
    (S, ev.Claimed): (RD, G),
    (S, ev.BindingRefused): (RD, P),
    (S, ev.ClaimExpired): (CP, P),
    (G, ev.FunctionRegistered): (RD, R),
    (G, ev.RegistrationFailed): (RD, P),
    (G, ev.NoSlotHere): (RD, P),
    (U, ev.NoSlotHere): (RD, P),
    (G, ev.PodDraining): (RD, P),
    (R, ev.PodDraining): (RD, P),
    (U, ev.PodDraining): (RD, P),
    (R, ev.RegistrationLost): (RD, P),
    (R, ev.OwnerSilent): (CP, R),
    (R, ev.OwnerHeard): (RD, R),
    (R, ev.IdleExpired): (RD, L),
    **{(phase, ev.CancelRequested): (RD, L) for phase in (G, R, U)},
    **{(phase, ev.DeletionRequested): (RD, L) for phase in (G, R, U)},
    **{(phase, ev.LifetimeExpired): (RD, L) for phase in (G, R, U)},
    (L, ev.Released): (RD, Phase.TIMEOUT),
    (U, ev.TaskExited): (RD, Phase.SUCCEEDED),
    (G, ev.AssignmentLost): (CP, P),
    (R, ev.AssignmentLost): (CP, P),
    (U, ev.AssignmentLost): (CP, P),
    (L, ev.AssignmentLost): (CP, Phase.TIMEOUT),
    (P, ev.DeletionRequested): (CP, Phase.GONE),
    (L, ev.DeletionRequested): (CP, Phase.GONE),
    **{(phase, ev.DeletionRequested): (CP, Phase.GONE) for phase in TERMINAL},
    **{(phase, ev.TtlExpired): (CP, phase) for phase in TERMINAL},
}


def ready_for(run: Run, event: type[ev.Event]) -> Run:
    """The sample, with what the event's guards ask for."""
    if event is ev.CancelRequested:
        return replace(run, cancel_requested=True)
    if event is ev.DeletionRequested:
        run = replace(run, deleting=True, finalizer=True)
        if run.phase is L:
            run = replace(run, status=replace(run.status, pod_name=None, pod_uid=None))
        return run
    if event is ev.OwnerHeard:
        silent = Condition(False, Reason.OWNER_UNREACHABLE, since_us=1)
        return replace(run, status=replace(run.status, ready=silent))
    return run


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("phase", "event"), list(itertools.product(Phase, DECISIONS)), ids=lambda v: getattr(v, "__name__", v)
)
def test_every_pair_does_what_the_specification_says(phase: Phase, event: type[ev.Event], role: Role) -> None:
    for mode in modes_of(phase):
        run = ready_for(run_in(phase), event) if phase is not Phase.GONE else run_in(P, gone=True)
        run = replace(run, spec=replace(run.spec, mode=mode))
        outcome = step(run, DECISIONS[event](), role)
        decider, to = LEGAL.get((phase, event), (None, None))
        if decider is role:
            expected = U if (phase, event, mode) == (S, ev.Claimed, Mode.TASK) else to
            assert outcome.refusal is None
            assert outcome.run.phase is expected
            assert outcome.commands
            assert violations(run, outcome.run) == []
        else:
            assert outcome.refusal is not None
            assert outcome.refusal.code is (RefusalCode.ILLEGAL if decider is None else RefusalCode.NOT_DECIDER)
            assert outcome.run is run
            assert outcome.commands == ()


@pytest.mark.parametrize("field", ["attempt", "pod_uid", "run_uid"])
@pytest.mark.parametrize(
    ("phase", "event"),
    [pair for pair in LEGAL if "epoch" in pair[1].__struct_fields__],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_an_event_of_another_epoch_is_refused(phase: Phase, event: type[ev.Event], field: str) -> None:
    run = ready_for(run_in(phase), event)
    sample = DECISIONS[event]()
    other = replace(sample.epoch, **{field: 7 if field == "attempt" else "other"})
    outcome = step(run, replace(sample, epoch=other), LEGAL[phase, event][0])
    assert outcome.refusal is not None
    assert outcome.refusal.guard == "same_epoch"
    assert outcome.run is run


GUARDED = [
    (run_in(P, deleting=True), DECISIONS[ev.Bound](), CP, "wanted"),
    (run_in(P, cancel_requested=True), DECISIONS[ev.Bound](), CP, "wanted"),
    (run_in(P), ev.Bound(at_us=1, pod_name="a", pod_uid="a", pod_eligible=False), CP, "pod_eligible"),
    (run_in(P), DECISIONS[ev.CancelRequested](), CP, "cancel_requested"),
    (run_in(P), DECISIONS[ev.DeletionRequested](), CP, "deleting"),
    (run_in(P, deleting=True), DECISIONS[ev.DeletionRequested](), CP, "finalizer_on"),
    (run_in(S, deleting=True), DECISIONS[ev.DeletionRequested](), CP, "finalizer_on"),
    (run_in(S, deleting=True), DECISIONS[ev.Claimed](), RD, "finalizer_possible"),
    (run_in(S), replace(DECISIONS[ev.ClaimExpired](), waited_ms=29_999), CP, "claim_overdue"),
    (run_in(G), replace(DECISIONS[ev.RegistrationFailed](), reason=Reason.TASK_FAILED), RD, "registration_failure"),
    (run_in(U, Mode.TASK), replace(DECISIONS[ev.PodDraining](), dispatched=True), RD, "not_dispatched"),
    (run_in(R), DECISIONS[ev.OwnerHeard](), RD, "owner_silent"),
    (run_in(R), replace(DECISIONS[ev.LifetimeExpired](), at_us=1), RD, "lifetime_over"),
    (run_in(L, deleting=True), DECISIONS[ev.DeletionRequested](), CP, "no_pod"),
    (run_in(Phase.FAILED), replace(DECISIONS[ev.TtlExpired](), at_us=1), CP, "ttl_over"),
    (run_in(Phase.FAILED, deleting=True), DECISIONS[ev.TtlExpired](), CP, "not_deleting"),
    *(
        (run_in(phase), replace(DECISIONS[ev.AssignmentLost](), proof=proof, held_ms=59_999), CP, "fenced")
        for phase in (G, R, L)
        for proof in set(ev.Proof) - {ev.Proof.POD_TERMINATED}
    ),
    (
        run_in(U, Mode.TASK),
        replace(DECISIONS[ev.AssignmentLost](), proof=ev.Proof.POD_DELETING, held_ms=10**9),
        CP,
        "fenced",
    ),
]


@pytest.mark.parametrize(("run", "event", "role", "guard"), GUARDED)
def test_a_guard_refuses_by_its_name_and_leaves_no_trace(run: Run, event: ev.Event, role: Role, guard: str) -> None:
    outcome = step(run, event, role)
    assert outcome.refusal is not None
    assert (outcome.refusal.code, outcome.refusal.guard) == (RefusalCode.GUARD, guard)
    assert outcome.run is run
    assert outcome.commands == ()


def test_a_pod_lost_expires_a_claim_at_once() -> None:
    event = replace(DECISIONS[ev.ClaimExpired](), waited_ms=0, pod_lost=True)
    assert step(run_in(S), event, CP).run.phase is P


@pytest.mark.parametrize("phase", [G, R, L])
@pytest.mark.parametrize("proof", [ev.Proof.POD_ABSENT, ev.Proof.POD_DELETING, ev.Proof.POD_PAST_GRACE])
def test_the_fence_passes_after_sixty_seconds(phase: Phase, proof: ev.Proof) -> None:
    event = replace(DECISIONS[ev.AssignmentLost](), proof=proof, held_ms=60_000)
    assert step(run_in(phase), event, CP).refusal is None


def test_what_the_api_shows_is_adopted_and_a_gap_is_recorded() -> None:
    outcome = step(run_in(P), ev.Observed(at_us=1, run=run_in(R)), RD)
    assert outcome.run == run_in(R)
    assert outcome.gap
    assert not step(run_in(S), ev.Observed(at_us=1, run=run_in(G)), RD).gap
    assert not step(None, ev.Observed(at_us=1, run=run_in(R)), CP).gap
