"""The Runtime controller over a fake API: applied once, put right after others, status at most once a second."""

from typing import Any

import msgspec

from controlplane.kube.errors import unavailable
from controlplane.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    PODS,
    ROLEBINDINGS,
    ROLES,
    RUNS,
    RUNTIMES,
    SERVICEACCOUNTS,
    SERVICES,
)
from controlplane.kube.types import RuntimeObject
from tests.control.support import SETTINGS, World, settle
from tests.kit.builders import function_run, runtime_object, runtime_pod

KINDS = (CONFIGMAPS, SERVICEACCOUNTS, ROLES, ROLEBINDINGS, SERVICES, DEPLOYMENTS)


def applies(world: World) -> list[str]:
    return [request.plural for request in world.api.requests if request.verb == "apply"]


def status_writes(world: World) -> int:
    return sum(r.verb == "patch" and r.plural == "runtimes" for r in world.api.requests)


def shown(world: World, name: str = "python") -> RuntimeObject:
    return msgspec.convert(world.api.store.find(RUNTIMES, "default", name), RuntimeObject)


def change_runtime(world: World, **spec: Any) -> None:
    obj = world.api.store.find(RUNTIMES, "default", "python")
    world.api.store.change(RUNTIMES, "default", "python", {**obj, "spec": {**obj["spec"], **spec}}, "")


async def test_a_new_runtime_is_applied_once_in_order_and_told_of():
    world = World()
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(10)
        assert applies(world) == [kind.plural for kind in KINDS]
        assert world.notes.events == [("Normal", "Applied", "Deployment runtime-python and what it needs are in place")]
        assert shown(world).status.conditions[0].reason == "NoPodReady"
        assert world.alarms.armed == 0


async def test_a_restart_applies_again_and_changes_nothing():
    world = World()
    world.api.seed(RUNTIMES, runtime_object())
    async with world.running():
        await world.alarms.live_through(10)
    revision = world.api.store.revision
    async with world.running():
        await world.alarms.live_through(10)
    assert world.api.store.revision == revision
    assert len(world.notes.events) == 1


async def test_a_change_of_the_spec_is_applied_and_a_change_of_a_label_is_not():
    world = World()
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(3)
        count = len(applies(world))
        obj = world.api.store.find(RUNTIMES, "default", "python")
        labelled = {**obj, "metadata": {**obj["metadata"], "labels": {"a": "b"}}}
        world.api.store.change(RUNTIMES, "default", "python", labelled, "")
        await world.alarms.live_through(3)
        assert len(applies(world)) == count
        change_runtime(world, replicas=3)
        await world.alarms.live_through(3)
        assert len(applies(world)) == count + len(KINDS)
        assert world.api.store.find(DEPLOYMENTS, "default", "runtime-python")["spec"]["replicas"] == 3


async def test_what_others_remove_or_change_is_put_right():
    world = World()
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(3)
        world.api.store.delete(SERVICES, "default", "runtime-python", None, None)
        await world.alarms.live_through(3)
        assert world.api.store.find(SERVICES, "default", "runtime-python")["spec"]["ports"][0]["port"] == 8443
        obj = world.api.store.find(DEPLOYMENTS, "default", "runtime-python")
        scaled = {**obj, "spec": {**obj["spec"], "replicas": 9}}
        world.api.store.change(DEPLOYMENTS, "default", "runtime-python", scaled, "")
        await world.alarms.live_through(3)
        assert world.api.store.find(DEPLOYMENTS, "default", "runtime-python")["spec"]["replicas"] == 1
        world.api.store.delete(CONFIGMAPS, "default", "kruntimes-ca", None, None)
        await world.alarms.live_through(3)
        assert "ca.crt" in world.api.store.find(CONFIGMAPS, "default", "kruntimes-ca")["data"]


async def test_other_roots_are_told_to_every_namespace_and_roll_no_pod():
    world = World()
    async with world.running() as plane:
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(3)
        count, template = len(applies(world)), world.api.store.find(DEPLOYMENTS, "default", "runtime-python")["spec"]
        plane.runtimes.publish_roots(SETTINGS.root_pem)
        await world.alarms.live_through(3)
        assert len(applies(world)) == count
        plane.runtimes.publish_roots("others")
        await world.alarms.live_through(3)
        assert world.api.store.find(CONFIGMAPS, "default", "kruntimes-ca")["data"]["ca.crt"] == "others"
        assert world.api.store.find(DEPLOYMENTS, "default", "runtime-python")["spec"] == template


