"""Each part of the system is struck under a steady load: what fails is what the specification lets fail, and all heals.

A test names the outcomes that its fault may cause, and for how long. Whatever it is: nobody owns twice, no slot is
lost, and afterwards every call is served.
"""

import asyncio
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

from controlplane.kube.errors import KubeError
from controlplane.kube.resources import LEASES, PODS, RUNS
from tests.cluster.arena import Arena, Calls, arena
from tests.cluster.containers import broken, meant_for_the_kernel, program
from tests.cluster.kit import SYSTEM, Cluster, fresh, settled
from tests.e2e.stack import ECHO, function

PER_SECOND = 20.0

IN_FLIGHT = ("502 OutcomeUnknown",)
"""A lost container costs its calls in flight (L12, I2)."""
UNREACHABLE = ("503 OwnerUnreachable",)
"""Nobody listens at the owner's address: not dispatched, may work later (I2)."""
NO_AUTHORIZATION = ("503 AuthorizationUnavailable",)
"""The API does not say who a caller is, once the cached decision is too old."""
CONNECTION_LOST = ("ServerDisconnectedError", "ClientOSError", "ClientConnectorError")
"""The gateway that a caller was connected to is gone; others are reached once kube-proxies know."""


@dataclass
class Fault:
    """When it struck."""

    at: float = 0.0

    def strikes(self) -> None:
        self.at = time.time()


async def healed(place: Arena, calls: Calls, fault: Fault, allowed: Collection[str], within: float) -> None:
    """The verdict once the load is over."""
    print(f"{len(calls.all)} calls at {calls.rate:.0f}/s: {dict(calls.outcomes)}")  # noqa: T201 - a measurement
    calls.judge(allowed, since=fault.at, within=within)
    await place.no_slot_is_lost()


async def test_a_deleted_runtime_pod_costs_no_call(cluster: Cluster) -> None:
    fault = Fault()
    async with arena(cluster) as place:
        async with place.calls(PER_SECOND) as caller:
            owner = await place.owner()
            fault.strikes()
            await place.client.delete(PODS, place.namespace, owner.metadata.name)
            moved = await place.ready(attempt=2)
            await caller.until_steady()
            calls = await caller.end()
        assert moved.status.assigned_pod_uid != owner.metadata.uid
        await place.until_pods(2)
        await healed(place, calls, fault, (), 0)


async def test_slow_calls_outlive_their_pod_and_the_next_ones_move_also_by_peers_and_several_workers(
    cluster: Cluster,
) -> None:
    """Three gateway processes with a projection each, which send calls to any ready endpoint as a Service does."""
    fault = Fault()
    workers = {"KRUNTIMES_GATEWAY_WORKERS": "3", "KRUNTIMES_GATEWAY_ROUTING": "service"}
    async with arena(cluster) as place, place.gateway(**workers) as address:
        owner = await place.owner()
        async with place.calls(8.0, gateway=address, sleep=1.5) as caller:
            fault.strikes()
            await place.client.delete(PODS, place.namespace, owner.metadata.name)
            await place.ready(attempt=2)
            await caller.until_steady(4)
            calls = await caller.end()
        ended_there = max(call.ended for call in calls.all if call.pod == owner.metadata.name)
        assert ended_there > fault.at + 1, "calls in flight ended on the Pod that was going"
        await place.until_pods(2)
        await healed(place, calls, fault, (), 0)


async def test_a_runtime_server_that_runs_out_of_memory_costs_its_calls_in_flight(cluster: Cluster) -> None:
    def small(runtime: dict[str, object]) -> None:
        template = runtime["spec"]["template"]  # type: ignore[index]
        template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "192Mi"}}

    fault = Fault()
    async with arena(cluster, change=small) as place:
        owner, run = await place.owner(), await place.run()
        async with place.calls(PER_SECOND) as caller:
            meant_for_the_kernel(program(owner, "runtime"))
            fault.strikes()
            async with cluster.https(run, place.token) as session:
                with_hog = {"n": 0, "hog": 512}
                async with session.post(run.status.endpoint.url, json=with_hog) as answer:
                    assert (answer.status, (await answer.json())["reason"]) == (502, "OutcomeUnknown")
            await place.ready(attempt=2)
            await caller.until_steady()
            calls = await caller.end()
        again = await place.client.get(PODS, place.namespace, owner.metadata.name)
        ended = next(one for one in again.status.container_statuses if one.name == "runtime").last_state.terminated
        assert ended.reason == "OOMKilled"
        await place.until_pods(2)
        await healed(place, calls, fault, IN_FLIGHT, 0.5)


async def test_a_killed_runtimed_costs_what_reaches_nobody_until_it_is_back(cluster: Cluster) -> None:
    fault = Fault()
    async with arena(cluster) as place:
        owner = await place.owner()
        async with place.calls(PER_SECOND) as caller:
            fault.strikes()
            os.kill(program(owner, "runtimed"), signal.SIGKILL)
            await caller.until_steady()
            calls = await caller.end()
        await place.until_pods(2)
        await healed(place, calls, fault, IN_FLIGHT + UNREACHABLE, 15)


