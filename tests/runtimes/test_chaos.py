"""Random operations from a printed seed, with zygotes killed in between: every call is answered, nothing is left."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from runtimes.contract import messages as m
from runtimes.contract.mux import CallError
from tests.conformance.kit import Bench, descendants, until

EXPECTED = {
    "TooManyInvocations",
    "WorkerCrashed",
    "WorkerStarting",
    "InvocationTimeout",
    "OutcomeUnknown",
    "HandlerFailed",
    "FailedPrecondition",
    "AlreadyExists",
    "StillActive",
    "RegistrationTimedOut",
    "RuntimeServerError",
    "ImportFailed",
    "HandlerResultInvalid",
}
PROGRAMS = {
    "python": "import os, time\ndef invoke(request):\n    if request == 'crash':\n"
    "        os._exit(1)\n    if request == 'fail':\n"
    "        raise ValueError\n    time.sleep(request if isinstance(request, float) else 0)\n    return {}\n",
    "bash": "invoke() {\n  r=$(cat)\n"
    '  case $r in *crash*) kill -9 $$ ;; *fail*) return 3 ;; [0-9]*) sleep "$r" ;; esac\n'
    "  echo '{}'\n}\n",
}


class Chaos:
    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.registrations: dict[str, tuple[m.Epoch, str]] = {}
        self.reasons: dict[str, int] = {}

    async def once(self) -> None:
        run = f"chaos-{self.random.randrange(12)}"
        do = self.random.choices(
            [self.register, self.invoke, self.unregister, self.task, self.cancel, self.status], [3, 12, 1, 1, 1, 1]
        )[0]
        try:
            await do(run)
        except CallError as error:
            reason = error.error.reason
            assert reason in EXPECTED, error
            assert error.error.message
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    async def register(self, run: str) -> None:
        epoch = self.bench.epoch(run, self.random.randrange(1, 50))
        files = {self.bench.dialect.file(): PROGRAMS[self.bench.dialect.name]}
        concurrency = self.random.randrange(1, 4)
        self.registrations[run] = await self.bench.register(
            "", epoch=epoch, files=files, concurrency=concurrency, timeout=self.random.choice([0.005, 5, 5, 5])
        )

    async def invoke(self, run: str) -> None:
        if run in self.registrations:
            request = self.random.choice(["echo", "echo", "fail", "crash", 0.01, 0.2])
            timeout = self.random.choice([0.001, 0.05, 5, 5])
            assert await self.bench.invoke(self.registrations[run][1], request, timeout=timeout) == {"outputs": {}}

    async def unregister(self, run: str) -> None:
        if run in self.registrations:
            idle = self.random.choice([None, 10])
            await self.bench.unregister(self.registrations[run][0], if_idle_for_ms=idle, drain_ms=100, wait_ms=0)

    async def task(self, run: str) -> None:
        epoch = self.bench.epoch(run + "-task", self.random.randrange(1, 50))
        await self.bench.client.execute_task(self.bench.task("outputs", "3", epoch=epoch))
        assert (await self.bench.result(epoch)).exit_code in (3, 137, 143)

    async def cancel(self, run: str) -> None:
        epoch = self.bench.epoch(run + "-task", self.random.randrange(1, 50))
        await self.bench.client.cancel_task(m.CancelTaskRequest(epoch=epoch, grace_ms=50, wait_ms=0))

    async def status(self, run: str) -> None:
        if run in self.registrations:
            await self.bench.client.function_status(self.registrations[run][1], wait_ms=self.random.choice([0, 20]))

    async def worker(self, count: int) -> None:
        for _ in range(count):
            await self.once()


@pytest.mark.parametrize("seed", [1])
async def test_after_chaos_nothing_is_left_and_everything_was_answered(own: Bench, seed: int) -> None:
    print("seed", seed)  # noqa: T201
    chaos = Chaos(own, seed)
    working = asyncio.gather(*(chaos.worker(60) for _ in range(8)))
    for _ in range(3):
        await asyncio.wait([working], timeout=0.5)
        kill_the_zygote(own)
    await working
    for held in (await own.client.hello()).held:
        if held.kind == "function":
            await own.unregister(held.epoch, drain_ms=0)
        else:
            await own.client.cancel_task(m.CancelTaskRequest(epoch=held.epoch, grace_ms=0, wait_ms=5000))
            await own.client.forget(held.epoch)
    assert (await own.client.hello()).held == ()
    await until(lambda: len(descendants(own.server.pid)) <= 4, "only the zygote and its warm children are left")
    left = [path for path in own.server.folder.glob("runs/*/*/*") if path.name != "src"]
    assert left == []
    assert chaos.reasons.get("WorkerCrashed")
    assert "InternalError" not in (own.server.folder / "server.log").read_text()


def kill_the_zygote(bench: Bench) -> None:
    children = Path(f"/proc/{bench.server.pid}/task/{bench.server.pid}/children").read_text().split()
    for pid in children:
        os.kill(int(pid), 9)
