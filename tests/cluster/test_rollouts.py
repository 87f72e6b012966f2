"""Everything is replaced while 200 calls a second go on, and not one of them fails."""

import asyncio
import json
import time

import pytest

from controlplane.kube.resources import PODS
from tests.cluster.arena import Arena, Caller, arena
from tests.cluster.containers import tag_image
from tests.cluster.kit import SYSTEM, Cluster, scripts_cluster, settled

PER_SECOND = 200.0
OFFERED_MIN = 190.0  # below this the load was none
NEXT = "-next"


async def no_call_failed(caller: Caller, what: str, began: float) -> None:
    """The verdict once the rollout is over and has been for a moment."""
    took = time.time() - began
    await caller.until_steady()
    calls = await caller.end()
    waited = sorted(call.took for call in calls.all)
    slow = f"p50 {waited[len(waited) // 2] * 1000:.0f} ms, longest {waited[-1] * 1000:.0f} ms"
    print(  # noqa: T201 - a measurement
        f"{what}: {took:.0f} s, {len(calls.all)} calls at {calls.rate:.0f}/s, {slow}: {dict(calls.outcomes)}"
    )
    calls.judge()
    assert calls.rate > OFFERED_MIN


async def rolled(place: Arena, namespace: str, deployment: str) -> None:
    await asyncio.to_thread(
        place.cluster.kubectl, "rollout", "status", "-n", namespace, f"deploy/{deployment}", "--timeout=110s"
    )


async def test_a_change_of_a_runtimes_template_fails_no_call(cluster: Cluster) -> None:
    async with arena(cluster, pods=2) as place:
        before = {pod.metadata.uid for pod in (await place.client.list(PODS, place.namespace)).items}
        async with place.calls(PER_SECOND) as caller:
            began = time.time()
            change = [{"op": "add", "path": "/spec/template/metadata", "value": {"annotations": {"changed": "1"}}}]
            place.kubectl("patch", "runtime", "python", "--type=json", "-p", json.dumps(change))
            await place.until_others(before, 2)
            await rolled(place, place.namespace, "runtime-python")
            await no_call_failed(caller, "Runtime rolled", began)
        await place.until_pods(2)
        await place.no_slot_is_lost()


async def test_a_restart_of_the_gateway_fails_no_call(cluster: Cluster) -> None:
    async with arena(cluster) as place, place.calls(PER_SECOND) as caller:
        began = time.time()
        cluster.kubectl("rollout", "restart", "-n", SYSTEM, "deploy/runtime-gateway")
        await rolled(place, SYSTEM, "runtime-gateway")
        await no_call_failed(caller, "gateway rolled", began)


@pytest.mark.timeout(300)
async def test_an_upgrade_of_everything_fails_no_call_and_rolls_each_pod_once(cluster: Cluster) -> None:
    """The images of another tag, so that control plane, gateway, runtimed and Runtime Servers are all replaced."""
    async with arena(cluster) as place:
        rolled_before = {namespace: replica_sets(cluster, namespace) for namespace in (place.namespace, "default")}
        scripts_cluster("load")
        tag = another_tag(cluster)
        async with place.calls(PER_SECOND) as caller:
            began = time.time()
            await asyncio.to_thread(
                scripts_cluster, "install", "--reset-then-reuse-values", "--set", f"image.tag={tag}"
            )
            await rolled(place, SYSTEM, "kruntimes-controlplane")
            await rolled(place, SYSTEM, "runtime-gateway")
            for namespace in rolled_before:
                await settled(lambda ns=namespace: runtimed_tag(cluster, ns), lambda found: found == tag, 60)
                await rolled(place, namespace, "runtime-python")
            await no_call_failed(caller, "helm upgrade", began)
        for namespace, before in rolled_before.items():
            new = replica_sets(cluster, namespace) - before
            assert len(new) <= 1, f"{namespace}: rolled {len(new)} times"
        await place.until_pods(2)
        await place.no_slot_is_lost()
    cluster.settle()


def another_tag(cluster: Cluster) -> str:
    """A tag under which the node has our images too, and which is not installed now."""
    path = "jsonpath={.items[0].spec.template.spec.containers[0].image}"
    registry, _, now = cluster.kubectl("get", "deploy", "-n", SYSTEM, "-o", path).rpartition("/")
    _, _, now = now.rpartition(":")
    wanted = now.removesuffix(NEXT) if now.endswith(NEXT) else f"{now}{NEXT}"
    for name in ("controlplane", "gateway", "runtimed", "python-runtime", "bash-runtime"):
        tag_image(f"{registry}/{name}:{now}", f"{registry}/{name}:{wanted}")
    return wanted


async def runtimed_tag(cluster: Cluster, namespace: str) -> str:
    """The tag of the runtimed that a Runtime's Deployment asks for."""
    path = "jsonpath={.spec.template.spec.initContainers[0].image}"
    found = await asyncio.to_thread(cluster.kubectl, "get", "deploy", "runtime-python", "-n", namespace, "-o", path)
    return found.rpartition(":")[2]


def replica_sets(cluster: Cluster, namespace: str) -> set[str]:
    """One for each template that a Runtime's Pods were ever made from."""
    return set(cluster.kubectl("get", "rs", "-n", namespace, "-l", "kruntimes.io/runtime=python", "-o", "name").split())
