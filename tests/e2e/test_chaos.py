"""Seeded disorder over the whole system: whatever is struck, every Run ends as the table says and nothing is left.

A short one is in the default suite. `pytest -m soak tests/e2e` takes long ones, in which Pods go, too; a failure prints
its seed, and KRUNTIMES_CHAOS_SEED=N takes that one.
"""

import asyncio
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from tests.e2e.chaos import SETTLED_S, Chaos
from tests.e2e.embedded import Embedded, marked
from tests.e2e.stack import COUNTER, function, krt, names, settled, task, until

NAME = names()
pytestmark = pytest.mark.embedded("every process is struck by its id, frozen ones and the supervisor too")
SEED = os.environ.get("KRUNTIMES_CHAOS_SEED")
SOAK_SEEDS = (int(SEED),) if SEED else (1, 2, 3, 4, 5)
WRITES_IN_A_LIFE = 8  # to a terminal phase after Ready, and one for an owner that was silent
WRITES_A_MOVE = 6  # with two changes of the reason why it waits


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that user code, which is kept from most others, may write to."""
    with tempfile.TemporaryDirectory(prefix="krt-test-", dir="/var/tmp") as folder:
        yield Path(folder)


async def live_through(stack: Embedded, shared: Path, seed: int, steps: int, *, pods: bool) -> None:
    """Take these steps, let the dust settle, and look at everything that must hold then."""
    async with stack.client() as client, stack.https() as https:
        chaos = Chaos(stack, client, https, seed, shared / "ledger")
        said = f"seed {seed}, struck: {chaos.strikes}"
        await chaos.run(steps, pods=pods)
        assert await chaos.settle() == [], said
        assert chaos.wrong == [], said
        assert chaos.ran_twice() == [], said
        assert chaos.answers["200"] > 0, chaos.answers
        for run in (await client.list(RUNS, "default")).items:
            taken = [one for one in stack.writes(run.metadata.name) if one.code < 400]
            bound = WRITES_IN_A_LIFE + WRITES_A_MOVE * run.status.attempt
            assert len(taken) <= bound, (said, run.metadata.name, run.status.attempt, taken)
        await chaos.clear()
        assert await chaos.settle() == [], said

        async def used() -> Counter[str]:
            found = (await client.list(RUNTIMES, "default")).items
            return Counter({r.metadata.name: int(r.status.capacity.used.get("runs", 0)) for r in found})

        await settled(used, lambda slots: not any(slots.values()))

        async def going() -> list[str]:
            found = (await client.list(PODS, "default")).items
            return [pod.metadata.name for pod in found if pod.metadata.deletion_timestamp]

        await settled(going, lambda found: not found, 60)
    until("nothing of a Run is on disk", lambda: not stack.left_on_disk())
    replays(stack)
    assert stack.stop() == 0
    until("no process is left", lambda: not marked(stack.directory))


def replays(stack: Embedded) -> None:
    """Every journal folds to the same commands again, those of processes that were killed too."""
    for journal in sorted((stack.directory / "journal").iterdir()):
        done = krt("replay", str(journal))
        assert done.code == 0, (journal.name, done.err)


@pytest.mark.slow
async def test_a_short_disorder_ends_as_the_table_says(one_machine: Embedded, shared: Path) -> None:
    one_machine.start()
    await live_through(one_machine, shared, seed=int(SEED or 7), steps=100, pods=False)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SOAK_SEEDS)
async def test_a_long_disorder_ends_as_the_table_says(one_machine: Embedded, shared: Path, seed: int) -> None:
    one_machine.start()
    await live_through(one_machine, shared, seed, steps=900, pods=True)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_two_hundred_runs_arrive_while_the_control_plane_is_killed_again_and_again(one_machine: Embedded) -> None:
    one_machine.start()
    async with one_machine.client() as client:
        ended = asyncio.Event()

        async def killer() -> None:
            while not ended.is_set():
                pid = one_machine.processes().get("controlplane")
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(1.5)

        killing = asyncio.create_task(killer())
        made = []
        for number in range(200):
            name = next(NAME)
            await client.create(RUNS, "default", function(name, COUNTER) if number % 4 == 0 else task(name, "print(1)"))
            made.append(name)
        await asyncio.sleep(8)
        ended.set()
        await killing

        async def left() -> list[Any]:
            found = (await client.list(RUNS, "default")).items
            return [(r.metadata.name, r.status) for r in found if r.status.phase not in ("Ready", "Succeeded")]

        await settled(left, lambda found: not found, SETTLED_S)
        assert all(run.status.attempt == 1 for run in (await client.list(RUNS, "default")).items)
        for name in made:
            await client.delete(RUNS, "default", name)
        await settled(lambda: client.list(RUNS, "default"), lambda found: not found.items)
    replays(one_machine)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_a_pause_of_the_whole_machine_moves_no_run(one_machine: Embedded) -> None:
    one_machine.start()
    async with one_machine.client() as client, one_machine.https() as https:
        name, job = next(NAME), next(NAME)
        await client.create(RUNS, "default", function(name, COUNTER))
        await client.create(RUNS, "default", task(job, "import time; time.sleep(80)"))
        ready = await settled(lambda: client.get(RUNS, "default", name), lambda r: r.status.phase == "Ready")
        await settled(lambda: client.get(RUNS, "default", job), lambda r: r.status.phase == "Running")
        everything = [
            pid
            for pid in marked(one_machine.directory)
            if one_machine.process is None or pid != one_machine.process.pid
        ]
        for pid in everything:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(70)
        for pid in everything:
            os.kill(pid, signal.SIGCONT)

        async def answers() -> Any:
            async with https.post(ready.status.endpoint.url, data=b"{}") as answer:
                return answer.status, await answer.json()

        _, said = await settled(answers, lambda found: found[0] == 200, 10)
        assert said["outputs"] == {"count": 1}
        run = await client.get(RUNS, "default", name)
        assert (run.status.phase, run.status.attempt, run.status.assigned_pod_uid) == (
            "Ready",
            1,
            ready.status.assigned_pod_uid,
        )
        done = await settled(lambda: client.get(RUNS, "default", job), lambda r: r.status.phase == "Succeeded", 60)
        assert done.status.attempt == 1
