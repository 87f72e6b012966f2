"""The node on an API in memory: Deployments become Pods and processes, and every end has its order."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.embedded import spawning
from controlplane.kube.errors import unavailable
from controlplane.kube.resources import CONFIGMAPS, DEPLOYMENTS, PODS, SERVICES
from controlplane.kube.types import Pod
from tests.kit.waiting import eventually
from tests.node.nodes import Machine, deployment, service, template


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def restarts(pod: Pod) -> dict[str, int]:
    return {s.name: s.restart_count for s in (*pod.status.init_container_statuses, *pod.status.container_statuses)}


async def one_ready_pod(machine: Machine) -> Pod:
    machine.apply(DEPLOYMENTS, deployment())
    await both_run(machine)
    machine.serve(machine.pod())
    await eventually(lambda: machine.pod().ready)
    return machine.pod()


async def both_run(machine: Machine) -> None:
    await eventually(lambda: machine.spawner.ids("runtimed") and machine.spawner.ids("runtime"))


async def eventually_status(machine: Machine, wanted: Callable[[Pod], object]) -> None:
    await eventually(lambda: wanted(machine.pod()))


async def test_a_deployment_becomes_a_replicaset_a_pod_and_two_processes(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
        (rs,) = machine.replicasets()
        assert rs.metadata.owner_references[0].name == "runtime-python"
        assert pod.metadata.name.startswith(f"{rs.metadata.name}-")
        assert pod.metadata.labels["pod-template-hash"] == rs.metadata.labels["pod-template-hash"]
        assert [request.target for request in machine.spawner.spawned] == [
            "dataplane.runtimed.main",
            "runtimes.server.main",
        ]
        await eventually(lambda: machine.deployment().status.available_replicas == 1)
        status = machine.deployment().status
        assert status.observed_generation == machine.deployment().metadata.generation
        assert {c.type: c.status for c in status.conditions} == {"Available": "True", "Progressing": "True"}


async def test_a_container_sees_its_paths_its_identity_and_little_else(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
        daemon, server = (request.env for request in machine.spawner.spawned)
        volumes = machine.path / "pods" / pod.metadata.uid / "volumes"
        assert daemon["POD_IP"] == pod.status.pod_ip
        assert daemon["KRUNTIMES_CA_FILE"] == str(volumes / "installation-ca" / "ca.crt")
        assert daemon["KRUNTIMES_TOKEN_FILE"] == str(volumes / "identity" / "token")
        assert (volumes / "identity" / "token").read_text().startswith("token-")
        assert (volumes / "api-access" / "namespace").read_text() == "default"
        assert (volumes / "identity" / "token").stat().st_mode & 0o777 == 0o600
        assert daemon["KRUNTIMES_SOCKET"] == server["KRUNTIMES_SOCKET"]
        assert Path(server["KRUNTIMES_SOCKET"]).parent.samefile(volumes / "socket")
        assert server["KRUNTIMES_LANGUAGE"] == "python"
        secrets = {"KRUNTIMES_TOKEN_FILE", "KRUNTIMES_CA_FILE", "KRUNTIMES_SERVICEACCOUNT_DIR", "KUBECONFIG"}
        assert not secrets & set(server)


async def test_readiness_follows_the_file_at_once_and_the_slice_follows_readiness(machine: Machine) -> None:
    machine.apply(SERVICES, service())
    async with machine.node():
        pod = await one_ready_pod(machine)

        def ready() -> bool | None:
            found = machine.slice()
            return found.endpoints[0].conditions.ready if found and found.endpoints else None

        await eventually(lambda: ready() is True)
        slice_ = machine.slice()
        assert slice_ is not None and slice_.endpoints and slice_.ports
        assert slice_.endpoints[0].addresses == (pod.status.pod_ip,)
        assert slice_.endpoints[0].target_ref is not None
        assert slice_.endpoints[0].target_ref.uid == pod.metadata.uid
        assert (slice_.ports[0].name, slice_.ports[0].port) == ("runtimed", 8443)
        assert slice_.metadata.labels["kubernetes.io/service-name"] == "runtime-python"
        machine.drain(pod)
        await eventually(lambda: ready() is False)
        machine.serve(pod)
        await eventually(lambda: ready() is True)


async def test_a_ready_file_of_an_earlier_run_does_not_count(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
        machine.spawner.end(machine.spawner.ids("runtimed")[0], 137)
        await eventually(lambda: restarts(machine.pod())["runtimed"] == 1 and machine.spawner.ids("runtimed"))
        await eventually_status(machine, lambda pod: not pod.ready)
        machine.serve(pod)
        await eventually(lambda: machine.pod().ready)


async def test_a_container_that_ends_is_restarted_with_backoff_under_the_same_pod(machine: Machine) -> None:
    async with machine.node():
        before = await one_ready_pod(machine)
        began = asyncio.get_running_loop().time()
        for run in (1, 2, 3):
            await eventually(lambda: machine.spawner.ids("runtime"))
            machine.spawner.end(machine.spawner.ids("runtime")[0], 1)
            await eventually(lambda run=run: restarts(machine.pod())["runtime"] == run)  # type: ignore[misc]
        assert asyncio.get_running_loop().time() - began >= 0.1 + 0.2 + 0.4 - 0.05
        after = machine.pod()
        assert after.metadata.uid == before.metadata.uid
        assert restarts(after) == {"runtimed": 0, "runtime": 3}
        last = after.status.container_statuses[0].last_state
        assert last is not None and last.terminated is not None and last.terminated.exit_code == 1


async def test_a_pod_that_is_deleted_ends_its_containers_before_the_sidecar_and_then_goes(machine: Machine) -> None:
    machine.apply(SERVICES, service())
    async with machine.node():
        pod = await one_ready_pod(machine)
        machine.spawner.term = "ignore"
        await machine.kube.delete(PODS, "default", pod.metadata.name)
        uid = pod.metadata.uid
        await eventually(lambda: machine.spawner.signals == [(f"{uid}/runtime/0", signal.SIGTERM)])

        def old_endpoint() -> object:
            found = machine.slice()
            endpoints = (found.endpoints or ()) if found else ()
            return next((e for e in endpoints if e.target_ref and e.target_ref.uid == uid), None)

        await eventually(lambda: (e := old_endpoint()) and e.conditions.terminating and not e.conditions.ready)  # type: ignore[attr-defined]
        machine.spawner.end(f"{uid}/runtime/0", 0)
        await eventually(lambda: machine.spawner.signals[1:] == [(f"{uid}/runtimed/0", signal.SIGTERM)])
        assert any(p.metadata.uid == uid for p in machine.pods())
        machine.spawner.end(f"{uid}/runtimed/0", 0)
        await eventually(lambda: all(p.metadata.uid != uid for p in machine.pods()))
        last = [e.before for e in machine.kube.store.history if e.plural == "pods" and e.after is None][-1]
        assert last is not None and last["status"]["phase"] == "Succeeded"
        await eventually(lambda: not (machine.path / "pods" / uid).exists())
        await eventually(lambda: len(machine.pods()) == 1)  # its replacement


async def test_a_container_that_ignores_sigterm_is_killed_at_the_end_of_the_grace(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
        machine.spawner.term = "ignore"
        await machine.kube.delete(PODS, "default", pod.metadata.name, grace_seconds=1)
        await eventually(lambda: all(p.metadata.uid != pod.metadata.uid for p in machine.pods()), within=8)
        sent = [number for id, number in machine.spawner.signals if id == f"{pod.metadata.uid}/runtime/0"]
        assert sent == [signal.SIGTERM, signal.SIGKILL]


async def test_a_pod_that_vanishes_is_killed_at_once(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
        machine.spawner.term = "ignore"
        await machine.kube.delete(PODS, "default", pod.metadata.name, grace_seconds=0)
        await eventually(lambda: not [id for id in machine.spawner.running if id.startswith(pod.metadata.uid)])
        await eventually(lambda: not (machine.path / "pods" / pod.metadata.uid).exists())


async def serve_the_new_one(machine: Machine, old: set[str]) -> None:
    fresh = next(pod for pod in machine.pods() if pod.metadata.uid not in old and not pod.ready)
    await eventually(lambda: f"{fresh.metadata.uid}/runtimed/0" in machine.spawner.running)
    machine.serve(fresh)
    await eventually(lambda: next(pod for pod in machine.pods() if pod.metadata.uid == fresh.metadata.uid).ready)


async def test_a_rolling_update_never_has_fewer_ready_pods_than_wanted(machine: Machine) -> None:
    machine.apply(DEPLOYMENTS, deployment(replicas=2))
    async with machine.node():
        await eventually(lambda: len(machine.spawner.ids("runtime")) == 2)
        for pod in machine.pods():
            machine.serve(pod)
        await eventually(lambda: machine.deployment().status.available_replicas == 2)
        old = {pod.metadata.uid for pod in machine.pods()}
        machine.change(DEPLOYMENTS, deployment(replicas=2, image="kruntimes/bash-runtime"))
        for _ in range(2):
            await eventually(lambda: any(not pod.ready and not pod.metadata.deleting for pod in machine.pods()))
            assert sum(pod.ready for pod in machine.pods()) >= 2
            assert sum(not pod.metadata.deleting for pod in machine.pods()) <= 3
            await serve_the_new_one(machine, old)
        await eventually(lambda: {pod.metadata.uid for pod in machine.pods()}.isdisjoint(old))
        await eventually(lambda: machine.deployment().status.updated_replicas == 2)
        assert [rs.spec.replicas for rs in machine.replicasets()] == [0, 2]


async def test_a_rollback_takes_the_old_replicaset_again_as_the_newest_revision(machine: Machine) -> None:
    async with machine.node():
        first = await one_ready_pod(machine)
        machine.change(DEPLOYMENTS, deployment(image="kruntimes/bash-runtime"))
        await eventually(lambda: len(machine.pods()) == 2)
        await serve_the_new_one(machine, {first.metadata.uid})
        await eventually(lambda: len(machine.pods()) == 1)
        machine.change(DEPLOYMENTS, deployment())
        await eventually(lambda: [rs.spec.replicas for rs in machine.replicasets()] == [1, 1])
        newest = machine.replicasets()[-1]
        assert newest.metadata.annotations["deployment.kubernetes.io/revision"] == "3"
        assert newest.metadata.labels["pod-template-hash"] == first.metadata.labels["pod-template-hash"]


async def test_scaling_down_takes_the_youngest_and_scaling_to_zero_takes_all(machine: Machine) -> None:
    machine.apply(DEPLOYMENTS, deployment(replicas=1))
    async with machine.node():
        await both_run(machine)
        (first,) = machine.pods()
        machine.serve(first)
        await eventually(lambda: machine.pod().ready)
        machine.change(DEPLOYMENTS, deployment(replicas=3))
        await eventually(lambda: len(machine.spawner.ids("runtime")) == 3)
        machine.change(DEPLOYMENTS, deployment(replicas=1))
        await eventually(lambda: [p.metadata.uid for p in machine.pods()] == [first.metadata.uid])
        machine.change(DEPLOYMENTS, deployment(replicas=0))
        await eventually(lambda: not machine.pods() and not machine.spawner.running)


async def test_a_dead_node_is_followed_by_one_that_adopts_everything(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
    running = set(machine.spawner.running)
    machine.drain(pod)
    async with machine.node():
        await eventually(lambda: not machine.pod().ready)
        machine.serve(pod)
        await eventually(lambda: machine.pod().ready)
        assert set(machine.spawner.running) == running
        assert restarts(machine.pod()) == {"runtimed": 0, "runtime": 0}
        assert machine.pod().status.pod_ip == pod.status.pod_ip
        assert len(machine.spawner.spawned) == 2


async def test_what_ended_while_no_node_was_there_is_restarted(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
    machine.spawner.end(f"{pod.metadata.uid}/runtime/0", 9)
    async with machine.node():
        await eventually(lambda: f"{pod.metadata.uid}/runtime/1" in machine.spawner.running)
        await eventually(lambda: restarts(machine.pod()) == {"runtimed": 0, "runtime": 1})
        last = machine.pod().status.container_statuses[0].last_state
        assert last is not None and last.terminated is not None and last.terminated.exit_code == 9
        assert not machine.spawner.ended


async def test_pods_of_an_earlier_life_start_again_under_their_uid(machine: Machine) -> None:
    async with machine.node():
        pod = await one_ready_pod(machine)
    for id in list(machine.spawner.running):
        machine.spawner.end(id, 137)
    machine.spawner.ended.clear()  # another supervisor knows nothing of them
    async with machine.node():
        await eventually(lambda: len(machine.spawner.running) == 2)
        assert machine.pod().metadata.uid == pod.metadata.uid
        await eventually(lambda: restarts(machine.pod()) == {"runtimed": 1, "runtime": 1})
        assert not machine.pod().ready
        assert machine.pod().status.pod_ip == pod.status.pod_ip
        machine.serve(pod)
        await eventually(lambda: machine.pod().ready)


async def test_processes_and_folders_of_pods_that_are_gone_are_removed(machine: Machine) -> None:
    (machine.path / "pods" / "gone-uid" / "volumes").mkdir(parents=True)
    machine.spawner.spawn(spawning.Spawn("gone-uid/runtime/0", "x", {}, "/dev/null", "x"))
    async with machine.node():
        await eventually(lambda: not machine.spawner.running)
        await eventually(lambda: not (machine.path / "pods" / "gone-uid").exists())
        assert machine.spawner.signals == [("gone-uid/runtime/0", signal.SIGKILL)]


async def test_a_shutdown_asks_all_containers_at_once_and_keeps_the_pods(machine: Machine) -> None:
    async with machine.node() as node:
        pod = await one_ready_pod(machine)
        node.on_report(spawning.Shutdown(5.0))
        await asyncio.wait_for(node.over.wait(), 5)
        uid = pod.metadata.uid
        assert machine.spawner.signals == [
            (f"{uid}/runtimed/0", signal.SIGTERM),
            (f"{uid}/runtime/0", signal.SIGTERM),
        ]
        after = machine.pod()
        assert after.metadata.uid == uid and not after.ready
        assert not after.metadata.deleting
        state = after.status.container_statuses[0].state
        assert state is not None and state.terminated is not None


async def test_an_unknown_image_waits_and_says_which_ones_there_are(machine: Machine) -> None:
    machine.apply(DEPLOYMENTS, deployment(image="nginx:1"))
    async with machine.node():

        def reason() -> str:
            statuses = machine.pod().status.container_statuses if machine.pods() else ()
            state = statuses[0].state if statuses else None
            return f"{state.waiting.reason} {state.waiting.message}" if state and state.waiting else ""

        await eventually(lambda: reason().startswith("ErrImageNeverPull"))
        assert "kruntimes/python-runtime" in reason()
        assert machine.notes[0][0] == "ErrImageNeverPull"


async def test_a_volume_that_is_not_there_yet_delays_the_start_and_says_so(machine: Machine) -> None:
    await machine.kube.delete(CONFIGMAPS, "default", "kruntimes-ca")
    machine.apply(DEPLOYMENTS, deployment())
    async with machine.node():
        await eventually(lambda: machine.pods() and machine.pod().status.container_statuses)
        state = machine.pod().status.container_statuses[0].state
        assert state is not None and state.waiting is not None and "kruntimes-ca" in state.waiting.message
        assert not machine.spawner.spawned
        machine.apply(
            CONFIGMAPS, {"metadata": {"name": "kruntimes-ca", "namespace": "default"}, "data": {"ca.crt": "PEM"}}
        )
        await both_run(machine)


async def test_writes_that_the_api_did_not_take_are_made_again(machine: Machine) -> None:
    async with machine.node():
        for verb, plural in (("create", "pods"), ("create", "replicasets"), ("json_patch", "pods")):
            machine.kube.fail_next(verb, unavailable("not now", sent=False), plural=plural)
        pod = await one_ready_pod(machine)
        assert pod.ready
        assert len(machine.pods()) == 1


async def test_a_pod_without_a_node_is_bound_here_and_runs_once(machine: Machine) -> None:
    bare = {
        "metadata": {"name": "bare", "namespace": "default"},
        "spec": template()["spec"] | {"restartPolicy": "Never", "initContainers": []},
    }
    async with machine.node():
        machine.apply(PODS, bare)
        await eventually(lambda: machine.spawner.ids("runtime"))
        assert machine.pod().spec.node_name == "local"
        machine.spawner.end(machine.spawner.ids("runtime")[0], 3)
        await eventually(lambda: machine.pod().status.phase == "Failed")
        assert machine.pod().finished
        assert not machine.spawner.running
