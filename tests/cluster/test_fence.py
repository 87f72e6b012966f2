"""A node's kubelet stops and the Pod that owns a function is cut off from the API: not Ready, not gone, still serving.

Nobody else may own the function before the fence, and the silent owner stops serving by itself before that (L2).
"""

import asyncio
import time
from datetime import UTC, datetime

from controlplane.kube.resources import PODS
from tests.cluster.arena import arena
from tests.cluster.containers import broken, cut_off_from_the_api
from tests.cluster.kit import SYSTEM, Cluster, settled

PER_SECOND = 5.0  # a call without an owner is held for 10 s: fewer are in flight than the function takes
LEASE_S = 45.0  # an owner serves so long after the API showed it its Pod
READ_S = 18.0  # the last read of its Pod was at most so long ago: every 15 s, and some seconds for an answer
FENCE_S = 60.0  # nobody else owns the Run so long after the API showed its Pod deleting

ADDRESSES = "jsonpath={.items[*].status.podIP}"
GATEWAYS = ("get", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=gateway", "-o", ADDRESSES)

NO_OWNER = ("503 StaleOwner", "503 RunNotReady", "503 OwnerUnreachable")
"""What calls get while the function has no owner that serves."""


async def test_a_silent_owner_stops_serving_and_nobody_follows_it_before_the_fence(cluster: Cluster) -> None:
    # With its only node NotReady a Service has no endpoints: this caller goes to a gateway's own address.
    gateways = cluster.kubectl(*GATEWAYS).split()
    async with arena(cluster) as place, place.calls(PER_SECOND, gateway=gateways[0]) as caller:
        owner = await place.owner()
        following = asyncio.create_task(place.follow())
        with broken("kubelet", "stop", "start"):
            cut_at = time.time()
            with cut_off_from_the_api(owner.status.pod_ip):
                # Whoever runs the cluster deletes the Pod: with its kubelet away it stays, deleting.
                await place.client.delete(PODS, place.namespace, owner.metadata.name)
                deleted_at = time.time()
                moved = await settled(place.run, lambda run: run.status.assigned_pod_uid != owner.metadata.uid, 90)
                moved_at = time.time()
                there = await place.client.get(PODS, place.namespace, owner.metadata.name)
                said = {one.type: one.status for one in there.status.conditions}
                assert (there.metadata.uid, said["Ready"]) == (owner.metadata.uid, "False"), "not Ready, not gone"
        again = await place.ready(attempt=2)
        await caller.until_steady()
        calls = await caller.end()
        following.cancel()
        served = max(call.ended for call in calls.all if call.outcome == "ok" and call.pod == owner.metadata.name)
        print(  # noqa: T201 - measurements
            f"{dict(calls.outcomes)}; cut off, the owner served for {served - cut_at:.1f} s more; it was replaced "
            f"{moved_at - deleted_at:.1f} s after the deletion; all was well after {time.time() - cut_at:.0f} s"
        )
        assert LEASE_S - READ_S < served - cut_at < LEASE_S + 1
        assert FENCE_S <= moved_at - deleted_at < FENCE_S + 10
        calls.judge(NO_OWNER, since=cut_at + LEASE_S - READ_S, within=120)
        assert again.status.assigned_pod_uid != owner.metadata.uid
        assert moved.status.attempt in (1, 2)
        for at, run in place.history:
            if run.status.assigned_pod_uid not in (None, "", owner.metadata.uid):
                assert at - deleted_at >= FENCE_S, datetime.fromtimestamp(at, UTC)
        await place.until_pods(2)
        await place.no_slot_is_lost()
    cluster.settle()
