"""The loop over a fake API: what is written, in which order, and what happens when a write goes wrong."""

import asyncio

import pytest

from controlplane.cell import INBOX_MAX
from controlplane.kube.errors import unavailable
from controlplane.kube.resources import RUNS
from statemachine.events import ClaimExpired, Observed
from statemachine.reasons import Reason
from statemachine.run import Epoch, PodUID, RunUID
from tests.control.support import World, settle
from tests.kit.builders import assigned, function_run, runtime_pod, task_run
from tests.kit.fakekube import lost
from tests.kit.fakestore import refuse

SCHEDULED = assigned("Scheduled")


async def test_a_new_run_is_bound_with_exactly_one_patch():
    world = World()
    world.runtime()
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await settle()
        status = world.api.show("f").status
        assert (status.phase, status.attempt, status.assigned_pod, status.assigned_pod_uid) == (
            "Scheduled",
            1,
            "runtime-python-1",
            "pod-1",
        )
        assert [(w.verb, w.subresource) for w in world.api.run_writes()] == [("patch", "status")]
        tests = [op for op in world.api.patches[-1][2] if op["op"] == "test"]
        assert {op["path"]: op["value"] for op in tests} == {
            "/metadata/uid": "uid-f",
            "/status/phase": "Pending",
            "/status/attempt": 0,
        }
        assert world.notes.events[-1] == ("Normal", "Bound", "Assigned to Pod runtime-python-1, attempt 1")
        assert world.journal.names() == ["Observed", "Bound", "Observed"]


async def test_nothing_is_written_before_everything_has_been_listed():
    world = World()
    world.runtime()
    world.api.seed(RUNS, function_run("f"))
    world.api.fail_next("list", unavailable("down", sent=False), plural="pods")
    plane = world.plane()
    for informer in plane.informers[:1]:
        assert not informer.synced.is_set()
    async with world.running():
        await settle()
        assert world.api.run_writes() == []


async def test_the_echo_of_an_own_write_is_not_decided_on_again():
    world = World()
    world.runtime()
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await settle()
        before = len(world.journal.records)
        world.api.cut_watches()
        await settle()
        assert len(world.journal.records) == before
        assert len(world.api.run_writes()) == 1


async def test_a_conflict_is_read_again_and_decided_anew():
    world = World()
    world.runtime()
    async with world.running():
        # Somebody cancels between the decision and its patch: the binding lands, then the cancellation is decided.
        def cancel() -> None:
            obj = world.api.store.find(RUNS, "default", "f")
            changed = {**obj, "spec": {**obj["spec"], "cancelRequested": True}}
            world.api.store.change(RUNS, "default", "f", changed, "")

        world.api.before_patch = cancel
        world.api.seed(RUNS, function_run("f"))
        await settle()
        assert world.api.show("f").status.phase == "Cancelled"


async def test_a_failed_test_leaves_nothing_behind_and_the_scheduler_chooses_anew():
    world = World()
    world.runtime(pods=2)
    async with world.running() as plane:
        # Another leader bound it first.
        world.api.before_patch = lambda: world.api.set_status("f", assigned("Scheduled", pod="other", pod_uid="pod-2"))
        world.api.seed(RUNS, function_run("f"))
        await settle()
        assert world.api.show("f").status.assigned_pod_uid == "pod-2"
        run = plane.loop.run(RunUID("uid-f"))
        assert run is not None and run.status.pod_uid == "pod-2"
        assert plane.scheduler.planner.assumed == 0
        assert plane.scheduler.planner.totals(("default", "python"))[1] == {"runs": 1}


async def test_a_run_that_vanishes_during_its_binding_frees_the_slot():
    world = World()
    world.runtime(runs=1)
    async with world.running() as plane:
        world.api.before_patch = lambda: world.api.store.delete(RUNS, "default", "f", None, None)
        world.api.seed(RUNS, function_run("f"))
        await settle()
        assert plane.loop.run(RunUID("uid-f")) is None
        assert plane.scheduler.planner.totals(("default", "python"))[1] == {"runs": 0}
        world.api.seed(RUNS, function_run("g"))
        await settle()
        assert world.api.show("g").status.phase == "Scheduled"


