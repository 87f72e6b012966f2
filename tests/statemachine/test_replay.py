"""Folding again: what agrees is silent, what differs is named with its place, and what-if leaves records out."""

from msgspec.structs import replace

from statemachine import events as ev
from statemachine.commands import EmitEvent
from statemachine.journal import MAGIC, Record, decode, encode
from statemachine.reasons import Reason
from statemachine.replay import Fold, replay
from statemachine.run import Phase
from statemachine.step import Refusal, RefusalCode
from tests.statemachine.samples import UID, run_in
from tests.statemachine.test_journal import RECORDS


def fold(records: list[Record], **options: object) -> Fold:
    return replay(decode(MAGIC + b"".join(map(encode, records))), **options)


def test_a_true_journal_folds_to_the_state_last_seen() -> None:
    outcome = fold(RECORDS)
    assert outcome.divergence is None
    assert outcome.runs == {UID: run_in(Phase.SCHEDULED)}
    assert [moment.run.phase for moment in outcome.moments] == [Phase.PENDING, Phase.PENDING, Phase.SCHEDULED]


def test_altered_commands_are_the_first_divergence() -> None:
    altered = replace(RECORDS[1], commands=(EmitEvent(True, Reason.BOUND, "never said"),))
    found = fold([RECORDS[0], altered, RECORDS[2]]).divergence
    assert found is not None
    assert (found.index, found.seq, found.what) == (1, 2, "commands")
    assert "never said" in found.recorded
    assert "PatchStatus" in found.folded


def test_a_refusal_that_the_rules_do_not_give_is_a_divergence() -> None:
    altered = replace(RECORDS[1], commands=(), refusal=Refusal(RefusalCode.ILLEGAL, "no"))
    found = fold([RECORDS[0], altered]).divergence
    assert found is not None
    assert found.what == "commands"


def test_an_altered_observation_diverges_in_what_follows_from_it() -> None:
    seen = ev.Observed(at_us=1, run=run_in(Phase.READY))
    found = fold([replace(RECORDS[0], event=seen), *RECORDS[1:]]).divergence
    assert found is not None
    assert found.index == 1


def test_a_journal_whose_beginning_is_gone_is_taken_up_at_the_next_observation() -> None:
    outcome = fold(RECORDS[1:])
    assert outcome.divergence is None
    assert outcome.lost == 1
    assert outcome.runs == {UID: run_in(Phase.SCHEDULED)}


def test_a_restarted_process_sees_its_runs_afresh_without_a_divergence() -> None:
    again = replace(RECORDS[2], seq=4, fresh=True)
    outcome = fold([*RECORDS, again])
    assert outcome.divergence is None
    assert len(outcome.moments) == 4
    not_said = fold([*RECORDS, replace(again, fresh=False)])
    assert not_said.divergence is not None


def test_to_stops_after_a_record_and_without_leaves_one_out() -> None:
    assert fold(RECORDS, to=2).runs[UID].phase is Phase.PENDING
    what_if = fold(RECORDS, without=frozenset({3}))
    assert what_if.runs[UID].phase is Phase.PENDING
    assert what_if.divergence is None
    assert fold(RECORDS, without=frozenset({1})).runs[UID].phase is Phase.SCHEDULED
    assert fold(RECORDS, without=frozenset({1})).lost == 0


def test_another_run_is_left_out() -> None:
    assert fold(RECORDS, run_uid="other").moments == ()


def test_an_observed_change_that_breaks_an_invariant_is_reported_with_its_sentence() -> None:
    broken = run_in(Phase.SCHEDULED)
    broken = replace(broken, status=replace(broken.status, pod_name=None))
    record = replace(RECORDS[2], event=replace(RECORDS[2].event, run=broken))
    assert fold([*RECORDS[:2], record]).broken == ((3, "assignedPod and assignedPodUID are set and cleared together."),)
