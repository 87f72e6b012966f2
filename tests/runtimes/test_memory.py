"""What a Runtime Server keeps of epochs that are closed and of calls that are over: tombstones, and nothing else.

The server runs in this process, so that its objects can be counted; what its user code does is not looked at.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from runtimes.contract import messages as m
from runtimes.contract.calls import Request
from runtimes.contract.client import RuntimeClient
from runtimes.contract.endpoint import Server, connect_unix
from runtimes.contract.mux import CallError
from runtimes.python.adapter import Python
from runtimes.server.artifacts import ArtifactsFolder
from runtimes.server.child import Child
from runtimes.server.confinement import WORKER_MEMORY_MIN_BYTES, WORKER_PROCESSES_MIN, Confinement
from runtimes.server.function import Function
from runtimes.server.language import Call, Worker
from runtimes.server.logs import Capture, RunLog
from runtimes.server.pool import Pool, Wear
from runtimes.server.service import Service
from runtimes.server.spawner import WARM_CHILDREN, Spawner
from runtimes.server.task import Task
from tests.kit.waiting import eventually
from tests.runtimes.conftest import BASE_INTERPRETER

RUNS = 12
CALLS = 50
KINDS = (Function, Task, Pool, Worker, Capture, RunLog, ArtifactsFolder, Call, Request)
HANDLER = "import os\ndef invoke(request):\n    return os._exit(3) if request else {}\n"


class Bed:
    """A server in this process and its one client."""

    def __init__(self, service: Service, client: RuntimeClient, work: Path) -> None:
        self.service = service
        self.client = client
        self._work = work

    def source(self, epoch: m.Epoch, content: str) -> str:
        source = self._work / "runs" / epoch.run_uid / str(epoch.attempt) / "src"
        source.mkdir(parents=True)
        (source / "main.py").write_text(content)
        return str(source)

    async def register(self, run: str, content: str = HANDLER) -> tuple[m.Epoch, str]:
        epoch = m.Epoch(run_uid=run, attempt=1, pod_uid="pod")
        request = m.RegisterRequest(
            epoch=epoch,
            directory=self.source(epoch, content),
            handler="main.invoke",
            env={},
            idle_timeout_ms=None,
            concurrency=1,
            digest=m.register_digest(epoch=epoch, handler="main.invoke", env={}, idle_timeout_ms=None, concurrency=1),
        )
        return epoch, (await self.client.register_function(request, timeout=20)).registration_id

    async def invoke(self, registration: str, body: bytes = b"0") -> None:
        request = m.InvokeRequest(registration_id=registration, invocation_id="i", traceparent="")
        await self.client.invoke_function(request, body, timeout=20)

    async def unregister(self, epoch: m.Epoch) -> None:
        assert (await self.client.unregister_function(m.UnregisterRequest(epoch=epoch, wait_ms=20_000))).gone


@pytest.fixture
async def bed(tmp_path: Path) -> AsyncIterator[Bed]:
    work, path = tmp_path / "work", tmp_path / "s"
    work.mkdir()
    confinement = Confinement(
        hidden=(), interpreter=True, memory_bytes=WORKER_MEMORY_MIN_BYTES, processes=WORKER_PROCESSES_MIN
    )
    spawner = Spawner(BASE_INTERPRETER, confinement, label=str(work))
    await spawner.start()
    service = Service(language=Python(BASE_INTERPRETER), spawner=spawner, work=work, wear=Wear())
    server = Server(service.handle)
    await server.listen_unix(path)
    client = RuntimeClient(await connect_unix(path))
    yield Bed(service, client, work)
    await service.drain(5)
    client.close()
    await server.drain(timeout=1)
    await spawner.stop()


def kept() -> Counter[str]:
    """Our objects that are alive, those in cycles that nobody reaches too."""
    found = Counter(kind.__name__ for each in gc.get_objects() for kind in KINDS if isinstance(each, kind))
    found["child"] = max(0, sum(isinstance(each, Child) for each in gc.get_objects()) - WARM_CHILDREN)
    return +found


async def function_that_serves(bed: Bed, run: str) -> None:
    epoch, registration = await bed.register(run)
    watching = asyncio.create_task(bed.client.function_status(registration, wait_ms=20_000))
    await bed.invoke(registration)
    await bed.unregister(epoch)
    try:
        await watching
    except CallError:
        pass  # It was asked after the end.


async def function_that_does_not_load(bed: Bed, run: str) -> None:
    with pytest.raises(CallError):
        await bed.register(run, "import nothing_of_that_name\n")


async def function_whose_worker_dies(bed: Bed, run: str) -> None:
    epoch, registration = await bed.register(run)
    with pytest.raises(CallError):
        await bed.invoke(registration, b"1")
    await bed.unregister(epoch)


async def task(bed: Bed, run: str) -> None:
    epoch = m.Epoch(run_uid=run, attempt=1, pod_uid="pod")
    request = m.ExecuteTaskRequest(
        epoch=epoch,
        directory=bed.source(epoch, "print('done')\n"),
        entrypoint="main.py",
        args=(),
        env={},
        digest=m.task_digest(epoch=epoch, entrypoint="main.py", args=(), env={}),
    )
    await bed.client.execute_task(request)
    assert (await bed.client.task_status(epoch, wait_ms=20_000)).result is not None
    await bed.client.forget(epoch)


@pytest.mark.parametrize("life", [function_that_serves, function_that_does_not_load, function_whose_worker_dies, task])
async def test_a_closed_epoch_leaves_its_tombstone_and_nothing_for_the_collector(
    bed: Bed, life: Callable[[Bed, str], Awaitable[None]]
) -> None:
    gc.collect()
    gc.disable()
    try:
        for number in range(RUNS):
            await life(bed, f"run-{number}")
        await eventually(lambda: not kept())
    finally:
        gc.enable()


async def test_calls_leave_nothing(bed: Bed) -> None:
    epoch, registration = await bed.register("run")
    await bed.invoke(registration)
    await eventually(lambda: kept()["child"] == 1)  # Those forked ahead are there again.
    gc.collect()
    gc.disable()
    try:
        before = kept()
        objects = len(gc.get_objects())
        for _ in range(CALLS):
            await bed.invoke(registration)
        assert kept() == before
        assert len(gc.get_objects()) - objects < CALLS, "less than one object a call"
    finally:
        gc.enable()
    await bed.unregister(epoch)
