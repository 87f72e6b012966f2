"""Events are recorded beside the work: counted when they repeat, bounded, never in the way."""

import asyncio
from collections import Counter

from controlplane.kube.errors import unavailable
from controlplane.kube.events import QUEUE_MAX, REMEMBERED_MAX, EventRecorder
from controlplane.kube.resources import EVENTS
from tests.kit.builders import function_run
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually


async def test_an_event_names_its_object_and_reason() -> None:
    kube, clock = FakeKube(), ManualClock()
    recorder = EventRecorder(kube, "kruntimes-scheduler", clock)
    recorder.emit(function_run(), "Normal", "Bound", "Assigned to Pod p")
    await recorder.flush()
    (event,) = (await kube.list(EVENTS, "default")).items
    assert (event.involved_object.kind, event.involved_object.uid) == ("Run", "uid-diagnose-service")
    assert (event.type, event.reason, event.message, event.count) == ("Normal", "Bound", "Assigned to Pod p", 1)
    assert event.source.component == event.reporting_component == "kruntimes-scheduler"
    assert event.first_timestamp == event.last_timestamp == "2026-01-01T00:00:00Z"


async def test_what_repeats_is_counted_on_the_same_event() -> None:
    kube, clock = FakeKube(), ManualClock()
    recorder = EventRecorder(kube, "c", clock)
    for _ in range(3):
        recorder.emit(function_run(), "Warning", "OwnerUnreachable", "silent")
        clock.advance(5)
    await recorder.flush()
    (event,) = (await kube.list(EVENTS, "default")).items
    assert (event.count, event.first_timestamp, event.last_timestamp) == (
        3,
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:10Z",
    )


async def test_after_the_window_or_when_the_api_forgot_it_is_a_new_event() -> None:
    kube, clock = FakeKube(), ManualClock()
    recorder = EventRecorder(kube, "c", clock)
    recorder.emit(function_run(), "Normal", "Bound", "m")
    await recorder.flush()
    (event,) = (await kube.list(EVENTS, "default")).items
    await kube.delete(EVENTS, "default", event.metadata.name)
    recorder.emit(function_run(), "Normal", "Bound", "m")
    await recorder.flush()
    clock.advance(11 * 60)
    recorder.emit(function_run(), "Normal", "Bound", "m")
    await recorder.flush()
    assert [found.count for found in (await kube.list(EVENTS, "default")).items] == [1, 1]


async def test_of_the_events_of_many_objects_the_oldest_are_forgotten() -> None:
    kube, runs = FakeKube(), REMEMBERED_MAX + 1
    recorder = EventRecorder(kube, "c", ManualClock())
    for number in [*range(runs), runs - 1, 0]:
        recorder.emit(function_run(f"f{number}"), "Normal", "Bound", "m")
        await recorder.flush()
    counts = Counter(event.involved_object.name for event in (await kube.list(EVENTS, "default")).items)
    assert {name for name, events in counts.items() if events > 1} == {"f0"}, "the last one was still known"
    assert len(recorder._known) == REMEMBERED_MAX


async def test_the_longest_name_and_message_fit() -> None:
    kube = FakeKube()
    recorder = EventRecorder(kube, "c", ManualClock())
    recorder.emit(function_run("n" * 253), "Normal", "Bound", "ä" * 5000)
    await recorder.flush()
    (event,) = (await kube.list(EVENTS, "default")).items
    assert len(event.metadata.name) == 253
    assert len(event.message.encode()) <= 1024


async def test_a_full_queue_drops_and_counts() -> None:
    kube = FakeKube()
    recorder = EventRecorder(kube, "c", ManualClock())
    for number in range(QUEUE_MAX + 5):
        recorder.emit(function_run(), "Normal", "Bound", str(number))
    assert recorder.dropped == 5
    assert kube.requests == []


async def test_a_refused_event_is_dropped_and_the_next_is_written() -> None:
    kube = FakeKube()
    kube.fail_next("create", unavailable("disk full", sent=True))
    recorder = EventRecorder(kube, "c", ManualClock())
    task = asyncio.create_task(recorder.run())
    recorder.emit(function_run(), "Normal", "Bound", "first")
    recorder.emit(function_run(), "Normal", "Bound", "second")
    await eventually(lambda: len(kube.requests) == 2)
    recorder.emit(function_run(), "Normal", "Bound", "third")
    await eventually(lambda: sum(plural == EVENTS.plural for plural, _, _ in kube.store.objects) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [event.message for event in (await kube.list(EVENTS, "default")).items] == ["second", "third"]
    assert recorder.dropped == 1
