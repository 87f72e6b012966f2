"""One of several control planes leads: by a Lease, judged by whether it changes, released on stop."""

import asyncio
from collections.abc import Callable

import pytest

from controlplane.kube.resources import LEASES
from controlplane.leadership import LEASE_S, LOOK_S, LeaseLeadership
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube, lost

NAMESPACE, NAME = "kruntimes-system", "kruntimes-controlplane"


class Time:
    """Sleeping moves the clock; after so many sleeps something happens."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sleeps = 0
        self.then: dict[int, Callable[[], None]] = {}

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.sleeps += 1
        self.then.get(self.sleeps, lambda: None)()
        await asyncio.sleep(0)


def one(kube: FakeKube, time: Time, identity: str) -> LeaseLeadership:
    return LeaseLeadership(kube, time.clock, namespace=NAMESPACE, name=NAME, identity=identity, sleep=time.sleep)


async def holder(kube: FakeKube) -> str | None:
    return (await kube.get(LEASES, NAMESPACE, NAME)).spec.holder_identity


async def test_the_first_one_leads_at_once() -> None:
    kube, time = FakeKube(), Time()
    await one(kube, time, "a").acquired()
    assert await holder(kube) == "a"
    assert time.sleeps == 0


async def test_a_stopped_leader_is_followed_at_the_next_look() -> None:
    kube, time = FakeKube(), Time()
    first, second = one(kube, time, "a"), one(kube, time, "b")
    await first.acquired()
    await first.release()
    assert await holder(kube) == ""
    await second.acquired()
    assert await holder(kube) == "b"
    assert time.sleeps == 0
    assert (await kube.get(LEASES, NAMESPACE, NAME)).spec.lease_transitions == 2


async def test_a_killed_leader_is_followed_after_the_life_of_its_lease() -> None:
    kube, time = FakeKube(), Time()
    await one(kube, time, "a").acquired()
    began = time.clock.monotonic()
    await one(kube, time, "b").acquired()
    assert LEASE_S <= time.clock.monotonic() - began <= LEASE_S + 2 * LOOK_S
    assert await holder(kube) == "b"


async def test_a_leader_that_renews_is_left_alone_whatever_its_clock_says() -> None:
    kube, time = FakeKube(), Time()
    first, second = one(kube, time, "a"), one(kube, time, "b")
    await first.acquired()
    time.clock.jump(3600)
    waiting = asyncio.create_task(second.acquired())
    leading = asyncio.create_task(first.lost())
    for _ in range(200):
        await asyncio.sleep(0)
    assert time.sleeps > 20
    assert not waiting.done()
    assert not leading.done()
    assert await holder(kube) == "a"
    for task in (waiting, leading):
        task.cancel()
    await asyncio.gather(waiting, leading, return_exceptions=True)


async def test_a_leader_without_an_api_goes_on_until_the_api_shows_another() -> None:
    kube, time = FakeKube(), Time()
    leader = one(kube, time, "a")
    await leader.acquired()
    for _ in range(10):
        kube.fail_next("update", lost())
    leading = asyncio.create_task(leader.lost())
    for _ in range(100):
        await asyncio.sleep(0)
    assert time.sleeps > 10
    assert not leading.done()
    await kube.merge_patch(LEASES, NAMESPACE, NAME, {"spec": {"holderIdentity": "b"}})
    await leading
    await leader.release()
    assert await holder(kube) == "b", "what it no longer holds it does not touch"


async def test_a_renewal_whose_answer_was_lost_is_no_loss() -> None:
    kube, time = FakeKube(), Time()
    leader = one(kube, time, "a")
    await leader.acquired()
    await kube.merge_patch(LEASES, NAMESPACE, NAME, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    leading = asyncio.create_task(leader.lost())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not leading.done()
    leading.cancel()


@pytest.mark.parametrize("verb", ["get", "create"])
async def test_one_that_waits_outlives_an_api_that_fails(verb: str) -> None:
    kube, time = FakeKube(), Time()
    kube.fail_next(verb, lost())
    await one(kube, time, "a").acquired()
    assert time.sleeps == 1


async def test_a_leader_whose_lease_another_has_taken_leads_no_more() -> None:
    kube, time = FakeKube(), Time()
    leader = one(kube, time, "a")
    await leader.acquired()
    lease = await kube.get(LEASES, NAMESPACE, NAME)
    await kube.merge_patch(LEASES, NAMESPACE, lease.metadata.name, {"spec": {"holderIdentity": "b"}})
    await leader.lost()
    assert await holder(kube) == "b"