async def test_the_status_of_a_deployment_is_not_drift():
    world = World()
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(3)
        count = len(applies(world))
        obj = world.api.store.find(DEPLOYMENTS, "default", "runtime-python")
        world.api.store.change(DEPLOYMENTS, "default", "runtime-python", {**obj, "status": {"replicas": 1}}, "status")
        await world.alarms.live_through(5)
        assert len(applies(world)) == count


async def test_a_template_that_uses_what_is_reserved_is_refused_clearly_and_nothing_is_applied():
    world = World()
    async with world.running():
        runtime = runtime_object()
        bad = {"spec": {"containers": [{"name": "runtime", "image": "i"}], "volumes": [{"name": "work"}]}}
        spec = msgspec.structs.replace(runtime.spec, template=bad)
        world.api.seed(RUNTIMES, msgspec.structs.replace(runtime, spec=spec))
        await world.alarms.live_through(10)
        sentence = "spec.template.spec.volumes[0].name: work is reserved"
        condition = shown(world).status.conditions[0]
        assert (condition.status, condition.reason, condition.message) == ("False", "TemplateInvalid", sentence)
        assert world.notes.events == [("Warning", "TemplateInvalid", sentence)]
        assert applies(world) == []
        change_runtime(world, template={"spec": {"containers": [{"name": "runtime", "image": "i"}]}})
        await world.alarms.live_through(10)
        assert shown(world).status.conditions[0].reason == "NoPodReady"
        assert len(applies(world)) == len(KINDS)


async def test_an_apply_that_fails_is_tried_again_later_each_time_and_told_once():
    world = World()
    async with world.running():
        for _ in range(5):
            world.api.fail_next("apply", unavailable("down", sent=False), plural="roles")
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(2)
        assert shown(world).status.conditions[0].reason == "ApplyFailed"
        await world.alarms.live_through(60)
        assert shown(world).status.conditions[0].reason == "NoPodReady"
        assert [reason for _, reason, _ in world.notes.events] == ["ApplyFailed"]


async def test_readiness_is_told_at_once_and_use_at_most_once_a_second():
    world = World()
    async with world.running():
        world.runtime(runs=50, pods=0)
        await world.alarms.live_through(5)
        before = status_writes(world)
        world.api.set_pod(runtime_pod())
        await settle()
        status = shown(world).status
        assert (status.ready_replicas, status.conditions[0].status) == (1, "True")
        assert status_writes(world) == before + 1
        for number in range(20):
            world.api.seed(RUNS, function_run(f"f{number}"))
            await settle()
        assert status_writes(world) == before + 1
        await world.alarms.live_through(2)
        capacity = shown(world).status.capacity
        assert capacity is not None
        assert (capacity.total, capacity.used, capacity.runs) == ({"runs": 50}, {"runs": 20}, "20/50")
        assert status_writes(world) == before + 2
        await world.alarms.live_through(20)
        assert status_writes(world) == before + 2


async def test_pods_seen_before_their_runtime_count():
    world = World()
    world.api.set_pod(runtime_pod())
    async with world.running():
        world.api.seed(RUNTIMES, runtime_object())
        await world.alarms.live_through(2)
        assert shown(world).status.ready_replicas == 1


async def test_a_runtime_made_anew_under_the_same_name_is_applied_anew():
    world = World()
    async with world.running() as plane:
        world.api.seed(RUNTIMES, runtime_object(uid="first"))
        await world.alarms.live_through(3)
        world.api.store.delete(RUNTIMES, "default", "python", None, None)
        world.api.seed(RUNTIMES, runtime_object(uid="second"))
        await world.alarms.live_through(5)
        owner = world.api.store.find(DEPLOYMENTS, "default", "runtime-python")["metadata"]["ownerReferences"][0]
        assert owner["uid"] == "second"
        world.api.store.delete(RUNTIMES, "default", "python", None, None)
        await world.alarms.live_through(3)
        assert plane.runtimes._works == {}
        assert world.alarms.armed == 0


async def test_runs_of_a_runtime_that_is_going_wait_as_runtime_not_found():
    world = World()
    world.runtime()
    async with world.running():
        await settle()
        world.api.store.delete(RUNTIMES, "default", "python", None, None)
        world.api.seed(RUNS, function_run("f"))
        await settle()
        assert world.api.show("f").status.conditions[0].reason == "RuntimeNotFound"