async def test_a_new_run_of_the_same_name_is_another_run():
    world = World()
    world.runtime(runs=1)

    def replace() -> None:
        world.api.store.delete(RUNS, "default", "f", None, None)
        world.api.seed(RUNS, function_run("f", uid="uid-second"))

    async with world.running() as plane:
        world.api.before_patch = replace
        world.api.seed(RUNS, function_run("f", uid="uid-first"))
        await settle()
        assert plane.loop.run(RunUID("uid-first")) is None
        assert world.api.show("f").metadata.uid == "uid-second"
        assert world.api.show("f").status.phase == "Scheduled"


async def test_a_lost_answer_is_looked_up_and_not_written_twice():
    world = World()
    world.runtime()
    async with world.running() as plane:
        world.api.lose_answer()
        world.api.seed(RUNS, function_run("f"))
        await settle()
        run = plane.loop.run(RunUID("uid-f"))
        assert run is not None and (run.phase, run.status.attempt) == ("Scheduled", 1)
        assert len(world.api.run_writes()) == 1
        assert plane.scheduler.planner.assumed == 0


async def test_a_binding_is_written_once_the_api_is_back():
    world = World()
    world.runtime()
    async with world.running() as plane:
        for _ in range(3):
            world.api.fail_next("patch", unavailable("down", sent=False), plural="runs")
            world.api.fail_next("get", unavailable("down", sent=False), plural="runs")
        world.api.seed(RUNS, function_run("f"))
        await settle()
        assert plane.scheduler.planner.assumed == 1, "the slot is kept until the outcome is known"
        await world.alarms.live_through(30)
        assert world.api.show("f").status.phase == "Scheduled"
        assert plane.scheduler.planner.assumed == 0


async def test_a_status_that_the_api_will_not_take_is_not_tried_in_a_circle():
    world = World()
    world.runtime()
    async with world.running():
        for _ in range(1000):
            world.api.fail_next("patch", refuse(422, "Invalid", "status.attempt: wrong"), plural="runs")
        world.api.seed(RUNS, function_run("f"))
        await settle(500)
        assert len(world.api.run_writes()) <= 3
        await world.alarms.live_through(60)
        assert len(world.api.run_writes()) < 30


@pytest.mark.parametrize("phase", ["Pending", "Scheduled"])
async def test_a_cancelled_run_that_nobody_claimed_ends_cancelled(phase: str):
    world = World()
    status = {} if phase == "Pending" else SCHEDULED
    if phase == "Scheduled":
        world.runtime()
    async with world.running():
        world.api.seed(RUNS, function_run("f", spec={"cancelRequested": True}, status=status))
        await settle()
        assert world.api.show("f").status.phase == "Cancelled"
        assert world.api.show("f").status.completion_time is not None


async def test_a_claimed_run_is_for_its_runtimed_to_cancel():
    world = World()
    world.runtime()
    async with world.running():
        status = assigned("Ready")
        world.api.seed(RUNS, function_run("f", spec={"cancelRequested": True}, status=status))
        await settle()
        assert world.api.run_writes() == []


@pytest.mark.parametrize("phase", ["Pending", "Scheduled", "Succeeded", "Cancelled"])
async def test_a_deleting_run_loses_our_finalizer_where_nobody_owns_it(phase: str):
    world = World()
    world.runtime()
    status = {"phase": phase} if phase != "Scheduled" else SCHEDULED
    async with world.running() as plane:
        world.api.seed(RUNS, function_run("f", status=status, metadata={"finalizers": ["kruntimes.io/cleanup"]}))
        world.api.store.delete(RUNS, "default", "f", None, None)
        await settle()
        assert ("runs", "default", "f") not in world.api.store.objects
        assert plane.loop.run(RunUID("uid-f")) is None
        assert len(world.api.run_writes()) == (2 if phase == "Scheduled" else 1)


async def test_our_finalizer_comes_off_and_another_one_stays():
    world = World()
    async with world.running():
        finalizers = ["example.com/audit", "kruntimes.io/cleanup"]
        world.api.seed(RUNS, function_run("f", status={"phase": "Failed"}, metadata={"finalizers": finalizers}))
        world.api.store.delete(RUNS, "default", "f", None, None)
        await settle()
        assert world.api.show("f").metadata.finalizers == ("example.com/audit",)
        assert len(world.api.run_writes()) == 1


