"""The informer: it converges on what the API holds, whatever happens to its watch."""

import asyncio

import pytest

from controlplane.kube.errors import unavailable
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import CONFIGMAPS, RUNS
from controlplane.kube.types import ConfigMap, ObjectMeta, RunObject
from tests.kit.builders import function_run
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube, lost
from tests.kit.fakestore import refuse
from tests.kit.waiting import eventually
from tests.kube.following import Seen, following, running


def a_map(name: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace="default"))


async def test_it_lists_then_marks_then_streams() -> None:
    kube, seen = FakeKube(), Seen()
    kube.seed(CONFIGMAPS, a_map("one"))
    informer = following(kube, seen)
    assert informer.stale_since() is not None
    async with running(informer):
        await asyncio.wait_for(informer.synced.wait(), 5)
        await eventually(lambda: informer.stale_since() is None)
        await kube.create(CONFIGMAPS, "default", a_map("two"))
        await kube.merge_patch(CONFIGMAPS, "default", "one", {"data": {"a": "b"}})
        await kube.delete(CONFIGMAPS, "default", "one")
        await eventually(lambda: len(seen.lines) == 5)
    assert seen.lines == ["+one@101", "LISTED", "+two@102", "~one@103", "-one"]
    assert [obj.metadata.name for obj in informer.store.values()] == ["two"]
    assert [request.verb for request in kube.requests if request.plural == "configmaps"][:2] == ["list", "watch"]


async def test_a_watch_that_ends_goes_on_where_it_stood() -> None:
    kube, seen = FakeKube(), Seen()
    informer = following(kube, seen)
    async with running(informer):
        await eventually(lambda: informer.stale_since() is None)
        await kube.create(CONFIGMAPS, "default", a_map("one"))
        await eventually(lambda: "+one@101" in seen.lines)
        kube.cut_watches()
        await kube.create(CONFIGMAPS, "default", a_map("two"))
        await eventually(lambda: "+two@102" in seen.lines)
    assert seen.lines == ["LISTED", "+one@101", "+two@102"]
    assert sum(request.verb == "list" for request in kube.requests) == 1


async def test_after_410_it_lists_again_and_reports_what_went() -> None:
    kube, seen = FakeKube(), Seen()
    for name in ("kept", "gone", "changed"):
        kube.seed(CONFIGMAPS, a_map(name))
    informer = following(kube, seen)
    async with running(informer):
        await eventually(lambda: informer.stale_since() is None)
        seen.lines.clear()
        kube.fail_next("watch", lost())
        kube.cut_watches(lost())
        await eventually(lambda: informer.stale_since() is not None)
        await kube.delete(CONFIGMAPS, "default", "gone")
        await kube.merge_patch(CONFIGMAPS, "default", "changed", {"data": {"a": "b"}})
        await kube.create(CONFIGMAPS, "default", a_map("new"))
        kube.forget_history()
        await eventually(lambda: "LISTED" in seen.lines)
    assert seen.lines == ["-gone", "~changed@105", "+new@106", "LISTED"]
    assert informer.relists == 1


async def test_a_410_in_mid_stream_lists_again() -> None:
    kube, seen = FakeKube(), Seen()
    informer = following(kube, seen)
    async with running(informer):
        await eventually(lambda: informer.stale_since() is None)
        kube.cut_watches(refuse(410, "Expired", "too old"))
        await eventually(lambda: seen.lines.count("LISTED") == 2)
    assert informer.relists == 1


async def test_a_new_object_of_an_old_name_is_another_object() -> None:
    kube, seen = FakeKube(), Seen()
    kube.seed(CONFIGMAPS, a_map("one"))
    informer = following(kube, seen)
    async with running(informer):
        await eventually(lambda: informer.stale_since() is None)
        seen.lines.clear()
        kube.fail_next("watch", lost())
        kube.cut_watches(lost())
        await eventually(lambda: informer.stale_since() is not None)
        await kube.delete(CONFIGMAPS, "default", "one")
        await kube.create(CONFIGMAPS, "default", a_map("one"))
        kube.forget_history()
        await eventually(lambda: "LISTED" in seen.lines)
    assert seen.lines == ["-one", "+one@103", "LISTED"]
    assert len(informer.store) == 1


async def test_staleness_starts_when_the_api_was_last_heard() -> None:
    clock = ManualClock()
    kube, seen = FakeKube(clock), Seen()
    informer = following(kube, seen, clock)
    async with running(informer):
        await eventually(lambda: informer.stale_since() is None)
        clock.advance(30)
        await kube.create(CONFIGMAPS, "default", a_map("one"))
        await eventually(lambda: "+one@101" in seen.lines)
        heard = clock.monotonic()
        clock.advance(30)
        for _ in range(3):
            kube.fail_next("watch", unavailable("down", sent=False))
        kube.cut_watches(lost())
        await eventually(lambda: informer.stale_since() is not None)
        assert informer.stale_since() == heard
        await eventually(lambda: informer.stale_since() is None)
    assert informer.interruptions >= 1


async def test_it_waits_for_an_api_that_is_not_there_yet(caplog: pytest.LogCaptureFixture) -> None:
    kube, seen = FakeKube(), Seen()
    for _ in range(3):
        kube.fail_next("list", unavailable("connection refused", sent=False))
    informer = following(kube, seen)
    async with running(informer):
        await asyncio.wait_for(informer.synced.wait(), 5)
    assert "lost contact to configmaps" in caplog.text


async def test_repeated_410_does_not_spin() -> None:
    kube, seen = FakeKube(), Seen()
    for _ in range(50):
        kube.fail_next("watch", refuse(410, "Expired", "too old"))
    informer = following(kube, seen)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with running(informer):
        await eventually(lambda: informer.relists == 5)
    assert loop.time() - began >= 0.3  # none, 50, 100 and 200 ms, at the least


async def test_other_tasks_get_their_turn_while_a_long_list_is_told() -> None:
    kube, seen, turns = FakeKube(), Seen(), 0
    for number in range(2000):
        kube.seed(CONFIGMAPS, a_map(f"map-{number}"))
    informer = following(kube, seen)

    async def other() -> None:
        nonlocal turns
        while not informer.synced.is_set():
            turns += bool(seen.lines)
            await asyncio.sleep(0)

    async with running(informer):
        await asyncio.wait_for(other(), 10)
    assert turns >= 5
    assert seen.lines[-1] == "LISTED"
    assert len(informer.store) == 2000


async def test_what_a_consumer_raises_ends_it() -> None:
    kube = FakeKube()
    kube.seed(CONFIGMAPS, a_map("one"))

    def broken(_: Change[ConfigMap]) -> None:
        raise ZeroDivisionError

    informer = Informer(kube, CONFIGMAPS, namespace="default", on_change=broken, clock=ManualClock())
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(informer.run(), 5)


async def test_a_selector_that_an_object_leaves_takes_it_out() -> None:
    kube = FakeKube()
    kube.seed(RUNS, function_run("a"))
    names: list[str] = []

    def told(change: Change[RunObject]) -> None:
        names.append(("-" if change.current is None else "+") + str(change.current and change.current.status.phase))

    informer = Informer(
        kube, RUNS, namespace="default", fields="status.phase=Pending", on_change=told, clock=ManualClock()
    )
    task: asyncio.Task[None] = asyncio.create_task(informer.run())
    await eventually(lambda: informer.stale_since() is None)
    ops = [{"op": "add", "path": "/status/phase", "value": "Cancelled"}]
    await kube.json_patch(RUNS, "default", "a", ops, subresource="status")
    await eventually(lambda: len(names) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert names == ["+Pending", "-None"]
    assert not informer.store
