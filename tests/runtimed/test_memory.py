"""What a daemon keeps of Runs that are gone: a bounded word of each, and nothing for the garbage collector."""

import gc

from controlplane.kube.resources import RUNS
from controlplane.kube.types import RunObject
from dataplane.runtimed.alarms import Alarm
from dataplane.runtimed.crew import LEFT_REMEMBERED_MAX, Crew
from dataplane.runtimed.jobs import Jobs
from dataplane.runtimed.worker import Worker
from statemachine.ownership import Miss
from statemachine.run import RunUID
from tests.kit.builders import assigned, function_run
from tests.kit.waiting import eventually
from tests.runtimed.fakes import NAMESPACE, POD, POD_UID, FakePod

RUNS_LIVED = 8


def alive(*kinds: type) -> int:
    """Objects, those in cycles that nobody reaches too."""
    return sum(isinstance(each, kinds) for each in gc.get_objects())


async def live(pod: FakePod, name: str) -> None:
    pod.kube.seed(RUNS, function_run(name, status=assigned("Scheduled", pod=POD, pod_uid=POD_UID)))
    await pod.until(name, "Ready")
    await pod.delete(name)
    await pod.until(name, "gone")
    assert pod.daemon is not None
    await eventually(lambda: pod.daemon is not None and not pod.daemon.workers)
    pod.alarms.advance(0)  # Taken back alarms go, as a loop's do.


async def test_a_run_that_is_gone_leaves_nothing_for_the_collector(pod: FakePod) -> None:
    daemon = await pod.boot()
    await live(pod, "first")
    gc.collect()
    gc.disable()
    try:
        before = alive(Worker, Jobs, Alarm, RunObject)
        for number in range(RUNS_LIVED):
            await live(pod, f"f{number}")
        await eventually(lambda: alive(Worker, Jobs, Alarm, RunObject) <= before)
    finally:
        gc.enable()
    assert len(daemon.projection) == 0
    assert daemon.projection.look_up(NAMESPACE, "python", RunUID("uid-f0")) is Miss.DELETED


async def test_of_the_runs_that_left_a_bounded_number_is_remembered(pod: FakePod) -> None:
    daemon = await pod.boot()
    crew: Crew = daemon._crew
    for number in range(LEFT_REMEMBERED_MAX):
        crew._left[RunUID(str(number))] = "1"
    await live(pod, "f")
    assert len(crew._left) == LEFT_REMEMBERED_MAX
    assert RunUID("uid-f") in crew._left