async def test_a_killed_leader_costs_no_call_and_the_next_run_is_scheduled(cluster: Cluster) -> None:
    fault = Fault()
    async with arena(cluster) as place, place.calls(PER_SECOND) as caller:
        lease = await place.client.get(LEASES, SYSTEM, "kruntimes-controlplane")
        leader = await place.client.get(PODS, SYSTEM, lease.spec.holder_identity)
        fault.strikes()
        os.kill(program(leader, "controlplane"), signal.SIGKILL)
        began = time.monotonic()
        await place.client.create(RUNS, place.namespace, function("next", ECHO))
        await settled(
            lambda: place.client.get(RUNS, place.namespace, "next"), lambda run: run.status.phase == "Ready", 30
        )
        print(f"killed leader: the next Run is Ready after {time.monotonic() - began:.1f} s")  # noqa: T201
        await place.client.delete(RUNS, place.namespace, "next")
        await caller.until_steady()
        await healed(place, await caller.end(), fault, (), 0)
    cluster.settle()


async def test_a_deleted_leader_is_followed_within_3_s(cluster: Cluster) -> None:
    fault = Fault()
    async with arena(cluster) as place, place.calls(PER_SECOND) as caller:
        lease = await place.client.get(LEASES, SYSTEM, "kruntimes-controlplane")
        fault.strikes()
        await place.client.delete(PODS, SYSTEM, lease.spec.holder_identity)
        began = time.monotonic()
        await place.client.create(RUNS, place.namespace, function("next", ECHO))
        await settled(lambda: place.client.get(RUNS, place.namespace, "next"), lambda run: run.status.attempt == 1, 30)
        took = time.monotonic() - began
        print(f"deleted leader: the next Run is Scheduled after {took:.2f} s")  # noqa: T201
        assert took < 3
        await place.client.delete(RUNS, place.namespace, "next")
        await healed(place, await caller.end(), fault, (), 0)
    cluster.settle()


async def test_a_run_whose_pod_dies_before_the_claim_is_bound_anew_within_35_s(cluster: Cluster) -> None:
    """Its runtimed stands still, so that the binding is there to see; then the Pod goes, with no grace."""
    async with arena(cluster, pods=1) as place:
        owner = await place.owner()
        pid = program(owner, "runtimed")
        os.kill(pid, signal.SIGSTOP)
        name = fresh("unclaimed")
        await place.client.create(RUNS, place.namespace, function(name, ECHO))
        bound = await settled(
            lambda: place.client.get(RUNS, place.namespace, name), lambda run: run.status.phase == "Scheduled", 10
        )
        assert bound.status.assigned_pod_uid == owner.metadata.uid
        began = time.monotonic()
        await place.client.delete(PODS, place.namespace, owner.metadata.name, grace_seconds=0)
        await settled(
            lambda: place.client.get(RUNS, place.namespace, name),
            lambda run: run.status.phase == "Ready" and run.status.attempt == 2,
            35,
        )
        print(f"a Pod that died before the claim: Ready again after {time.monotonic() - began:.1f} s")  # noqa: T201


async def test_a_killed_gateway_costs_its_connections(cluster: Cluster) -> None:
    fault = Fault()
    async with arena(cluster) as place, place.calls(PER_SECOND) as caller:
        pods = await place.client.list(PODS, SYSTEM, labels="app.kubernetes.io/component=gateway")
        fault.strikes()
        os.kill(program(pods.items[0], "gateway"), signal.SIGKILL)
        await caller.until_steady()
        await healed(place, await caller.end(), fault, CONNECTION_LOST, 5)
    cluster.settle()


async def test_a_restarted_api_server_costs_no_call(cluster: Cluster) -> None:
    fault = Fault()
    async with arena(cluster) as place, place.calls(PER_SECOND) as caller:
        fault.strikes()
        with broken("kube-apiserver", "kill", "start"):
            pass
        await settled(lambda: _answers(place), bool, 60)
        print(f"the API server is back after {time.time() - fault.at:.1f} s")  # noqa: T201 - a measurement
        await caller.until_steady()
        await healed(place, await caller.end(), fault, NO_AUTHORIZATION, 40)


async def test_an_etcd_that_stands_still_for_20_s_costs_no_call(cluster: Cluster) -> None:
    fault = Fault()
    async with arena(cluster) as place, place.calls(PER_SECOND) as caller:
        before = (await place.run()).status
        fault.strikes()
        with broken("etcd", "pause", "resume"):
            await asyncio.sleep(20)
        await settled(lambda: _answers(place), bool, 60)
        await caller.until_steady()
        await healed(place, await caller.end(), fault, NO_AUTHORIZATION, 25)
        after = (await place.run()).status
        assert (after.phase, after.attempt) == (before.phase, before.attempt)
    cluster.settle()


async def _answers(place: Arena) -> bool:
    """Whether the API takes reads again."""
    try:
        async with asyncio.timeout(2):
            await place.run()
    except (KubeError, TimeoutError):
        return False
    return True
