"""Long random lives: whatever arrives in whatever order, the invariants hold, and a journal folds to the same bytes."""

import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from statemachine import events as ev
from statemachine.events import Role
from statemachine.invariants import violations
from statemachine.journal import MAGIC, RULES_VERSION, Record, decode, encode
from statemachine.reasons import REGISTRATION_FAILURES, TASK_FAILURES, WAITING_REASONS, Reason
from statemachine.replay import replay
from statemachine.run import TERMINAL, Epoch, Mode, Phase, PodUID, Run, RunSpec, RunUID, Status, TaskResult
from statemachine.step import step

PODS = st.sampled_from([PodUID("pod-a"), PodUID("pod-b")])
SPECS = st.builds(
    RunSpec,
    runtime=st.just("python"),
    mode=st.sampled_from(Mode),
    handler=st.just("main.invoke"),
    lifetime_ms=st.sampled_from([None, 1000, 60_000]),
    ttl_ms=st.sampled_from([None, 0, 5000]),
    max_attempts=st.integers(1, 4),
    backoff_ms=st.sampled_from([1000, 50_000]),
    retryable_reasons=st.sampled_from([(), ("ImportFailed", "TaskFailed")]),
)


@st.composite
def decisions(draw: st.DrawFn, run: Run, at_us: int) -> ev.Event:
    """Any decision, of the epoch in force or of another."""
    current = run.epoch or Epoch(run.uid, run.status.attempt, PodUID("pod-a"))
    other = Epoch(run.uid, draw(st.integers(0, 4)), draw(PODS))
    epoch = draw(st.sampled_from([current, current, current, other]))
    text = draw(st.text(max_size=30))
    kind = draw(st.sampled_from(EVENTS))
    fields: dict[str, object] = {}
    names = kind.__struct_fields__
    if "epoch" in names:
        fields["epoch"] = epoch
    if "message" in names:
        fields["message"] = text
    if kind is ev.Waiting:
        fields["reason"] = draw(st.sampled_from(sorted(WAITING_REASONS)))
    if kind is ev.Bound:
        fields |= {"pod_name": "p", "pod_uid": draw(PODS), "pod_eligible": draw(st.booleans())}
    if kind is ev.RegistrationFailed:
        fields["reason"] = draw(st.sampled_from(sorted(REGISTRATION_FAILURES)))
    if kind is ev.TaskExited and draw(st.booleans()):
        fields["failure"] = draw(st.sampled_from(sorted(TASK_FAILURES)))
    elif kind is ev.TaskExited:
        fields["result"] = TaskResult(exit_code=draw(st.integers(0, 1)), outputs=(("k", text),))
    if kind is ev.AssignmentLost:
        fields |= {"proof": draw(st.sampled_from(ev.Proof)), "held_ms": draw(st.sampled_from([0, 60_000]))}
    if kind is ev.ClaimExpired:
        fields |= {"waited_ms": draw(st.sampled_from([0, 30_000])), "pod_lost": draw(st.booleans())}
    if kind is ev.PodDraining:
        fields["dispatched"] = draw(st.booleans())
    return kind(at_us=at_us, **fields)


EVENTS = [
    ev.Waiting,
    ev.Bound,
    ev.Bound,
    ev.CancelRequested,
    ev.DeletionRequested,
    ev.TtlExpired,
    ev.Claimed,
    ev.Claimed,
    ev.BindingRefused,
    ev.ClaimExpired,
    ev.FunctionRegistered,
    ev.FunctionRegistered,
    ev.RegistrationFailed,
    ev.NoSlotHere,
    ev.PodDraining,
    ev.RegistrationLost,
    ev.OwnerSilent,
    ev.OwnerHeard,
    ev.IdleExpired,
    ev.LifetimeExpired,
    ev.Released,
    ev.Released,
    ev.TaskExited,
    ev.AssignmentLost,
]


@st.composite
def lives(draw: st.DrawFn) -> list[Record]:
    """The journal of one process that sees every write of a Run's life, with lost writes, users' verbs and gaps."""
    run = Run(RunUID("run-1"), "default", "sample", draw(SPECS), foreign_finalizer=draw(st.booleans()))
    known: Run | None = None
    records: list[Record] = []
    at_us = 1_000_000

    def take(event: ev.Event, role: Role) -> Run:
        outcome = step(known, event, role)
        records.append(
            Record(
                len(records) + 1,
                "controlplane",
                role,
                RULES_VERSION,
                run.uid,
                event,
                outcome.commands,
                outcome.refusal,
                outcome.gap,
                fresh=known is None,
            )
        )
        if outcome.refusal is not None:
            assert outcome.run is known
        assert outcome.gap or violations(known, outcome.run) == []
        return outcome.run

    for _ in range(draw(st.integers(1, 60))):
        if known != run:
            known = take(ev.Observed(at_us=at_us, run=run), draw(st.sampled_from(Role)))
        at_us += draw(st.sampled_from([0, 1, 1_000_000, 70_000_000]))
        match draw(st.integers(0, 11)):
            case 0:
                run = replace(run, cancel_requested=True)
            case 1:
                run = replace(run, deleting=True, gone=not (run.finalizer or run.foreign_finalizer))
            case _ if not run.gone:
                decided = take(draw(decisions(run, at_us)), draw(st.sampled_from(Role)))
                if draw(st.integers(0, 5)):  # now and then the write is lost
                    run = decided
        if run.gone:
            assert known is not None
            known = take(ev.Removed(at_us=at_us), Role.CONTROL_PLANE)
            break
    return records


@settings(max_examples=300, deadline=None)
@given(lives())
def test_invariants_hold_at_every_step_and_replay_gives_the_same_bytes(records: list[Record]) -> None:
    segment = MAGIC + b"".join(encode(record) for record in records)
    entries = list(decode(segment))
    assert [entry.record for entry in entries] == records
    assert MAGIC + b"".join(encode(entry.record) for entry in entries if entry.record) == segment
    fold = replay(entries)
    assert fold.divergence is None
    assert fold.broken == ()
    assert [moment.step.commands for moment in fold.moments] == [record.commands for record in records]
    again = replay(entries)
    assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(fold)


@settings(max_examples=200, deadline=None)
@given(lives())
def test_no_life_leaves_a_terminal_phase_or_binds_twice(records: list[Record]) -> None:
    fold = replay(decode(MAGIC + b"".join(encode(record) for record in records)))
    phases = [moment.run.phase for moment in fold.moments]
    for before, after in itertools.pairwise(phases):
        assert before not in TERMINAL or after in (before, Phase.GONE)
    attempts = [moment.run.status.attempt for moment in fold.moments]
    assert attempts == sorted(attempts)


def test_a_retried_run_ends_failed_after_exactly_max_attempts_registrations() -> None:
    run = Run(RunUID("r"), "default", "n", RunSpec("python", Mode.FUNCTION, "a.b", max_attempts=3), Status())
    at_us, tried = 0, 0
    while run.phase is not Phase.FAILED:
        at_us += 120_000_000
        run = step(run, ev.Bound(at_us=at_us, pod_name="p", pod_uid=PodUID("p")), Role.CONTROL_PLANE).run
        assert run.epoch is not None
        run = step(run, ev.Claimed(at_us=at_us, epoch=run.epoch), Role.RUNTIMED).run
        assert run.epoch is not None
        failed = ev.RegistrationFailed(at_us=at_us, epoch=run.epoch, reason=Reason.IMPORT_FAILED, message="x")
        run = step(run, failed, Role.RUNTIMED).run
        tried += 1
    assert (tried, run.status.attempt, run.status.failures) == (3, 3, 3)
