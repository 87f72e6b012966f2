"""A Run's life in one Pod, from the claim to its end: what is written, in which order, and what is left behind."""

import asyncio
from pathlib import Path

import pytest

from controlplane.kube.resources import PODS, RUNS
from tests.kit.builders import assigned, function_run, runtime_pod, task_run
from tests.kit.fakekube import lost
from tests.kit.waiting import eventually
from tests.runtimed.fakes import NAMESPACE, POD, POD_UID, FakePod
from tests.runtimed.fakeserver import failing


def scheduled(name: str = "f", **more: object):  # type: ignore[no-untyped-def]
    return function_run(name, status=assigned("Scheduled", pod=POD, pod_uid=POD_UID), **more)  # type: ignore[arg-type]


def on_disk(pod: FakePod) -> list[str]:
    runs = pod.config.work_dir / "runs"
    return sorted(path.name for path in runs.iterdir()) if runs.is_dir() else []


def source_of(directory: str) -> str:
    return Path(directory, "main.py").read_text()


async def ready(pod: FakePod, **more: object) -> None:
    pod.kube.seed(RUNS, scheduled(**more))
    await pod.boot()
    await pod.until("f", "Ready")


async def test_a_scheduled_function_becomes_ready_with_three_writes(pod: FakePod) -> None:
    await ready(pod)
    run = pod.run("f")
    assert run is not None
    assert run.metadata.finalizers == ("kruntimes.io/cleanup",)
    assert run.status.endpoint is not None
    assert run.status.endpoint.url == "https://gateway.example/v1/namespaces/default/runtimes/python/runs/uid-f:invoke"
    assert run.status.endpoint.ca_bundle
    assert [(c.type, c.status, c.reason) for c in run.status.conditions] == [
        ("Scheduled", "True", "Bound"),
        ("Ready", "True", "FunctionRegistered"),
    ]
    assert sorted(pod.writes("f")) == ["object", "status", "status"]
    await eventually(lambda: pod.events.reasons == ["FunctionRegistered"])  # told after the write that `until` saw
    [request] = pod.server.registered
    assert source_of(request.directory).startswith("def invoke")
    assert request.env["KRUNTIME_RUN_NAME"] == "f"


async def test_deletion_releases_with_two_writes_and_leaves_nothing(pod: FakePod) -> None:
    await ready(pod)
    log = pod.config.work_dir / "logs" / "uid-f.ndjson"
    log.parent.mkdir()
    log.touch()
    before = len(pod.writes("f"))
    await pod.delete("f")
    await pod.until("f", "gone")
    assert pod.writes("f")[before + 1 :] == ["status", "object"]  # the first one is the user's
    await eventually(lambda: pod.daemon is not None and not pod.daemon.workers)
    assert not pod.server.held
    assert on_disk(pod) == []
    await eventually(lambda: not log.exists())


async def test_cancellation_ends_in_cancelled_without_finalizer(pod: FakePod) -> None:
    await ready(pod)
    await pod.cancel("f")
    run = await pod.until("f", "Cancelled")
    assert run is not None
    await eventually(lambda: (r := pod.run("f")) is not None and r.metadata.finalizers == ())
    assert run.status.assigned_pod_uid == POD_UID
    assert not pod.server.held
    assert on_disk(pod) == []


async def test_nothing_is_registered_before_the_finalizer_is_on(pod: FakePod) -> None:
    pod.kube.fail_next("patch", lost(), plural="runs")
    pod.kube.fail_next("patch", lost(), plural="runs")
    seen: list[tuple[str, ...]] = []

    async def point(name: str) -> None:
        if name == "before Register":
            run = pod.run("f")
            assert run is not None
            seen.append(run.metadata.finalizers)

    pod.server.point = point
    await ready(pod)
    assert seen == [("kruntimes.io/cleanup",)]


@pytest.mark.parametrize("reason", ["ImportFailed", "HandlerNotFound", "SourceInvalid"])
async def test_a_failed_registration_ends_in_failed_with_its_reason(pod: FakePod, reason: str) -> None:
    pod.server.register_error = failing(reason, "ModuleNotFoundError: No module named 'nope'")
    pod.kube.seed(RUNS, scheduled())
    await pod.boot()
    run = await pod.until("f", "Failed")
    assert run is not None
    assert (run.status.reason, run.status.failures) == (reason, 1)
    assert "nope" in run.status.message
    await eventually(lambda: (r := pod.run("f")) is not None and r.metadata.finalizers == ())
    assert on_disk(pod) == []


async def test_a_failure_with_attempts_left_goes_back_to_pending_and_counts(pod: FakePod) -> None:
    pod.server.register_error = failing("ImportFailed", "no")
    pod.kube.seed(RUNS, scheduled(spec={"retryPolicy": {"maxAttempts": 2}}))
    await pod.boot()
    run = await pod.until("f", "Pending")
    assert run is not None
    assert (run.status.failures, run.status.reason) == (1, "ImportFailed")
    assert run.status.next_attempt_time is not None
    pod.server.register_error = None
    await pod.bind("f")
    run = await pod.until("f", "Ready")
    assert run is not None
    assert (run.status.failures, run.status.attempt) == (0, 2)


