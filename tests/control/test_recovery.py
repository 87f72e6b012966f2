"""Recovery over a fake API: lost owners after the fence, silent ones, and standstills that prove nothing."""

from typing import Any

import pytest

from controlplane.kube.errors import unavailable
from controlplane.kube.ownerreports import report_text
from controlplane.kube.resources import EVENTS, PODS, RUNS
from controlplane.kube.types import KubeEvent, ObjectMeta, ObjectReference
from tests.control.support import World, settle
from tests.kit.builders import assigned, function_run, runtime_pod, task_run
from tests.kit.fakekube import lost

ENDED = {"runtimed": {"terminated": {}}, "runtime": {"terminated": {}}}
READY_CONDITION = {
    "type": "Ready",
    "status": "True",
    "reason": "FunctionRegistered",
    "lastTransitionTime": "2026-01-01T00:00:02.000000Z",
}


def ready() -> dict[str, Any]:
    status = assigned("Ready")
    return status | {"conditions": [*status["conditions"], READY_CONDITION]}


def world_with(phase: str, **spec: Any) -> World:
    """A Run of that phase on Pod pod-1, and no other Pod."""
    world = World()
    world.runtime(runs=2)
    status = ready() if phase == "Ready" else assigned(phase)
    make = task_run if phase == "Running" else function_run
    world.api.seed(RUNS, make("f", status=status, spec=spec, metadata={"finalizers": ["kruntimes.io/cleanup"]}))
    return world


def phase_of(world: World) -> tuple[str, str]:
    status = world.api.show("f").status
    return str(status.phase), status.reason


@pytest.mark.parametrize("phase", ["Registering", "Ready"])
async def test_a_vanished_pod_moves_its_function_after_60_s_of_proof(phase: str):
    world = world_with(phase)
    async with world.running():
        await world.alarms.live_through(5)
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(59)
        assert phase_of(world)[0] == phase
        assert world.api.run_writes() == [], world.api.patches
        await world.alarms.live_through(2)
        assert phase_of(world) == ("Pending", "AssignmentLost")
        # One write for the move, then one that says what it waits for.
        await settle()
        assert len(world.api.run_writes()) == 2


async def test_a_cache_that_lost_a_pod_proves_nothing():
    world = world_with("Ready")
    async with world.running():
        # The label goes, so the watch says DELETED; the API still has the Pod.
        obj = world.api.store.find(PODS, "default", "runtime-python-1")
        bare = {**obj, "metadata": {**obj["metadata"], "labels": {}}}
        world.api.store.put(PODS, ("pods", "default", "runtime-python-1"), obj, bare)
        await world.alarms.live_through(300)
        assert phase_of(world)[0] == "Ready"
        asked = [r for r in world.api.requests if (r.verb, r.plural) == ("get", "pods")]
        assert 10 < len(asked) < 200, "asked again from time to time, not in a circle"


async def test_the_60_s_count_from_the_answer_of_the_api_and_not_from_the_watch():
    world = world_with("Ready")
    async with world.running():
        for _ in range(20):
            world.api.fail_next("get", unavailable("down", sent=False), plural="pods")
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(61)
        assert phase_of(world)[0] == "Ready"
        await world.alarms.live_through(45)
        assert phase_of(world)[0] == "Pending"


async def test_a_pause_of_the_whole_machine_moves_no_run():
    world = world_with("Ready")
    async with world.running():
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(10)
        for _ in range(5):
            world.alarms.stand_still(600)
            await settle()
            assert phase_of(world)[0] == "Ready"
        await world.alarms.live_through(45)
        assert phase_of(world)[0] == "Ready"
        await world.alarms.live_through(8)
        assert phase_of(world)[0] == "Pending"


async def test_a_restarted_control_plane_counts_anew():
    world = world_with("Ready")
    async with world.running():
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(50)
    async with world.running():
        await world.alarms.live_through(50)
        assert phase_of(world)[0] == "Ready"
        await world.alarms.live_through(12)
        assert phase_of(world)[0] == "Pending"


