"""What stands still or is full for a while: the API server, the disk, an owner. Long; `pytest -m soak tests/e2e`."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from controlplane.kube.errors import Unavailable
from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from tests.e2e.embedded import Embedded, alive, marked
from tests.e2e.stack import COUNTER, function, names, settled, task, until
from tests.e2e.test_chaos import replays
from tests.e2e.test_edges import gone, load, make, reach, slots

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.embedded(
        "the embedded API server's outages and its disk; tests/cluster/test_faults.py has the cluster's"
    ),
]
NAME = names()
STANDSTILL_S = 20  # cached callers are served up to 30 s, and were cached a little before
DISK_BYTES = 48 << 20


async def test_callers_that_are_known_lose_no_call_while_the_api_server_stands_still_or_dies(
    one_machine: Embedded,
) -> None:
    one_machine.start()
    async with one_machine.client() as client, one_machine.https() as https:
        name = await make(client, function(next(NAME), COUNTER))
        url = (await reach(client, name, "Ready")).status.endpoint.url
        async with load(https, [url]) as answers:
            await settled(lambda: asyncio.sleep(0, answers["200"]), lambda count: count > 10)
            pid = one_machine.processes()["apiserver"]
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(STANDSTILL_S)
            os.kill(pid, signal.SIGCONT)
            for _ in range(4):
                await asyncio.sleep(4)
                os.kill(one_machine.processes()["apiserver"], signal.SIGKILL)
            await asyncio.sleep(4)
        assert set(answers) == {"200"}, answers
        assert (await client.get(RUNS, "default", name)).status.attempt == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of DISK_BYTES."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounting.returncode:
        pytest.skip("only a user who may mount can have a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_refuses_writes_clearly_serves_all_else_and_heals_by_itself(small_disk: Path) -> None:
    stack = Embedded(small_disk / "data")
    stack.start()
    try:
        async with stack.client() as client, stack.https() as https:
            served = await make(client, function(next(NAME), COUNTER))
            url = (await reach(client, served, "Ready")).status.endpoint.url
            idle = await make(client, function(next(NAME), COUNTER, mode={"idleTimeoutSeconds": 2}))
            job = await make(client, task(next(NAME), "import time; time.sleep(3)"))
            await reach(client, idle, "Ready")
            await reach(client, job, "Running")
            full = small_disk / "full"
            with full.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while file.write(b"x" * 65536):
                    pass
            with pytest.raises(Unavailable) as refused:
                await client.create(RUNS, "default", function(next(NAME), COUNTER))
            assert (refused.value.status.code, refused.value.retryable) == (507, True)
            async with load(https, [url]) as answers:
                await asyncio.sleep(3)
            assert set(answers) == {"200"}, answers
            for victim in ("apiserver", "controlplane", "gateway", "node"):
                pid = stack.processes()[victim]
                os.kill(pid, signal.SIGKILL)
                until(f"{victim} died", lambda pid=pid: not alive(pid))

            async def still() -> bool:
                try:
                    async with https.post(url, data=b"{}") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await settled(still, bool, 15)
            full.unlink()
            await reach(client, job, "Succeeded", seconds=30)
            await reach(client, idle, "Timeout", seconds=30)
            assert (await reach(client, served, "Ready")).status.attempt == 1
            for name in (served, idle, job):
                await client.delete(RUNS, "default", name)
                await gone(client, name)
        until("every slot is free", lambda: slots(stack) == "0")
        replays(stack)
    finally:
        stack.stop()
    until("no process is left", lambda: not marked(small_disk))


async def test_an_owner_that_is_gone_for_the_api_and_not_for_itself_serves_nothing_after_the_fence(
    one_machine: Embedded,
) -> None:
    """Its node and itself stand still, its Pod is removed by force, its Run moves after the fence; then it wakes up."""
    one_machine.start()
    async with one_machine.client() as client, one_machine.https() as https:
        await client.merge_patch(RUNTIMES, "default", "python", {"spec": {"replicas": 2}})
        await settled(lambda: client.get(RUNTIMES, "default", "python"), lambda r: r.status.ready_replicas == 2)
        name = await make(client, function(next(NAME), COUNTER))
        before = await reach(client, name, "Ready")
        owner = one_machine.processes()[f"{before.status.assigned_pod_uid}/runtimed"]
        stopped = [one_machine.processes()["node"], owner]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        await client.delete(PODS, "default", before.status.assigned_pod, grace_seconds=0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        after = await settled(
            lambda: client.get(RUNS, "default", name),
            lambda r: r.status.attempt == 2 and r.status.phase == "Ready",
            120,
        )
        assert loop.time() - began >= 60
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        for count in (1, 2, 3):
            async with https.post(after.status.endpoint.url, data=b"{}") as answer:
                assert (await answer.json())["outputs"] == {"count": count}
        until("the owner that lost is ended", lambda: not alive(owner))
        until(
            "its folder is gone", lambda: not (one_machine.directory / "pods" / before.status.assigned_pod_uid).exists()
        )
        await client.delete(RUNS, "default", name)
        await gone(client, name)
    assert one_machine.left_on_disk() == []


async def test_a_kill_of_everything_amid_everything_is_taken_up_by_the_next_start(one_machine: Embedded) -> None:
    one_machine.start()
    patient = {"maxAttempts": 9}
    made = []
    async with one_machine.client() as client:
        for number in range(40):
            slow = task(next(NAME), "import time; time.sleep(1)", retryPolicy=patient)
            made.append(await make(client, function(next(NAME), COUNTER, retryPolicy=patient) if number % 2 else slow))
        for name in made[::5]:
            await client.delete(RUNS, "default", name)
    one_machine.stop(signal.SIGKILL)
    until("everything ended", lambda: not marked(one_machine.directory))
    one_machine.start()
    kept = {name for number, name in enumerate(made) if number % 5}
    async with one_machine.client() as client:

        async def astray() -> list[str]:
            found = {run.metadata.name: run.status.phase for run in (await client.list(RUNS, "default")).items}
            unended = [name for name, phase in found.items() if phase not in ("Ready", "Succeeded")]
            return [*unended, *(kept ^ set(found))]

        await settled(astray, lambda found: not found, 120)
        for name in kept:
            await client.delete(RUNS, "default", name)
        await settled(lambda: client.list(RUNS, "default"), lambda found: not found.items)
    until("every slot is free", lambda: slots(one_machine) == "0")
    until("nothing of a Run is on disk", lambda: not one_machine.left_on_disk())
    replays(one_machine)
