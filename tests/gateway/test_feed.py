"""The projection follows the API: what is listed, what changes, what goes, and what an outage leaves."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controlplane.kube.errors import unavailable
from controlplane.kube.resources import ENDPOINTSLICES, RUNS, RUNTIMES
from controlplane.kube.types import EndpointSlice, ObjectMeta
from dataplane.gateway import runfeed
from dataplane.gateway.feed import Feed, pods_of, runtime_of
from dataplane.gateway.holding import Changes
from dataplane.gateway.tables import BadTable, columns_of, decode_line, decode_table, facts
from statemachine.ownership import Miss, Owner, PodFact, Projection
from statemachine.run import Phase, PodUID, RunUID
from tests.gateway.tables import TableKube
from tests.kit.builders import assigned, endpoint_slice, function_run, runtime_object, runtime_pod
from tests.kit.clock import ManualClock
from tests.kit.waiting import eventually


class Follower:
    def __init__(self) -> None:
        self.kube = TableKube()
        self.clock = ManualClock()
        self.projection = Projection()
        self.changes = Changes()
        self.pods: list[tuple[PodFact, PodFact | None]] = []
        self.feed = Feed(
            self.kube,
            self.clock,
            self.projection,
            self.changes,
            on_pod=lambda before, now: self.pods.append((before, now)),
        )

    def run(self, name: str) -> Any:
        owner = self.projection.look_up("default", "python", RunUID(f"uid-{name}"))
        return owner.run if isinstance(owner, Owner) else owner


@pytest.fixture
async def follower() -> AsyncIterator[Follower]:
    it = Follower()
    it.kube.seed(RUNTIMES, runtime_object())
    task = asyncio.create_task(it.feed.run())
    yield it
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_runs_and_endpoints_that_are_there_are_known_once_synced(follower: Follower) -> None:
    for number in range(5):
        follower.kube.seed(RUNS, function_run(f"f{number}", status=assigned("Ready")))
    follower.kube.seed(RUNS, function_run("new"))
    follower.kube.seed(ENDPOINTSLICES, endpoint_slice("python", runtime_pod()))
    async with asyncio.timeout(5):
        await follower.feed.synced()
    assert len(follower.projection) == 6
    assert follower.kube.table_lists == 3
    fact = follower.run("f3")
    assert (fact.phase, fact.attempt, fact.pod_uid, fact.name) == (Phase.READY, 1, "pod-1", "f3")
    assert (follower.run("new").phase, follower.run("new").pod_uid) == (Phase.PENDING, None)
    pod = follower.projection.pod(PodUID("pod-1"))
    assert pod == PodFact(PodUID("pod-1"), "default", "python", "127.0.0.2", 8443, True)
    await eventually(lambda: follower.feed.stale_seconds() == 0)


async def test_a_change_is_known_and_wakes_who_waits_for_it(follower: Follower) -> None:
    async with asyncio.timeout(5):
        await follower.feed.synced()
    waiting = asyncio.create_task(follower.changes.wait(RunUID("uid-f"), timeout_s=5))
    await asyncio.sleep(0)
    follower.kube.seed(RUNS, function_run("f"))
    assert await waiting
    await follower.kube.merge_patch(RUNS, "default", "f", {"status": assigned("Ready")}, subresource="status")
    await eventually(lambda: follower.run("f").phase is Phase.READY)
    await follower.kube.delete(RUNS, "default", "f")
    await eventually(lambda: follower.run("f") is Miss.DELETED)


async def test_a_run_deleted_while_nobody_watched_is_gone_after_the_next_list(follower: Follower) -> None:
    follower.kube.seed(RUNS, function_run("stays"))
    follower.kube.seed(RUNS, function_run("goes"))
    async with asyncio.timeout(5):
        await follower.feed.synced()
    await eventually(lambda: follower.kube.table_watches == 1)
    follower.kube.fail_next("watch", unavailable("away", sent=False), plural="runs")
    follower.kube.cut_watches()
    follower.kube.store.delete(RUNS, "default", "goes", None, None)
    follower.kube.forget_history()
    await eventually(lambda: follower.run("goes") is Miss.DELETED, within=10)
    assert follower.run("stays").phase is Phase.PENDING


async def test_facts_are_kept_marked_stale_and_used_while_the_api_is_away(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower.kube.seed(RUNS, function_run("f", status=assigned("Ready")))
    async with asyncio.timeout(5):
        await follower.feed.synced()
    await eventually(lambda: follower.feed.stale_seconds() == 0)
    for _ in range(50):
        follower.kube.fail_next("watch", unavailable("away", sent=False), plural="runs")
    follower.kube.cut_watches()
    await eventually(lambda: follower.kube.table_watches > 1)
    follower.clock.advance(7)
    assert follower.feed.stale_seconds() >= 7
    assert follower.run("f").phase is Phase.READY


async def test_a_namespace_is_followed_from_its_first_runtime_to_its_last_run(follower: Follower) -> None:
    async with asyncio.timeout(5):
        await follower.feed.synced()
    follower.kube.seed(RUNS, function_run("f", namespace="other", uid="uid-other"))
    follower.kube.seed(RUNTIMES, runtime_object(namespace="other", uid="uid-runtime-other"))
    await eventually(lambda: follower.projection.run(RunUID("uid-other")) is not None)
    await follower.kube.delete(RUNTIMES, "other", "python")
    await follower.kube.merge_patch(RUNS, "other", "f", {"status": assigned("Releasing")}, subresource="status")

    def released() -> bool:
        fact = follower.projection.run(RunUID("uid-other"))
        return fact is not None and fact.phase is Phase.RELEASING

    await eventually(released)
    kept = len(follower.feed._namespaces)
    follower.kube.store.delete(RUNS, "other", "f", None, None)
    await eventually(lambda: len(follower.feed._namespaces) == kept - 1)
    follower.kube.seed(RUNTIMES, runtime_object(namespace="other", uid="uid-runtime-again"))
    await eventually(lambda: len(follower.feed._namespaces) == kept)


async def test_pods_come_change_and_go_with_their_slices(follower: Follower) -> None:
    async with asyncio.timeout(5):
        await follower.feed.synced()
    one, two = runtime_pod(), runtime_pod("runtime-python-2", uid="pod-2", ip="127.0.0.3")
    follower.kube.seed(ENDPOINTSLICES, endpoint_slice("python", one))
    await eventually(lambda: len(follower.projection.ready_pods("default", "python")) == 1)
    for pods, ready, known in (((one, two), 2, 2), ((runtime_pod(ready=False), two), 1, 2), ((two,), 1, 1)):
        await follower.kube.update(ENDPOINTSLICES, "default", endpoint_slice("python", *pods))
        await eventually(lambda ready=ready: len(follower.projection.ready_pods("default", "python")) == ready)
        await eventually(lambda known=known: len(follower.projection.pods("default", "python")) == known)
    await follower.kube.delete(ENDPOINTSLICES, "default", "runtime-python-1")
    await eventually(lambda: not follower.projection.pods("default", "python"))
    assert [(before.uid, now is None) for before, now in follower.pods] == [
        ("pod-1", False),
        ("pod-2", False),
        ("pod-1", False),
        ("pod-1", True),
        ("pod-2", True),
    ]


async def test_a_pod_in_two_slices_is_gone_when_both_are(follower: Follower) -> None:
    async with asyncio.timeout(5):
        await follower.feed.synced()
    first = endpoint_slice("python", runtime_pod())
    second = EndpointSlice(
        metadata=ObjectMeta(name="second", namespace="default", uid="u2", labels=first.metadata.labels),
        endpoints=first.endpoints,
        ports=first.ports,
    )
    follower.kube.seed(ENDPOINTSLICES, first)
    follower.kube.seed(ENDPOINTSLICES, second)
    await eventually(lambda: len(follower.projection.pods("default", "python")) == 1)
    await follower.kube.delete(ENDPOINTSLICES, "default", "second")
    await follower.kube.update(ENDPOINTSLICES, "default", endpoint_slice("python", runtime_pod(ready=False)))
    await eventually(lambda: not follower.projection.ready_pods("default", "python"))
    assert len(follower.projection.pods("default", "python")) == 1


def test_a_slice_belongs_to_a_runtime_by_label_or_by_its_service() -> None:
    def labelled(**labels: str) -> EndpointSlice:
        slice_ = endpoint_slice("python", runtime_pod())
        metadata = ObjectMeta(name="s", namespace="default", labels={k.replace("_", "/"): v for k, v in labels.items()})
        return EndpointSlice(metadata=metadata, endpoints=slice_.endpoints, ports=slice_.ports)

    by_service = {"kubernetes.io_service-name": "runtime-bash"}
    assert runtime_of(labelled(**by_service)) == "bash"
    assert runtime_of(labelled(**{"kruntimes.io_runtime": "python"}, **by_service)) == "python"
    assert runtime_of(labelled(**{"kubernetes.io_service-name": "web"})) is None
    assert runtime_of(labelled(**{"kubernetes.io_service-name": "runtime-"})) is None
    assert list(pods_of(labelled(**{"kubernetes.io_service-name": "web"}))) == []
    assert list(pods_of(EndpointSlice(metadata=labelled(**by_service).metadata))) == []


def test_a_table_is_read_by_the_names_of_its_columns() -> None:
    raw = (
        b'{"metadata":{"resourceVersion":"7"},"columnDefinitions":[{"name":"UID"},{"name":"Pod UID"},{"name":"Name"},'
        b'{"name":"Attempt"},{"name":"Pod"},{"name":"Phase"},{"name":"Runtime"}],"rows":['
        b'{"cells":["u1","p1","a",3,"pod","Ready","python"]},{"cells":["u2",null,"b",null,null,null,"python"]},'
        b'{"cells":["u3",null,"c",1,null,"Dreaming","python"]},{"cells":["",null,"d",1,null,"Ready","python"]},'
        b'{"cells":["u4"]}]}'
    )
    table = decode_table(raw)
    columns = columns_of(table)
    assert columns is not None
    seen = list(facts(table, columns, "ns"))
    assert [(f.uid, f.phase, f.attempt, f.pod_uid, f.namespace) for f in seen] == [
        ("u1", Phase.READY, 3, "p1", "ns"),
        ("u2", Phase.PENDING, 0, None, "ns"),
    ]


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"rows": 3}', b"<html>"])
def test_what_is_no_table_is_an_error_of_its_own(raw: bytes) -> None:
    with pytest.raises(BadTable):
        decode_table(raw)
    with pytest.raises(BadTable):
        decode_line(raw)


def test_a_table_without_a_needed_column_says_which() -> None:
    with pytest.raises(BadTable, match="Pod UID"):
        columns_of(decode_table(b'{"columnDefinitions":[{"name":"Name"},{"name":"UID"}]}'))


def test_the_feed_gives_up_a_silent_watch_after_the_server_should_have_ended_it() -> None:
    assert runfeed.WATCH_SILENCE_S > runfeed.WATCH_S