async def test_a_deleting_pod_moves_its_function_60_s_after_the_deletion_was_read():
    world = world_with("Ready")
    async with world.running():
        world.api.set_pod(runtime_pod(deleting=True))
        await world.alarms.live_through(30)
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(29)
        assert phase_of(world)[0] == "Ready"
        await world.alarms.live_through(2)
        assert phase_of(world)[0] == "Pending"


async def test_a_deleting_pod_keeps_its_task_until_60_s_after_its_grace():
    world = world_with("Running")
    async with world.running():
        world.api.set_pod(runtime_pod(deleting=True))  # the grace ends ten minutes after the clock's start
        await world.alarms.live_through(655, step=5)
        assert phase_of(world)[0] == "Running"
        await world.alarms.live_through(10)
        assert phase_of(world) == ("Failed", "TaskLost")


async def test_a_lost_task_is_retried_by_its_policy():
    world = world_with("Running", retryPolicy={"maxAttempts": 2})
    async with world.running():
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(61)
        status = world.api.show("f").status
        assert (status.phase, status.reason, status.failures) == ("Pending", "TaskLost", 1)


@pytest.mark.parametrize(
    ("phase", "after"),
    [("Ready", "Pending"), ("Registering", "Pending"), ("Running", "Failed"), ("Releasing", "Timeout")],
)
async def test_a_pod_that_has_ended_moves_its_run_at_once(phase: str, after: str):
    world = world_with(phase)
    async with world.running():
        world.api.set_pod(runtime_pod(phase="Failed", ready=False, container_states=ENDED))
        await settle()
        assert phase_of(world)[0] == after


async def test_a_failed_pod_with_a_running_container_is_not_lost():
    world = world_with("Ready")
    async with world.running():
        states = {"runtime": {"terminated": {}}}
        world.api.set_pod(runtime_pod(phase="Failed", ready=False, container_states=states))
        await world.alarms.live_through(25)
        assert phase_of(world)[0] == "Ready"


async def test_a_releasing_run_of_a_lost_pod_ends_as_requested_by_then():
    world = world_with("Releasing", cancelRequested=True)
    async with world.running():
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(62)
        assert phase_of(world) == ("Cancelled", "Cancelled")
        assert world.api.show("f").metadata.finalizers == ()


async def test_a_deleted_run_of_a_lost_pod_is_gone_after_the_fence():
    world = world_with("Releasing")
    async with world.running():
        world.api.store.delete(RUNS, "default", "f", None, None)
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(59)
        assert ("runs", "default", "f") in world.api.store.objects
        await world.alarms.live_through(3)
        assert ("runs", "default", "f") not in world.api.store.objects


@pytest.mark.parametrize("how", ["gone", "deleting", "ended"])
async def test_an_unclaimed_run_of_a_lost_pod_goes_back_at_once(how: str):
    world = World()
    world.runtime(runs=1)
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await settle()
        assert phase_of(world)[0] == "Scheduled"
        if how == "gone":
            world.api.remove_pod("runtime-python-1")
        elif how == "deleting":
            world.api.set_pod(runtime_pod(deleting=True))
        else:
            world.api.set_pod(runtime_pod(phase="Failed", ready=False, container_states=ENDED))
        await settle()
        assert phase_of(world) == ("Pending", "ClaimExpired")


async def test_what_was_lost_while_nobody_decided_is_found_at_the_start():
    world = world_with("Ready")
    world.api.remove_pod("runtime-python-1")
    async with world.running():
        await world.alarms.live_through(59)
        assert phase_of(world)[0] == "Ready"
        await world.alarms.live_through(2)
        assert phase_of(world)[0] == "Pending"


async def test_a_lost_answer_of_the_move_is_looked_up():
    world = world_with("Ready")
    async with world.running():
        world.api.lose_answer()
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(65)
        assert phase_of(world)[0] == "Pending"
        assert world.api.show("f").status.attempt == 1


