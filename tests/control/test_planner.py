"""The planner: facts in, the whole list of decisions out."""

import time

import msgspec
import pytest

from controlplane.scheduler.planner import Bind, Decision, Planner, Wait
from controlplane.scheduler.pool import PodView
from statemachine.reasons import Reason
from statemachine.run import Condition, Mode, Phase, PodUID, Run, RunSpec, RunUID, Status

KEY = ("default", "python")
NOW = 1_000_000_000


def run(
    number: int,
    *,
    phase: Phase = Phase.PENDING,
    pod: str | None = None,
    requests: tuple[tuple[str, int], ...] = (("runs", 1),),
    reason: Reason | None = None,
    next_us: int | None = None,
    runtime: str = "python",
    **fields: object,
) -> Run:
    status = Status(
        phase=phase,
        attempt=0 if pod is None else 1,
        pod_name=None if pod is None else f"name-{pod}",
        pod_uid=None if pod is None else PodUID(pod),
        scheduled=None if reason is None else Condition(False, reason),
        next_attempt_us=next_us,
    )
    spec = RunSpec(runtime=runtime, mode=Mode.FUNCTION, requests=requests)
    return Run(
        uid=RunUID(f"run-{number}"),
        namespace="default",
        name=f"r{number}",
        spec=spec,
        status=status,
        created_us=number,
        **fields,  # type: ignore[arg-type]
    )


def planner(*pods: str, capacity: dict[str, int] | None = None, **limits: int) -> Planner:
    made = Planner(**limits)
    made.runtime_seen(KEY, capacity or {"runs": 2})
    for pod in pods:
        made.pod_seen(KEY, PodView(PodUID(pod), f"name-{pod}", True))
    return made


def bound(number: int, pod: str) -> Bind:
    return Bind(RunUID(f"run-{number}"), f"name-{pod}", PodUID(pod))


def waits(decisions: list[Decision]) -> dict[str, Reason]:
    return {decision.run_uid: decision.reason for decision in decisions if isinstance(decision, Wait)}


def test_runs_go_to_the_least_loaded_pod_first_come_first_served():
    p = planner("a", "b")
    for number in (3, 1, 2, 4):
        p.run_seen(run(number))
    assert p.plan(NOW) == [bound(1, "a"), bound(2, "b"), bound(3, "a"), bound(4, "b")]
    assert p.plan(NOW) == []


def test_several_runs_share_a_pod_up_to_its_capacity_and_the_rest_is_told_why():
    p = planner("a")
    for number in (1, 2, 3):
        p.run_seen(run(number))
    decisions = p.plan(NOW)
    assert decisions[:2] == [bound(1, "a"), bound(2, "a")]
    assert waits(decisions) == {"run-3": Reason.NO_CAPACITY}


def test_an_assumed_binding_counts_until_it_is_settled_and_is_never_given_twice():
    p = planner("a", capacity={"runs": 1})
    p.run_seen(run(1))
    assert p.plan(NOW) == [bound(1, "a")]
    p.run_seen(run(2))
    assert waits(p.plan(NOW)) == {"run-2": Reason.NO_CAPACITY}
    # carried out: the Run itself now holds the slot
    p.bind_settled(run(1, phase=Phase.SCHEDULED, pod="a"))
    p.wait_settled(run(2, reason=Reason.NO_CAPACITY))
    assert p.plan(NOW) == []
    # released: the next one gets it
    p.run_seen(run(1, phase=Phase.TIMEOUT, pod="a"))
    assert p.plan(NOW) == [bound(2, "a")]


def test_a_binding_that_failed_is_planned_again():
    p = planner("a", capacity={"runs": 1})
    p.run_seen(run(1))
    assert p.plan(NOW) == [bound(1, "a")]
    p.bind_settled(run(1))
    assert p.plan(NOW) == [bound(1, "a")]


@pytest.mark.parametrize("phase", [Phase.SCHEDULED, Phase.REGISTERING, Phase.READY, Phase.RUNNING, Phase.RELEASING])
def test_every_owned_phase_holds_its_slot(phase: Phase):
    p = planner("a", capacity={"runs": 1})
    p.run_seen(run(1, phase=phase, pod="a"))
    p.run_seen(run(2))
    assert waits(p.plan(NOW)) == {"run-2": Reason.NO_CAPACITY}
    p.run_gone(RunUID("run-1"))
    assert p.plan(NOW) == [bound(2, "a")]