async def test_a_registration_that_takes_60_seconds_has_timed_out(pod: FakePod) -> None:
    pod.server.hang_register = True
    pod.kube.seed(RUNS, scheduled())
    await pod.boot()
    await eventually(lambda: pod.server.registered)
    pod.alarms.advance(60.1)
    run = await pod.until("f", "Failed")
    assert run is not None
    assert run.status.reason == "RegistrationTimedOut"


async def test_deletion_ends_a_registration_in_progress(pod: FakePod) -> None:
    pod.server.hang_register = True
    pod.kube.seed(RUNS, scheduled())
    await pod.boot()
    await eventually(lambda: pod.server.registered)
    await pod.delete("f")
    await pod.until("f", "gone")
    assert on_disk(pod) == []


async def test_a_full_pod_refuses_the_binding(pod: FakePod) -> None:
    for name in ("a", "b"):
        pod.kube.seed(RUNS, scheduled(name))
    await pod.boot()
    await pod.until("a", "Ready")
    await pod.until("b", "Ready")
    pod.kube.seed(RUNS, scheduled("c"))
    run = await pod.until("c", "Pending")
    assert run is not None
    assert run.status.reason == "BindingRefused"
    await pod.delete("a")
    await pod.until("a", "gone")
    await pod.bind("c")
    await pod.until("c", "Ready")


async def test_two_claims_never_meet_in_one_slot(tmp_path: Path) -> None:
    pod = FakePod(tmp_path, runs=1)
    for name in ("a", "b"):
        pod.kube.seed(RUNS, scheduled(name))
    try:
        await pod.boot()
        await eventually(lambda: sorted((pod.phase("a"), pod.phase("b"))) == ["Pending", "Ready"])
        assert len(pod.server.held) == 1
    finally:
        await pod.crash()


async def test_an_idle_function_times_out_by_the_servers_clock(pod: FakePod) -> None:
    await ready(
        pod,
        spec={"mode": {"function": {"handler": "main.invoke", "idleTimeoutSeconds": 60}}},
    )
    await eventually(lambda: pod.alarms.armed == 1)
    pod.server.idle_ms = 20_000
    pod.alarms.advance(60)
    await eventually(lambda: pod.alarms.armed == 1)
    assert pod.phase("f") == "Ready"
    pod.server.idle_ms = 60_000
    pod.alarms.advance(40.1)
    run = await pod.until("f", "Timeout")
    assert run is not None
    assert run.status.reason == "IdleTimeout"


async def test_a_lifetime_ends_in_timeout(pod: FakePod) -> None:
    await ready(pod, spec={"timeout": "90s"})
    pod.alarms.advance(89)
    await asyncio.sleep(0)
    assert pod.phase("f") == "Ready"
    pod.alarms.advance(1.1)
    run = await pod.until("f", "Timeout")
    assert run is not None
    assert run.status.reason == "LifetimeExceeded"


async def test_a_restarted_server_sends_a_ready_run_back_and_it_returns(pod: FakePod) -> None:
    await ready(pod)
    pod.server.restart()
    run = await pod.until("f", "Pending")
    assert run is not None
    assert (run.status.reason, run.status.failures, run.status.next_attempt_time) == ("RegistrationLost", 0, None)
    await pod.bind("f")
    await pod.until("f", "Ready")


async def test_a_broken_connection_to_a_living_server_loses_nothing(pod: FakePod) -> None:
    await ready(pod)
    pod.server.drop()
    assert pod.daemon is not None
    daemon = pod.daemon
    await eventually(lambda: pod.server.dialled == 2 and daemon.link.up)
    assert pod.phase("f") == "Ready"
    await pod.delete("f")
    await pod.until("f", "gone")


async def test_three_failed_replacements_lose_the_registration(pod: FakePod) -> None:
    await ready(pod)
    pod.server.lose_function("uid-f", "the worker died three times")
    run = await pod.until("f", "Pending")
    assert run is not None
    assert run.status.reason == "RegistrationLost"
    assert "three times" in run.status.message


async def test_a_server_that_dies_of_a_registration_counts_as_its_failure(pod: FakePod) -> None:
    pod.server.hang_register = True
    pod.kube.seed(RUNS, scheduled())
    await pod.boot()
    await eventually(lambda: pod.server.registered)
    pod.server.restart()
    run = await pod.until("f", "Failed")
    assert run is not None
    assert run.status.reason == "RuntimeServerError"


