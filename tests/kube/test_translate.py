"""What an object shows, as the lifecycle sees it; and back: a status written by a patch reads as the same status."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.kube.patches import put_finalizer_patch, status_fields, status_patch, take_finalizer_patch
from controlplane.kube.translate import FINALIZER, run_from_object, translate
from controlplane.kube.types import RunObject
from statemachine.commands import Guard, PatchStatus, PutFinalizer, TakeFinalizer
from statemachine.events import CancelRequested, DeletionRequested, Observed, Removed
from statemachine.reasons import Reason
from statemachine.run import (
    ArtifactRef,
    Condition,
    Mode,
    Phase,
    PodUID,
    Release,
    Run,
    Status,
    Target,
    TaskResult,
)
from tests.kit.builders import assigned, function_run, task_run
from tests.kit.jsonpatching import PatchFailed, json_patch

AT = 1_767_225_600_000_000
DELETED: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def names(events: tuple[object, ...]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_the_seeds_function_reads_as_it_is_written() -> None:
    spec = {
        "mode": {"function": {"handler": "main.invoke", "idleTimeoutSeconds": 600, "concurrency": 4}},
        "timeout": "1h2m3s",
        "retryPolicy": {"maxAttempts": 3, "backoff": "2s", "retryableReasons": ["ImportFailed"]},
        "ttlSecondsAfterFinished": 60,
        "resources": {"requests": {"runs": "1000m", "gpu": 2}},
    }
    run = run_from_object(function_run(spec=spec, metadata={"finalizers": ["other/one", FINALIZER]}))
    assert run.spec == msgspec.structs.replace(
        run.spec,
        runtime="python",
        mode=Mode.FUNCTION,
        handler="main.invoke",
        requests=(("gpu", 2), ("runs", 1)),
        concurrency=4,
        idle_timeout_ms=600_000,
        lifetime_ms=3_723_000,
        ttl_ms=60_000,
        max_attempts=3,
        backoff_ms=2000,
        retryable_reasons=("ImportFailed",),
    )
    assert (run.finalizer, run.foreign_finalizer, run.deleting, run.phase) == (True, True, False, Phase.PENDING)
    assert run.created_us == AT


def test_a_task_with_nothing_said_has_the_defaults() -> None:
    run = run_from_object(task_run())
    assert (run.spec.mode, run.spec.handler, run.spec.requests) == (Mode.TASK, None, (("runs", 1),))
    assert (run.spec.lifetime_ms, run.spec.ttl_ms, run.spec.max_attempts, run.spec.backoff_ms) == (None, None, 1, 1000)


def test_no_source_and_no_environment_value_is_part_of_a_run() -> None:
    obj = function_run(spec={"env": [{"name": "A", "value": "hidden-value"}]})
    raw = msgspec.json.encode(run_from_object(obj))
    assert b"hidden-value" not in raw
    assert b"diagnosis" not in raw


def test_a_request_for_a_broken_quantity_never_fits() -> None:
    run = run_from_object(function_run(spec={"resources": {"requests": {"runs": "500m"}}}))
    assert run.spec.requests[0][1] > 10**15


def test_broken_times_and_unknown_reasons_read_as_absent() -> None:
    status = assigned("Ready") | {"startTime": "yesterday"}
    status["conditions"] = [{"type": "Ready", "status": "True", "reason": "SomethingElse"}]
    run = run_from_object(function_run(status=status))
    assert (run.status.start_us, run.status.ready) == (None, None)


@pytest.mark.parametrize(
    ("phase", "cancel", "deleting", "expected"),
    [
        ("Pending", False, False, []),
        ("Pending", True, False, ["CancelRequested"]),
        ("Scheduled", True, False, ["CancelRequested"]),
        ("Ready", True, False, ["CancelRequested"]),
        ("Running", True, False, ["CancelRequested"]),
        ("Ready", False, True, ["DeletionRequested"]),
        ("Ready", True, True, ["DeletionRequested"]),
        ("Releasing", True, True, []),
        ("Cancelled", True, False, []),
        ("Failed", True, True, ["DeletionRequested"]),
    ],
)
def test_a_request_follows_what_was_observed(phase: str, cancel: bool, deleting: bool, expected: list[str]) -> None:
    obj = function_run(
        spec={"cancelRequested": cancel},
        status={"phase": "Pending"} if phase == "Pending" else assigned(phase),
        metadata=DELETED if deleting else {},
    )
    events = translate(None, obj, AT)
    assert names(events) == ["Observed", *expected]
    assert isinstance(events[0], Observed)
    assert (events[0].run, events[0].resource_version, events[0].at_us) == (run_from_object(obj), "1", AT)


def test_a_released_run_that_another_holds_asks_for_its_end() -> None:
    status = {"phase": "Releasing", "attempt": 1, "release": {"target": "Gone", "reason": "Deleted"}}
    obj = function_run(status=status, metadata=DELETED | {"finalizers": ["other/one"]})
    assert names(translate(None, obj, AT)) == ["Observed", "DeletionRequested"]


def test_what_is_gone_is_removed() -> None:
    assert translate(function_run(), None, AT) == (Removed(at_us=AT, resource_version="1"),)


def test_the_same_object_twice_means_the_same() -> None:
    obj = function_run(status=assigned("Ready"), spec={"cancelRequested": True})
    assert translate(obj, obj, AT) == translate(None, obj, AT)
    assert isinstance(translate(obj, obj, AT)[1], CancelRequested)
    assert isinstance(translate(None, function_run(metadata=DELETED), AT)[1], DeletionRequested)


# patches

conditions = st.builds(
    Condition,
    status=st.booleans(),
    reason=st.sampled_from(list(Reason)),
    message=st.text(max_size=20),
    since_us=st.integers(min_value=0, max_value=2**52),
)
times = st.none() | st.integers(min_value=0, max_value=2**52)
artifacts = st.builds(
    ArtifactRef,
    name=st.text(min_size=1, max_size=5),
    uri=st.text(min_size=1, max_size=5),
    size_bytes=st.none() | st.integers(min_value=0, max_value=2**40),
    digest=st.none() | st.just("sha256:0"),
)
results = st.builds(
    TaskResult,
    exit_code=st.none() | st.integers(min_value=-1, max_value=255),
    outputs=st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3).map(
        lambda found: tuple(found.items())
    ),
    artifact_refs=st.lists(artifacts, max_size=2).map(tuple),
)
pods = st.none() | st.sampled_from(["pod-1", "pod-2"])


@st.composite
def statuses(draw: st.DrawFn) -> Status:
    pod = draw(pods)
    target = draw(st.none() | st.sampled_from(list(Target)))
    return Status(
        phase=draw(st.sampled_from([phase for phase in Phase if phase is not Phase.GONE])),
        reason=draw(st.sampled_from(["", *map(str, Reason)])),
        message=draw(st.text(max_size=20)),
        attempt=draw(st.integers(min_value=0, max_value=5)),
        failures=draw(st.integers(min_value=0, max_value=5)),
        pod_name=pod,
        pod_uid=None if pod is None else PodUID(f"uid-{pod}"),
        endpoint_url=draw(st.none() | st.sampled_from(["https://a", "https://b"])),
        scheduled=draw(st.none() | conditions),
        ready=draw(st.none() | conditions),
        start_us=draw(times),
        ready_us=draw(times),
        completion_us=draw(times),
        next_attempt_us=draw(times),
        release=None if target is None else Release(target, draw(st.sampled_from(list(Reason)))),
        result=draw(results),
    )


def object_with(status: Status, **metadata: Any) -> dict[str, Any]:
    obj = msgspec.json.decode(msgspec.json.encode(function_run(metadata=metadata)))
    obj["status"] = status_fields(status)
    return obj


def read(obj: dict[str, Any]) -> Run:
    return run_from_object(msgspec.convert(obj, RunObject))


@settings(max_examples=60)
@given(before=statuses(), after=statuses())
def test_a_status_patch_makes_one_status_into_the_other(before: Status, after: Status) -> None:
    obj = object_with(before)
    shown = read(obj)
    assert shown.status == before
    command = PatchStatus(Guard(before.phase, before.attempt, before.pod_uid), after)
    patched = json_patch(obj, status_patch(shown, command))
    assert read(patched).status == after


@settings(max_examples=40)
@given(status=statuses())
def test_an_unchanged_status_is_only_tested(status: Status) -> None:
    obj = object_with(status)
    patch = status_patch(read(obj), PatchStatus(Guard(status.phase, status.attempt, status.pod_uid), status))
    assert {op["op"] for op in patch} == {"test"}


READY = Status(phase=Phase.REGISTERING, attempt=3, pod_name="p", pod_uid=PodUID("uid-p"), start_us=AT)


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"metadata": {"uid": "another"}},
        {"status": {"phase": "Ready"}},
        {"status": {"attempt": 4}},
        {"status": {"assignedPodUID": "uid-q"}},
    ],
)
def test_a_status_patch_fails_where_anything_it_rests_on_has_changed(elsewhere: dict[str, dict[str, Any]]) -> None:
    obj = object_with(READY)
    patch = status_patch(read(obj), PatchStatus(Guard(READY.phase, READY.attempt, READY.pod_uid), READY))
    for part, fields in elsewhere.items():
        obj[part].update(fields)
    with pytest.raises(PatchFailed):
        json_patch(obj, patch)


def test_a_new_endpoint_carries_the_root_and_a_kept_one_is_not_written() -> None:
    obj = object_with(READY)
    ready = msgspec.structs.replace(READY, phase=Phase.READY, endpoint_url="https://gateway/it:invoke")
    command = PatchStatus(Guard(READY.phase, READY.attempt, READY.pod_uid), ready)
    patched = json_patch(obj, status_patch(read(obj), command, ca_bundle="-----BEGIN"))
    assert patched["status"]["endpoint"] == {
        "protocol": "HTTPS",
        "url": "https://gateway/it:invoke",
        "caBundle": "LS0tLS1CRUdJTg==",
    }
    shown = read(patched)
    silent = msgspec.structs.replace(ready, ready=Condition(False, Reason.OWNER_UNREACHABLE, "", AT))
    patch = status_patch(shown, PatchStatus(Guard(ready.phase, ready.attempt, ready.pod_uid), silent))
    assert [op["path"] for op in patch if op["op"] != "test"] == ["/status/conditions"]


# the finalizer


def test_the_finalizer_goes_behind_those_that_are_there() -> None:
    for there in ([], ["other/one"], ["other/one", "other/two"]):
        obj = object_with(READY, finalizers=there) if there else object_with(READY)
        patch = put_finalizer_patch(msgspec.convert(obj, RunObject), PutFinalizer(3, PodUID("uid-p")))
        assert json_patch(obj, patch)["metadata"]["finalizers"] == [*there, FINALIZER]


def test_putting_fails_where_another_was_put_meanwhile() -> None:
    for there, meanwhile in (([], ["other/one"]), (["other/one"], ["other/two"]), (["other/one"], [])):
        obj = object_with(READY, finalizers=there) if there else object_with(READY)
        patch = put_finalizer_patch(msgspec.convert(obj, RunObject), PutFinalizer(3, PodUID("uid-p")))
        obj["metadata"]["finalizers"] = meanwhile
        with pytest.raises(PatchFailed):
            json_patch(obj, patch)


@pytest.mark.parametrize("there", [[FINALIZER], ["a/b", FINALIZER], [FINALIZER, "a/b"], ["a/b", FINALIZER, "c/d"]])
def test_the_finalizer_is_taken_from_its_place(there: list[str]) -> None:
    obj = object_with(READY, finalizers=there)
    patch = take_finalizer_patch(msgspec.convert(obj, RunObject), TakeFinalizer(3, PodUID("uid-p")))
    assert json_patch(obj, patch)["metadata"]["finalizers"] == [name for name in there if name != FINALIZER]
    obj["metadata"]["finalizers"] = ["x/y", *there]
    with pytest.raises(PatchFailed):
        json_patch(obj, patch)


def test_the_finalizers_patch_says_nothing_of_the_phase() -> None:
    obj = msgspec.convert(object_with(READY, finalizers=[FINALIZER]), RunObject)
    paths = [op["path"] for op in take_finalizer_patch(obj, TakeFinalizer(3, PodUID("uid-p")))]
    assert paths == [
        "/metadata/uid",
        "/status/attempt",
        "/status/assignedPodUID",
        "/metadata/finalizers/0",
        "/metadata/finalizers/0",
    ]


def test_what_is_done_already_needs_no_patch() -> None:
    on = msgspec.convert(object_with(READY, finalizers=[FINALIZER]), RunObject)
    off = msgspec.convert(object_with(READY), RunObject)
    assert put_finalizer_patch(on, PutFinalizer(3, PodUID("uid-p"))) == []
    assert take_finalizer_patch(off, TakeFinalizer(3, None)) == []