@pytest.mark.parametrize("phase", [Phase.SUCCEEDED, Phase.FAILED, Phase.TIMEOUT, Phase.CANCELLED])
def test_a_terminal_run_keeps_its_pod_on_record_and_no_slot(phase: Phase):
    p = planner("a", capacity={"runs": 1})
    p.run_seen(run(1, phase=phase, pod="a"))
    p.run_seen(run(2))
    assert p.plan(NOW) == [bound(2, "a")]


def test_a_run_released_but_held_by_another_finalizer_holds_no_slot():
    p = planner("a", capacity={"runs": 1})
    p.run_seen(run(1, phase=Phase.RELEASING, pod=None, deleting=True))
    p.run_seen(run(2))
    assert p.plan(NOW) == [bound(2, "a")]


def test_runs_seen_before_their_pod_and_runtime_count_once_those_are_seen():
    p = Planner()
    p.run_seen(run(1, phase=Phase.READY, pod="a"))
    p.run_seen(run(2))
    assert waits(p.plan(NOW)) == {"run-2": Reason.RUNTIME_NOT_FOUND}
    p.runtime_seen(KEY, {"runs": 1})
    p.wait_settled(run(2, reason=Reason.RUNTIME_NOT_FOUND))
    assert waits(p.plan(NOW)) == {"run-2": Reason.NO_CAPACITY}
    p.pod_seen(KEY, PodView(PodUID("a"), "name-a", True))
    assert [d for d in p.plan(NOW) if isinstance(d, Bind)] == []
    p.pod_seen(KEY, PodView(PodUID("b"), "name-b", True))
    assert p.plan(NOW) == [bound(2, "b")]


def test_pods_that_are_not_open_or_gone_get_nothing():
    p = planner("a", "b")
    p.pod_seen(KEY, PodView(PodUID("a"), "name-a", False))
    p.pod_gone(PodUID("b"))
    p.run_seen(run(1))
    assert waits(p.plan(NOW)) == {"run-1": Reason.NO_CAPACITY}


def test_cancelled_and_deleting_runs_are_not_bound():
    p = planner("a")
    p.run_seen(run(1, cancel_requested=True))
    p.run_seen(run(2, deleting=True))
    assert p.plan(NOW) == []
    p.run_seen(run(3))
    p.run_seen(run(3, cancel_requested=True))
    assert p.plan(NOW) == []
    assert p.waiting == 0


def test_requests_that_no_pod_could_ever_take_wait_as_neverfits_and_hold_nobody_up():
    p = planner("a", capacity={"runs": 2, "gpu": 1})
    p.run_seen(run(1, requests=(("runs", 3),)))
    p.run_seen(run(2, requests=(("tpu", 1),)))
    p.run_seen(run(3, requests=(("gpu", 1), ("runs", 1))))
    decisions = p.plan(NOW)
    assert [d for d in decisions if isinstance(d, Bind)] == [bound(3, "a")]
    assert waits(decisions) == {"run-1": Reason.NEVER_FITS, "run-2": Reason.NEVER_FITS}
    messages = {d.run_uid: d.message for d in decisions if isinstance(d, Wait)}
    assert messages["run-1"] == "Requests runs=3, but a Pod of Runtime python has runs=2, gpu=1"


def test_a_larger_capacity_makes_what_never_fitted_fit():
    p = planner("a", capacity={"runs": 1})
    p.run_seen(run(1, requests=(("runs", 2),)))
    assert waits(p.plan(NOW)) == {"run-1": Reason.NEVER_FITS}
    p.wait_settled(run(1, requests=(("runs", 2),), reason=Reason.NEVER_FITS))
    p.runtime_seen(KEY, {"runs": 2})
    assert p.plan(NOW) == [bound(1, "a")]


def test_all_requested_resources_must_fit():
    p = planner("a", "b", capacity={"runs": 4, "gpu": 1})
    p.run_seen(run(1, phase=Phase.READY, pod="a", requests=(("gpu", 1), ("runs", 1))))
    p.run_seen(run(2, requests=(("gpu", 1), ("runs", 1))))
    p.run_seen(run(3, requests=(("gpu", 1), ("runs", 1))))
    p.run_seen(run(4))
    decisions = p.plan(NOW)
    assert [d for d in decisions if isinstance(d, Bind)] == [bound(2, "b"), bound(4, "a")]
    assert waits(decisions) == {"run-3": Reason.NO_CAPACITY}