async def test_a_hanging_release_condemns_the_server(pod: FakePod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.runtimed.jobs.RELEASE_MAX_S", 0.02)
    await ready(pod)
    pod.server.hang_clear = True
    await pod.delete("f")
    await eventually(lambda: pod.server.condemned)
    pod.server.hang_clear = False
    pod.server.restart()
    await pod.until("f", "gone")


async def test_another_finalizer_keeps_the_object_released(pod: FakePod) -> None:
    pod.kube.seed(RUNS, scheduled())
    await pod.kube.merge_patch(RUNS, NAMESPACE, "f", {"metadata": {"finalizers": ["example.com/theirs"]}})
    await pod.boot()
    await pod.until("f", "Ready")
    await pod.delete("f")
    await eventually(lambda: (r := pod.run("f")) is not None and r.metadata.finalizers == ("example.com/theirs",))
    run = pod.run("f")
    assert run is not None
    assert (run.status.phase, run.status.assigned_pod_uid, run.status.endpoint) == ("Releasing", None, None)
    assert not pod.server.held


async def test_an_owner_marked_unreachable_says_that_it_is_heard(pod: FakePod) -> None:
    await ready(pod)
    run = pod.run("f")
    assert run is not None
    conditions = [
        {"type": "Scheduled", "status": "True", "reason": "Bound"},
        {"type": "Ready", "status": "False", "reason": "OwnerUnreachable"},
    ]
    await pod.kube.merge_patch(RUNS, NAMESPACE, "f", {"status": {"conditions": conditions}}, subresource="status")
    await eventually(
        lambda: (r := pod.run("f")) is not None and [c.status for c in r.status.conditions] == ["True", "True"]
    )


async def test_a_task_is_executed_once_and_its_result_is_in_the_patch(pod: FakePod) -> None:
    pod.kube.seed(RUNS, task_run("t", status=assigned("Scheduled", pod=POD, pod_uid=POD_UID)))
    await pod.boot()
    await eventually(lambda: pod.server.executed)
    await pod.until("t", "Running")
    [request] = pod.server.executed
    assert (request.entrypoint, request.args) == ("main.py", ("--verbose",))
    assert source_of(request.directory) == 'print("hello")\n'
    pod.server.exit_task("uid-t", 0, outputs={"answer": "42"})
    run = await pod.until("t", "Succeeded")
    assert run is not None
    assert (run.status.exit_code, run.status.outputs) == (0, {"answer": "42"})
    await eventually(lambda: (r := pod.run("t")) is not None and r.metadata.finalizers == ())
    assert not pod.server.held
    assert on_disk(pod) == []
    assert len(pod.server.executed) == 1


async def test_a_failed_task_says_its_status_and_stderr(pod: FakePod) -> None:
    pod.kube.seed(RUNS, task_run("t", status=assigned("Scheduled", pod=POD, pod_uid=POD_UID)))
    await pod.boot()
    await eventually(lambda: "uid-t" in pod.server.held)
    pod.server.exit_task("uid-t", 3, stderr_tail="boom\n")
    run = await pod.until("t", "Failed")
    assert run is not None
    assert (run.status.reason, run.status.exit_code) == ("TaskFailed", 3)
    assert run.status.message == "the task ended with status 3: boom"


async def test_a_task_whose_server_dies_is_lost(pod: FakePod) -> None:
    pod.kube.seed(RUNS, task_run("t", status=assigned("Scheduled", pod=POD, pod_uid=POD_UID)))
    await pod.boot()
    await eventually(lambda: "uid-t" in pod.server.held)
    pod.server.restart()
    run = await pod.until("t", "Failed")
    assert run is not None
    assert run.status.reason == "TaskLost"


async def test_a_cancelled_task_ends_in_cancelled_and_not_in_failed(pod: FakePod) -> None:
    pod.kube.seed(RUNS, task_run("t", status=assigned("Scheduled", pod=POD, pod_uid=POD_UID)))
    await pod.boot()
    await eventually(lambda: "uid-t" in pod.server.held)
    await pod.cancel("t")
    await pod.until("t", "Cancelled")
    assert not pod.server.held


async def test_a_deleting_pod_moves_its_functions_and_refuses_bindings(pod: FakePod) -> None:
    await ready(pod)
    await pod.kube.delete(PODS, NAMESPACE, POD)
    run = await pod.until("f", "Pending")
    assert run is not None
    assert run.status.reason == "PodDraining"
    assert pod.daemon is not None
    assert not pod.daemon.lease.fresh
    pod.kube.seed(RUNS, scheduled("g"))
    run = await pod.until("g", "Pending")
    assert run is not None
    assert run.status.reason == "BindingRefused"
    await asyncio.wait_for(pod.daemon.drained(), 5)


async def test_a_draining_pod_lets_its_task_finish(pod: FakePod) -> None:
    pod.kube.seed(RUNS, task_run("t", status=assigned("Scheduled", pod=POD, pod_uid=POD_UID)))
    daemon = await pod.boot()
    await eventually(lambda: "uid-t" in pod.server.held)
    daemon.start_draining()
    draining = asyncio.ensure_future(daemon.drained())
    await asyncio.sleep(0.05)
    assert pod.phase("t") == "Running"
    assert not draining.done()
    pod.server.exit_task("uid-t", 0)
    await pod.until("t", "Succeeded")
    await asyncio.wait_for(draining, 5)


async def test_a_pod_of_another_uid_under_this_name_ends_the_lease(pod: FakePod) -> None:
    await ready(pod)
    assert pod.daemon is not None
    pod.kube.store.objects.pop((PODS.plural, NAMESPACE, POD))
    pod.kube.seed(PODS, runtime_pod(POD, uid="pod-2"))
    assert await pod.daemon.lease.read()
    assert not pod.daemon.lease.fresh