async def test_a_move_that_cannot_be_written_is_tried_until_it_can():
    world = world_with("Ready")
    async with world.running():
        for _ in range(4):
            world.api.fail_next("patch", lost(), plural="runs")
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(80)
        assert phase_of(world)[0] == "Pending"


def ready_condition(world: World) -> tuple[str, str]:
    return next((c.status, c.reason) for c in world.api.show("f").status.conditions if c.type == "Ready")


async def test_an_owner_that_is_not_ready_for_30_s_is_called_unreachable_and_keeps_its_run():
    world = world_with("Ready")
    async with world.running():
        world.api.set_pod(runtime_pod(ready=False))
        await world.alarms.live_through(29)
        assert ready_condition(world) == ("True", "FunctionRegistered")
        await world.alarms.live_through(2)
        assert ready_condition(world) == ("False", "OwnerUnreachable")
        await world.alarms.live_through(600, step=5)
        assert phase_of(world)[0] == "Ready"
        assert len(world.api.run_writes()) == 1


async def test_an_owner_that_is_ready_again_in_time_is_left_alone():
    world = world_with("Ready")
    async with world.running():
        world.api.set_pod(runtime_pod(ready=False))
        await world.alarms.live_through(20)
        world.api.set_pod(runtime_pod())
        await world.alarms.live_through(20)
        world.api.set_pod(runtime_pod(ready=False))
        await world.alarms.live_through(20)
        assert ready_condition(world) == ("True", "FunctionRegistered")


async def test_an_owner_that_is_heard_during_its_silence_is_not_marked_again_and_again():
    world = world_with("Ready")
    async with world.running():
        world.api.set_pod(runtime_pod(ready=False))
        await world.alarms.live_through(31)
        assert ready_condition(world)[0] == "False"
        world.api.set_status("f", ready())  # OwnerHeard
        for ip in range(3, 9):
            world.api.set_pod(runtime_pod(ready=False, ip=f"127.0.0.{ip}"))
            await world.alarms.live_through(40)
        assert ready_condition(world)[0] == "True"


def report(world: World, text: str) -> None:
    event = KubeEvent(
        metadata=ObjectMeta(name=f"report-{len(world.api.store.history)}", namespace="default"),
        involved_object=ObjectReference(kind="Run", namespace="default", name="f", uid="uid-f"),
        reason="OwnerUnreachable",
        reporting_component="kruntimes-gateway",
        message=text,
    )
    world.api.seed(EVENTS, event)


async def test_an_owner_that_refused_a_gateways_connection_is_called_unreachable_at_once():
    world = world_with("Ready")
    async with world.running():
        report(world, report_text("pod-1", 1))
        await settle()
        assert ready_condition(world) == ("False", "OwnerUnreachable")
        report(world, report_text("pod-1", 1))
        await settle()
        assert len(world.api.run_writes()) == 1


@pytest.mark.parametrize("text", [report_text("pod-1", 0), report_text("pod-2", 1), "", "something else"])
async def test_a_report_about_another_epoch_is_about_nobody(text: str):
    world = world_with("Ready")
    async with world.running():
        report(world, text)
        await settle()
        assert ready_condition(world)[0] == "True"


async def test_a_report_from_before_the_start_is_old_news():
    world = world_with("Ready")
    report(world, report_text("pod-1", 1))
    async with world.running():
        await settle()
        assert ready_condition(world)[0] == "True"


async def test_a_standstill_makes_no_owner_silent():
    world = world_with("Ready")
    async with world.running():
        world.api.set_pod(runtime_pod(ready=False))
        await world.alarms.live_through(5)
        world.alarms.stand_still(100)
        await settle()
        assert ready_condition(world)[0] == "True"


async def test_a_healthy_owner_costs_no_alarm():
    world = world_with("Ready")
    async with world.running():
        await world.alarms.live_through(5)
        assert world.alarms.armed == 0
