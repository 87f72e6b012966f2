"""Seeded chaos over two Pods: lost, late and refused writes, dying daemons and servers, drains, cancels and deletions.

Safety is checked at every revision of every Run (`World`), liveness once the faults stop. A failure names its seed.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from controlplane.kube.errors import KubeError, NotFound
from controlplane.kube.resources import RUNS, Kind
from tests.kit.builders import function_run, task_run
from tests.kit.fakekube import FakeKube, lost
from tests.kit.waiting import eventually
from tests.runtimed.fakes import FakePod
from tests.runtimed.world import World

STEPS = 40
RUN_NAMES = ("f1", "f2", "f3", "t1")


class FaultyKube:
    """A `FakeKube` whose patches are now and then refused, lost after they took effect, or delivered late."""

    def __init__(self, kube: FakeKube, rng: random.Random) -> None:
        self._kube = kube
        self._rng = rng
        self.calm = False
        self.late: set[asyncio.Task[Any]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kube, name)

    async def json_patch(
        self, kind: Kind[Any], namespace: str, name: str, ops: Sequence[Mapping[str, Any]], *, subresource: str = ""
    ) -> Any:
        fate = 1.0 if self.calm else self._rng.random()
        if fate < 0.08:
            raise lost("not sent")
        if fate < 0.16:
            task = asyncio.ensure_future(self._deliver(kind, namespace, name, ops, subresource))
            self.late.add(task)
            raise lost("no answer; it is still on its way")
        answer = await self._kube.json_patch(kind, namespace, name, ops, subresource=subresource)
        if fate < 0.24:
            raise lost("it took effect and the answer was lost")
        return answer

    async def _deliver(self, kind: Any, namespace: str, name: str, ops: Any, subresource: str) -> None:
        await asyncio.sleep(self._rng.random() * 0.02)
        try:
            await self._kube.json_patch(kind, namespace, name, ops, subresource=subresource)
        except KubeError:
            pass


async def chaos(pods: list[FakePod], world: World, kube: FaultyKube, rng: random.Random) -> None:
    for _ in range(STEPS):
        pod, name = rng.choice(pods), rng.choice(RUN_NAMES)
        match rng.randrange(9):
            case 0:
                await pod.crash()
                booting = asyncio.ensure_future(pod.boot(kube))
                await asyncio.sleep(rng.random() * 0.01)
                if rng.random() < 0.3:
                    booting.cancel()
                    await asyncio.gather(booting, return_exceptions=True)
                    await pod.crash()
                    booting = asyncio.ensure_future(pod.boot(kube))
                await booting
            case 1:
                pod.server.restart()
            case 2:
                pod.server.drop()
            case 3 if rng.random() < 0.3:
                with suppress(NotFound):
                    await pod.cancel(name)
            case 4 if rng.random() < 0.3:
                with suppress(NotFound):
                    await pod.delete(name)
            case 5 if "uid-t1" in pod.server.held and pod.server.held["uid-t1"].result is None:
                pod.server.exit_task("uid-t1", rng.choice((0, 0, 3)))
            case 6 if "uid-f1" in pod.server.held:
                pod.server.lose_function("uid-f1", "workers die")
            case 7:
                pod.kube.cut_watches()
            case _:
                pass
        await asyncio.sleep(rng.random() * 0.01)


def settled(pods: list[FakePod], name: str) -> bool:
    """Ready and served by exactly the Pod that the API names, running, or over with nothing of ours left."""
    run = pods[0].run(name)
    if run is None:
        return not any(f"uid-{name}" in pod.server.held for pod in pods)
    match run.status.phase:
        case "Ready":
            serving = [pod.config.pod_uid for pod in pods if pod.lets_in(f"uid-{name}")]
            return serving == [run.status.assigned_pod_uid]
        case "Running":
            return any(f"uid-{name}" in pod.server.held for pod in pods)
        case "Pending":
            return sum(len(pod.server.held) for pod in pods) >= 3  # two Pods of two slots, and a release in between
        case "Succeeded" | "Failed" | "Timeout" | "Cancelled":
            held = any(f"uid-{name}" in pod.server.held for pod in pods)
            return not held and not run.metadata.finalizers
        case _:
            return False


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_happens_every_run_ends_well(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    first = FakePod(tmp_path / "1", runs=2)
    second = FakePod(tmp_path / "2", kube=first.kube, uid="pod-2")
    pods = [first, second]
    kube = FaultyKube(first.kube, rng)
    for name in RUN_NAMES[:3]:
        first.kube.seed(RUNS, function_run(name, spec={"retryPolicy": {"maxAttempts": 100}}))
    first.kube.seed(RUNS, task_run("t1", spec={"retryPolicy": {"maxAttempts": 100}}))
    world = World(*pods)
    world.pick = lambda: rng.randrange(2)
    playing = asyncio.ensure_future(world.run())
    try:
        for pod in pods:
            pod.config.work_dir.mkdir()
            await pod.boot(kube)
        await chaos(pods, world, kube, rng)
        kube.calm = True
        await asyncio.gather(*kube.late)
        for name in RUN_NAMES:
            await eventually(lambda name=name: settled(pods, name), within=20)
        for pod in pods:
            assert len(pod.server.held) <= 2
            runs = pod.config.work_dir / "runs"
            await eventually(lambda runs=runs, pod=pod: _names(runs) <= set(pod.server.held))
        assert not world.broken
    except BaseException as error:
        error.add_note(f"seed {seed}: {[(name, first.phase(name)) for name in RUN_NAMES]}")
        raise
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        for pod in pods:
            await pod.crash()


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