def test_a_run_that_asks_for_more_does_not_hold_up_those_that_ask_for_less():
    p = planner("a", capacity={"runs": 2})
    p.run_seen(run(1, phase=Phase.READY, pod="a"))
    p.run_seen(run(2, requests=(("runs", 2),)))
    p.run_seen(run(3))
    decisions = p.plan(NOW)
    assert [d for d in decisions if isinstance(d, Bind)] == [bound(3, "a")]
    assert waits(decisions) == {"run-2": Reason.NO_CAPACITY}


def test_a_reason_is_told_once_per_change():
    p = planner()
    p.run_seen(run(1))
    assert waits(p.plan(NOW)) == {"run-1": Reason.NO_CAPACITY}
    p.wait_settled(run(1, reason=Reason.NO_CAPACITY))
    assert p.plan(NOW) == []
    p.pod_seen(KEY, PodView(PodUID("a"), "name-a", False))
    p.wake()
    assert p.plan(NOW) == []
    p.runtime_seen(KEY, None)
    assert waits(p.plan(NOW)) == {"run-1": Reason.RUNTIME_NOT_FOUND}


def test_a_reason_that_could_not_be_written_is_told_again():
    p = planner()
    p.run_seen(run(1))
    assert waits(p.plan(NOW)) == {"run-1": Reason.NO_CAPACITY}
    p.wait_settled(run(1))
    assert waits(p.plan(NOW)) == {"run-1": Reason.NO_CAPACITY}


def test_a_run_that_backs_off_is_left_alone_until_it_is_due():
    p = planner("a")
    p.run_seen(run(1, next_us=NOW + 5, reason=Reason.BACKING_OFF))
    assert p.plan(NOW) == []
    p.due(RunUID("run-1"))
    assert p.plan(NOW + 5) == [bound(1, "a")]


def test_a_due_run_without_room_says_so():
    p = planner()
    p.run_seen(run(1, next_us=NOW + 5, reason=Reason.BACKING_OFF))
    p.due(RunUID("run-1"))
    assert waits(p.plan(NOW + 5)) == {"run-1": Reason.NO_CAPACITY}


def test_a_pod_that_refuses_is_left_alone_longer_each_time_until_it_claims():
    p = planner("a")
    p.run_seen(run(1))
    now = NOW
    for wait_us in (1_000_000, 2_000_000, 4_000_000):
        assert p.plan(now) == [bound(1, "a")]
        p.bind_settled(run(1, phase=Phase.SCHEDULED, pod="a"))
        p.refused(KEY, PodUID("a"), now)
        p.run_seen(run(1, reason=Reason.NO_CAPACITY))
        assert p.plan(now) == []
        assert p.next_wake_us(now) == now + wait_us
        now += wait_us
        p.wake()
    p.claimed(KEY, PodUID("a"))
    p.refused(KEY, PodUID("a"), now)
    assert p.next_wake_us(now) == now + 1_000_000


def test_a_refusing_pod_does_not_hold_up_another_one():
    p = planner("a", "b")
    p.refused(KEY, PodUID("a"), NOW)
    p.run_seen(run(1))
    assert p.plan(NOW) == [bound(1, "b")]


def test_bindings_under_way_are_bounded():
    p = planner("a", capacity={"runs": 100}, assumed_max=3)
    for number in range(1, 11):
        p.run_seen(run(number))
    assert len(p.plan(NOW)) == 3
    assert p.plan(NOW) == []
    p.bind_settled(run(1, phase=Phase.SCHEDULED, pod="a"))
    assert p.plan(NOW) == [bound(4, "a")]


def test_a_run_whose_reason_is_being_written_may_be_bound_and_stays_assumed():
    p = planner(capacity={"runs": 1})
    p.run_seen(run(1))
    assert waits(p.plan(NOW)) == {"run-1": Reason.NO_CAPACITY}
    p.pod_seen(KEY, PodView(PodUID("a"), "name-a", True))
    assert p.plan(NOW) == [bound(1, "a")]
    p.wait_settled(run(1, reason=Reason.NO_CAPACITY))
    p.run_seen(run(2))
    assert waits(p.plan(NOW)) == {"run-2": Reason.NO_CAPACITY}
    assert p.assumed == 1