def down(name: str, state: dict[str, Any]) -> Any:
    return runtime_pod(ready=False, container_states={name: state})


async def test_a_pod_with_a_container_down_for_60_s_is_deleted_with_its_uid():
    for name in ("runtime", "runtimed"):
        world = World()
        world.runtime()
        async with world.running():
            await settle()
            world.api.set_pod(down(name, {"terminated": {"exitCode": 1}}))
            await world.alarms.live_through(59)
            assert "deletionTimestamp" not in world.api.store.find(PODS, "default", "runtime-python-1")["metadata"]
            await world.alarms.live_through(2)
            assert "deletionTimestamp" in world.api.store.find(PODS, "default", "runtime-python-1")["metadata"]
            assert world.notes.events[-1][:2] == ("Warning", "PodReplaced")


async def test_a_container_that_comes_back_in_time_saves_its_pod():
    world = World()
    world.runtime()
    async with world.running():
        for _ in range(5):
            world.api.set_pod(down("runtime", {"terminated": {"exitCode": 1}}))
            await world.alarms.live_through(40)
            world.api.set_pod(runtime_pod())
            await world.alarms.live_through(5)
        assert not any(r.verb == "delete" for r in world.api.requests)


async def test_a_container_that_never_ran_and_a_standstill_delete_nothing():
    world = World()
    world.runtime()
    async with world.running():
        world.api.set_pod(down("runtime", {"waiting": {"reason": "ErrImageNeverPull"}}))
        await world.alarms.live_through(200, step=5)
        world.api.set_pod(down("runtime", {"terminated": {"exitCode": 1}}))
        await world.alarms.live_through(5)
        world.alarms.stand_still(300)
        await settle()
        assert not any(r.verb == "delete" for r in world.api.requests)


async def test_a_deletion_that_fails_is_tried_again():
    world = World()
    world.runtime()
    async with world.running():
        world.api.fail_next("delete", unavailable("down", sent=False), plural="pods")
        world.api.set_pod(down("runtime", {"terminated": {"exitCode": 1}}))
        await world.alarms.live_through(62)
        assert "deletionTimestamp" not in world.api.store.find(PODS, "default", "runtime-python-1")["metadata"]
        await world.alarms.live_through(6)
        assert "deletionTimestamp" in world.api.store.find(PODS, "default", "runtime-python-1")["metadata"]


async def test_no_runtime_costs_no_alarm_and_no_request():
    world = World()
    async with world.running():
        await settle()
        count = len(world.api.requests)
        await world.alarms.live_through(600, step=10)
        assert len(world.api.requests) == count
        assert world.alarms.armed == 0


def identity(world: World) -> list[str]:
    """What is there of the Runtime's account, role and binding."""
    return [k.plural for k in IDENTITY if (k.plural, "default", "runtime-python") in world.api.store.objects]


IDENTITY = (SERVICEACCOUNTS, ROLES, ROLEBINDINGS)


async def test_the_identity_of_a_runtime_outlives_it_until_its_last_pod_has_drained():
    world = World()
    world.runtime(pods=2)
    async with world.running():
        await world.alarms.live_through(2)
        assert len(identity(world)) == len(IDENTITY)
        for kind in IDENTITY:
            assert "ownerReferences" not in world.api.store.find(kind, "default", "runtime-python")["metadata"]
        world.api.store.delete(RUNTIMES, "default", "python", None, None)
        world.api.remove_pod("runtime-python-1")
        await world.alarms.live_through(10)
        assert len(identity(world)) == len(IDENTITY)
        world.api.remove_pod("runtime-python-2")
        await settle()
        assert identity(world) == []
        assert world.alarms.armed == 0


async def test_an_identity_that_was_left_over_is_removed_by_whoever_starts_and_again_after_a_failure():
    world = World()
    world.runtime()
    async with world.running():
        await world.alarms.live_through(2)
    world.api.store.delete(RUNTIMES, "default", "python", None, None)
    world.api.remove_pod("runtime-python-1")
    world.api.fail_next("delete", unavailable("down", sent=False), plural="roles")
    async with world.running():
        await settle()
        assert identity(world) != []
        await world.alarms.live_through(10)
        assert identity(world) == []
        world.api.seed(RUNTIMES, runtime_object(uid="second"))
        await world.alarms.live_through(2)
        assert len(identity(world)) == len(IDENTITY)