async def test_a_finalizer_patch_whose_answer_is_lost_is_not_needed_again():
    world = World()
    async with world.running() as plane:
        world.api.seed(
            RUNS, function_run("f", status={"phase": "Failed"}, metadata={"finalizers": ["kruntimes.io/cleanup"]})
        )
        world.api.lose_answer()
        world.api.store.delete(RUNS, "default", "f", None, None)
        await settle()
        assert plane.loop.run(RunUID("uid-f")) is None
        assert len(world.api.run_writes()) == 1


async def test_a_finished_run_is_deleted_after_its_ttl_and_not_before():
    world = World()
    async with world.running():
        done = "2026-01-01T00:00:00.000000Z"  # when the clock starts
        status = {"phase": "Succeeded", "completionTime": done}
        world.api.seed(RUNS, task_run("t", spec={"ttlSecondsAfterFinished": 60}, status=status))
        await world.alarms.live_through(59)
        assert world.api.show("t").status.phase == "Succeeded"
        await world.alarms.live_through(2)
        assert ("runs", "default", "t") not in world.api.store.objects


async def test_a_deletion_by_ttl_that_fails_is_tried_again():
    world = World()
    async with world.running():
        status = {"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00.000000Z"}
        world.api.fail_next("delete", lost(), plural="runs")
        world.api.seed(RUNS, task_run("t", spec={"ttlSecondsAfterFinished": 1}, status=status))
        await world.alarms.live_through(5)
        assert ("runs", "default", "t") not in world.api.store.objects


async def test_a_longer_ttl_replaces_a_shorter_one():
    world = World()
    async with world.running():
        status = {"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00.000000Z"}
        world.api.seed(RUNS, task_run("t", spec={"ttlSecondsAfterFinished": 10}, status=status))
        await settle()
        obj = world.api.store.find(RUNS, "default", "t")
        changed = {**obj, "spec": {**obj["spec"], "ttlSecondsAfterFinished": 100}}
        world.api.store.change(RUNS, "default", "t", changed, "")
        await world.alarms.live_through(50)
        assert world.api.show("t").status.phase == "Succeeded"
        await world.alarms.live_through(60)
        assert ("runs", "default", "t") not in world.api.store.objects


async def test_an_unclaimed_run_goes_back_after_30_s_and_the_pod_is_left_alone_for_a_while():
    world = World()
    world.runtime()
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await world.alarms.live_through(29)
        assert world.api.show("f").status.attempt == 1
        await world.alarms.live_through(1.5)
        status = world.api.show("f").status
        assert (status.phase, status.reason) == ("Pending", "ClaimExpired")
        await world.alarms.live_through(1.5)
        status = world.api.show("f").status
        assert (status.phase, status.attempt) == ("Scheduled", 2)


async def test_a_standstill_takes_no_claim_back():
    world = World()
    world.runtime()
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await world.alarms.live_through(5)
        world.alarms.stand_still(600)
        await settle()
        assert world.api.show("f").status.phase == "Scheduled"
        await world.alarms.live_through(20)
        assert (world.api.show("f").status.phase, world.api.show("f").status.attempt) == ("Scheduled", 1)


async def test_a_claim_in_time_ends_the_claim_timer():
    world = World()
    world.runtime()
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await settle()
        world.api.set_status("f", assigned("Registering"))
        await world.alarms.live_through(60)
        assert world.api.show("f").status.phase == "Registering"
        assert world.alarms.armed == 0, "an idle control plane arms nothing"


async def test_a_backoff_is_waited_for():
    world = World()
    world.runtime()
    async with world.running():
        status = {"phase": "Pending", "attempt": 1, "failures": 1, "nextAttemptTime": "2026-01-01T00:00:04.000000Z"}
        world.api.seed(RUNS, function_run("f", spec={"retryPolicy": {"maxAttempts": 3}}, status=status))
        await world.alarms.live_through(3.5)
        assert world.api.show("f").status.phase == "Pending"
        assert world.api.run_writes() == []
        await world.alarms.live_through(1)
        assert (world.api.show("f").status.phase, world.api.show("f").status.attempt) == ("Scheduled", 2)


