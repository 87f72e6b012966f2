"""runtimed is stopped before and after each call it makes and started again: the Run ends as if nothing had happened,
or in a recovery that the table names; nothing is registered twice, no slot and no file is left (L4, L9).
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from controlplane.kube.resources import PODS, RUNS
from statemachine.run import Mode
from tests.kit.builders import assigned, function_run, task_run
from tests.kit.waiting import eventually
from tests.runtimed.fakes import NAMESPACE, POD, POD_UID, FakePod
from tests.runtimed.fakeserver import failing
from tests.runtimed.world import CrashPoints, World, life_with_crash

NEVER = 10_000
SCHEDULED = assigned("Scheduled", pod=POD, pod_uid=POD_UID)

Story = Callable[[FakePod, World], Awaitable[None]]


async def to_ready(pod: FakePod, world: World) -> None:
    await serves(pod)


async def to_gone(pod: FakePod, world: World) -> None:
    await pod.until("f", "Ready")
    await pod.delete("f")
    await pod.until("f", "gone")


async def deleted_while_registering(pod: FakePod, world: World) -> None:
    await eventually(lambda: pod.phase("f") in ("Registering", "Ready"))
    await pod.delete("f")
    await pod.until("f", "gone")


async def to_cancelled(pod: FakePod, world: World) -> None:
    await pod.until("f", "Ready")
    await pod.cancel("f")
    await ended(pod, "f", "Cancelled")


async def drained(pod: FakePod, world: World) -> None:
    await pod.until("f", "Ready")
    world.eligible = False
    await pod.kube.delete(PODS, NAMESPACE, POD)
    await pod.until("f", "Pending")


async def server_restarts(pod: FakePod, world: World) -> None:
    await pod.until("f", "Ready")
    pod.server.restart()
    await eventually(lambda: (run := pod.run("f")) is not None and run.status.attempt >= 2)
    await serves(pod)


async def registration_fails(pod: FakePod, world: World) -> None:
    pod.server.register_error = failing("ImportFailed", "no module")
    await ended(pod, "f", "Failed")
    run = pod.run("f")
    assert run is not None
    assert (run.status.reason, run.status.failures) == ("ImportFailed", 1)


async def task_succeeds(pod: FakePod, world: World) -> None:
    await eventually(lambda: pod.phase("f") == "Running" and "uid-f" in pod.server.held)
    pod.server.exit_task("uid-f", 0, outputs={"answer": "42"})
    await ended(pod, "f", "Succeeded")
    assert len(pod.server.executed) == 1


async def task_cancelled(pod: FakePod, world: World) -> None:
    await eventually(lambda: pod.phase("f") == "Running")
    await pod.cancel("f")
    await ended(pod, "f", "Cancelled")


async def serves(pod: FakePod) -> None:
    def serving() -> bool:
        if pod.phase("f") != "Ready" or pod.daemon is None:
            return False
        local = pod.daemon.here("uid-f").local
        return local is not None and local.serves and pod.daemon.lease.fresh

    await eventually(serving)


async def ended(pod: FakePod, name: str, phase: str) -> None:
    await pod.until(name, phase)
    await eventually(lambda: (run := pod.run(name)) is not None and not run.metadata.finalizers)


async def play(work: Path, story: Story, at: int, mode: Mode) -> tuple[CrashPoints, World]:
    pod = FakePod(work)
    make = function_run if mode is Mode.FUNCTION else task_run
    pod.kube.seed(RUNS, make("f", status=SCHEDULED))
    async with life_with_crash(pod, at) as (points, world):
        await story(pod, world)
        if pod.phase("f") != "Ready":
            await eventually(lambda: not pod.server.held)
            runs = work / "runs"
            await eventually(lambda: not runs.is_dir() or not list(runs.iterdir()))
        assert len(pod.server.held) <= 1
    assert not world.broken
    return points, world


FUNCTIONS: list[Story] = [
    to_ready,
    to_gone,
    deleted_while_registering,
    to_cancelled,
    drained,
    server_restarts,
    registration_fails,
]
TASKS: list[Story] = [task_succeeds, task_cancelled]


@pytest.mark.parametrize(
    ("story", "mode"),
    [(story, Mode.FUNCTION) for story in FUNCTIONS] + [(story, Mode.TASK) for story in TASKS],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
async def test_a_crash_at_any_step_ends_as_the_table_names(story: Story, mode: Mode, tmp_path: Path) -> None:
    work = tmp_path / "calm"
    work.mkdir()
    points, _ = await play(work, story, NEVER, mode)
    for at in range(len(points.seen)):
        work = tmp_path / str(at)
        work.mkdir()
        try:
            async with asyncio.timeout(20):
                await play(work, story, at, mode)
        except BaseException as error:
            error.add_note(f"crashed at step {at}: {points.seen[at]}")
            raise
