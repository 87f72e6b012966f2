"""The projection: keyed by UID, honest about what it does not know."""

from msgspec.structs import replace

from statemachine.ownership import TOMBSTONES_MAX, Miss, Owner, PodFact, Projection, RunFact
from statemachine.run import Phase, PodUID, RunUID

RUN = RunFact(RunUID("r"), "ns", "python", "name", Phase.READY, 1, "p", PodUID("pod-a"))
POD = PodFact(PodUID("pod-a"), "ns", "python", "127.0.0.2", 8443, True)


def test_an_owner_is_found_once_run_and_pod_are_known() -> None:
    projection = Projection()
    assert projection.look_up("ns", "python", RUN.uid) is Miss.UNKNOWN
    projection.run_seen(RUN)
    assert projection.look_up("ns", "python", RUN.uid) == Owner(RUN, None)
    projection.pod_seen(POD)
    assert projection.look_up("ns", "python", RUN.uid) == Owner(RUN, POD)
    projection.pod_gone(POD.uid)
    assert projection.look_up("ns", "python", RUN.uid) == Owner(RUN, None)
    assert projection.ready_pods("ns", "python") == []


def test_a_run_of_another_namespace_or_runtime_is_elsewhere() -> None:
    projection = Projection()
    projection.run_seen(RUN)
    assert projection.look_up("other", "python", RUN.uid) is Miss.ELSEWHERE
    assert projection.look_up("ns", "bash", RUN.uid) is Miss.ELSEWHERE


def test_a_deleted_run_is_a_tombstone_and_a_namesake_is_another_run() -> None:
    projection = Projection()
    projection.run_seen(RUN)
    projection.run_gone(RUN.uid)
    projection.run_seen(replace(RUN, uid=RunUID("r2")))
    assert projection.look_up("ns", "python", RUN.uid) is Miss.DELETED
    assert isinstance(projection.look_up("ns", "python", RunUID("r2")), Owner)


def test_a_late_fact_of_an_older_attempt_changes_nothing() -> None:
    projection = Projection()
    projection.run_seen(replace(RUN, attempt=2, pod_uid=PodUID("pod-b")))
    projection.run_seen(RUN)
    known = projection.run(RUN.uid)
    assert known is not None
    assert known.attempt == 2


def test_a_finished_run_has_no_owner_to_dial() -> None:
    projection = Projection()
    projection.pod_seen(POD)
    projection.run_seen(replace(RUN, phase=Phase.TIMEOUT))
    assert projection.look_up("ns", "python", RUN.uid) == Owner(replace(RUN, phase=Phase.TIMEOUT), None)


def test_a_list_ends_what_it_does_not_hold_within_its_scope() -> None:
    projection = Projection()
    projection.run_seen(RUN)
    projection.run_seen(replace(RUN, uid=RunUID("elsewhere"), namespace="other"))
    projection.listed("ns", None, {RunUID("new")})
    assert projection.look_up("ns", "python", RUN.uid) is Miss.DELETED
    assert projection.run(RunUID("elsewhere")) is not None


def test_tombstones_are_bounded() -> None:
    projection = Projection()
    for number in range(TOMBSTONES_MAX + 1):
        projection.run_gone(RunUID(str(number)))
    assert projection.look_up("ns", "python", RunUID("0")) is Miss.UNKNOWN
    assert projection.look_up("ns", "python", RunUID("1")) is Miss.DELETED


def test_pods_of_one_runtime_are_found_whether_ready_or_not() -> None:
    projection = Projection()
    draining = replace(POD, uid=PodUID("pod-b"), ready=False)
    for pod in (POD, draining):
        projection.pod_seen(pod)
    assert projection.ready_pods("ns", "python") == [POD]
    assert projection.pods("ns", "python") == [POD, draining]