async def test_a_waiting_run_says_why_once_per_change_and_is_bound_when_a_slot_frees():
    world = World()
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await settle()
        assert scheduled(world, "f") == ("False", "RuntimeNotFound")
        world.runtime(runs=1, pods=0)
        await settle()
        assert scheduled(world, "f") == ("False", "NoCapacity")
        world.api.set_pod(runtime_pod("runtime-python-1", uid="pod-1", ready=False))
        await settle()
        writes = len(world.api.run_writes())
        assert writes == 2, "one write per change of the reason"
        world.api.set_pod(runtime_pod("runtime-python-1", uid="pod-1"))
        await settle()
        assert scheduled(world, "f") == ("True", "Bound")
        assert len(world.api.run_writes()) == writes + 1


def scheduled(world: World, name: str) -> tuple[str, str]:
    return next((c.status, c.reason) for c in world.api.show(name).status.conditions if c.type == "Scheduled")


async def test_a_hundred_runs_share_the_slots_and_none_is_given_twice():
    world = World()
    world.runtime(runs=5, pods=4)
    async with world.running():
        for number in range(100):
            world.api.seed(RUNS, function_run(f"f{number:03d}"))
        await settle(2000)
        bound: dict[str, int] = {}
        for number in range(100):
            status = world.api.show(f"f{number:03d}").status
            if status.assigned_pod_uid is not None:
                bound[status.assigned_pod_uid] = bound.get(status.assigned_pod_uid, 0) + 1
        assert bound == {"pod-1": 5, "pod-2": 5, "pod-3": 5, "pod-4": 5}


async def test_decisions_about_one_run_wait_for_its_write_and_others_do_not():
    world = World()
    world.runtime(runs=10)
    async with world.running() as plane:
        world.api.seed(RUNS, function_run("f"))
        world.api.seed(RUNS, function_run("g"))
        await settle()
        cell = plane.loop._cells[RunUID("uid-f")]
        epoch = Epoch(RunUID("uid-f"), 1, PodUID("pod-1"))
        expired = ClaimExpired(at_us=world.clock.now_us(), epoch=epoch, pod_lost=True)
        plane.loop.decide(RunUID("uid-f"), expired)
        for _ in range(3 * INBOX_MAX):
            plane.loop.decide(RunUID("uid-f"), expired)
        assert len(cell.inbox) <= INBOX_MAX
        await settle(200)
        assert world.api.show("g").status.attempt == 1
        assert world.api.show("f").status.attempt == 1 and world.api.show("f").status.reason == Reason.CLAIM_EXPIRED


async def test_restart_at_any_moment_takes_up_what_the_api_shows():
    """A control plane is cut off after so many turns of the loop; the next one carries the Run to Scheduled, once."""
    for turns in range(1, 40):
        world = World()
        world.runtime()
        world.api.seed(RUNS, function_run("f"))
        plane = world.plane()
        task = asyncio.get_running_loop().create_task(plane.run())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with world.running() as after:
            await settle()
            assert world.api.show("f").status.attempt == 1
            assert world.api.show("f").status.phase == "Scheduled"
            assert after.scheduler.planner.assumed == 0
        assert len(world.api.run_writes()) == 1, turns


async def test_first_sight_is_marked_in_the_journal():
    world = World()
    world.runtime()
    async with world.running():
        world.api.seed(RUNS, function_run("f"))
        await settle()
    async with world.running():
        await settle()
    fresh = [marked for _, event, _, _, _, marked in world.journal.records if isinstance(event, Observed)]
    assert fresh == [True, False, True]


async def test_a_defect_in_a_task_ends_the_plane_instead_of_hiding():
    world = World()
    world.runtime()
    with pytest.raises(ExceptionGroup):
        async with world.running() as plane:

            async def broken() -> None:
                raise AssertionError("ours")

            plane.tasks.spawn(broken())
            await settle()


async def test_a_binding_after_a_backoff_is_written_once_the_api_takes_it():
    world = World()
    world.runtime()
    async with world.running():
        status = {"phase": "Pending", "attempt": 1, "failures": 1, "nextAttemptTime": "2026-01-01T00:00:04.000000Z"}
        world.api.seed(RUNS, function_run("f", spec={"retryPolicy": {"maxAttempts": 3}}, status=status))
        await world.alarms.live_through(3.5)
        for _ in range(3):
            world.api.fail_next("patch", unavailable("down", sent=False), plural="runs")
        await world.alarms.live_through(10)
        assert (world.api.show("f").status.phase, world.api.show("f").status.attempt) == ("Scheduled", 2)