def test_reasons_under_way_are_bounded_and_the_rest_is_told_later():
    p = planner(told_max=2)
    for number in range(1, 6):
        p.run_seen(run(number))
    assert waits(p.plan(NOW)) == {"run-1": Reason.NO_CAPACITY, "run-2": Reason.NO_CAPACITY}
    assert p.plan(NOW) == []
    for number in (1, 2):
        p.wait_settled(run(number, reason=Reason.NO_CAPACITY))
    assert waits(p.plan(NOW)) == {"run-3": Reason.NO_CAPACITY, "run-4": Reason.NO_CAPACITY}
    p.pod_seen(KEY, PodView(PodUID("a"), "name-a", True))
    assert p.plan(NOW) == [bound(1, "a"), bound(2, "a")], "a binding is not held up"


def test_runtimes_do_not_mix():
    p = planner("a")
    p.runtime_seen(("default", "bash"), {"runs": 1})
    p.pod_seen(("default", "bash"), PodView(PodUID("s"), "name-s", True))
    p.run_seen(run(1, runtime="bash"))
    p.run_seen(run(2))
    assert sorted(p.plan(NOW), key=lambda d: d.run_uid) == [bound(1, "s"), bound(2, "a")]


def test_totals_count_open_pods_and_everything_held():
    p = planner("a", "b")
    p.pod_seen(KEY, PodView(PodUID("b"), "name-b", False))
    p.run_seen(run(1, phase=Phase.READY, pod="a"))
    p.run_seen(run(2))
    p.plan(NOW)
    assert p.totals(KEY) == ({"runs": 2}, {"runs": 2})
    assert p.totals(("default", "none")) == ({}, {})


def test_nothing_is_kept_of_what_is_gone():
    p = planner("a")
    p.run_seen(run(1, phase=Phase.READY, pod="a"))
    p.run_seen(run(2, runtime="none"))
    p.plan(NOW)
    p.run_gone(RunUID("run-1"))
    p.run_gone(RunUID("run-2"))
    p.pod_gone(PodUID("a"))
    p.runtime_seen(KEY, None)
    p.plan(NOW)
    assert p._pools == {} and p._queues == {} and p._held == {} and p._assumed == {} and p._waiting == {}


def test_a_burst_of_runs_over_many_pods_is_planned_fast():
    pods = 500
    p = planner(*(f"p{number}" for number in range(pods)), capacity={"runs": 20}, assumed_max=10**6)
    runs = [run(number) for number in range(pods * 20)]
    for waiting in runs:
        p.run_seen(waiting)
    start = time.process_time()
    decisions = p.plan(NOW)
    spent = time.process_time() - start
    assert len(decisions) == len(runs)
    loads = p.totals(KEY)
    assert loads[0] == loads[1] == {"runs": pods * 20}
    assert spent < len(runs) / 5_000, "far below 20,000 a second means that something scans all Pods"


def test_a_binding_that_was_not_written_is_tried_again_after_a_backoff_too():
    p = planner("a")
    p.run_seen(run(1, next_us=NOW))
    assert p.plan(NOW) == []
    p.due(RunUID("run-1"))
    for _ in range(3):
        assert p.plan(NOW) == [bound(1, "a")]
        p.bind_settled(run(1, next_us=NOW))
    p.plan(NOW)
    # The wall clock was set back meanwhile: its backoff is not over any more.
    p.bind_settled(run(1, next_us=NOW), due=False)
    assert p.plan(NOW) == []
    p.due(RunUID("run-1"))
    assert p.plan(NOW) == [bound(1, "a")]


def test_runs_of_one_second_go_in_the_order_in_which_they_were_seen():
    p = planner("a", capacity={"runs": 2})
    for number in (3, 1, 2):
        p.run_seen(msgspec.structs.replace(run(number), created_us=7))
    for number in (1, 2, 3):  # seen again: their places stay
        p.run_seen(msgspec.structs.replace(run(number), created_us=7))
    assert p.plan(NOW)[:2] == [bound(3, "a"), bound(1, "a")]
