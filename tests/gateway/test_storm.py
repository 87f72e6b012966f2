"""Runs move from Pod to Pod under load, facts come late, connections break: what a caller is told is true of its call.

The plan of a storm has a seed. A call that is told 200 ran once; one that is told 503 did not run at all, nor did one
whose deadline passed while it was held, which is a 503 too (L12). 504 is for a call that came to nobody in its time:
its message says that it did not run. 502 alone leaves it open, and only where a connection broke.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from dataplane.gateway import dispatch
from dataplane.wire.messages import InvokeReply, InvokeRequest
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import Refused, Reply, Request
from statemachine.reasons import Reason
from statemachine.run import Phase, PodUID, RunUID
from tests.gateway.stage import PATH, POD, RUN, FakeRuntimed, Stage, run_fact, stage
from tests.wire.installation import Installation

PODS = (POD, PodUID("22222222-2222-4333-8444-555555555555"), PodUID("44444444-2222-4333-8444-555555555555"))
RUNS = [RunUID(f"run-{number}") for number in range(12)]
CALLERS = 16
STEPS = 120
DEADLINES_MS = (1, 20, 60, 150, 400)
ALLOWED = {200, 502, 503, 504}
TOO_LATE = "504 InvocationTimeout the deadline passed before the call was dispatched: it did not run"


class Storm:
    """The Pods' own truth: who owns which Run in which attempt, and what ran."""

    def __init__(self, gateway: Stage, pods: list[FakeRuntimed], seed: int) -> None:
        self.gateway = gateway
        self.pods = {pod.pod_uid: pod for pod in pods}
        self.rng = random.Random(seed)
        self.owner: dict[RunUID, tuple[PodUID, int]] = {}
        self.ran: Counter[str] = Counter()
        self.broken = False
        self.told: dict[str, int] = {}
        self.messages: Counter[str] = Counter()
        for pod in pods:
            pod.handler = self.serve

    async def serve(self, request: Request, head: InvokeRequest) -> Reply:
        if self.owner.get(RunUID(head.run_uid)) != (head.pod_uid, head.attempt):
            match self.rng.randrange(3):
                case 0:
                    raise Refused(ErrorHead(reason=Reason.DRAINING.value, message="leaving"))
                case 1:
                    return Reply(InvokeReply(status=503, reason=Reason.STALE_OWNER, message="not here"))
                case _:
                    return Reply(InvokeReply(status=503, reason=Reason.RUN_NOT_READY, message="moving", moving=True))
        self.ran[head.invocation_id] += 1
        await asyncio.sleep(self.rng.random() * 0.004)  # the handler's work
        return Reply(InvokeReply(status=200), b"{}")

    def show(self, run: RunUID, phase: Phase, pod: PodUID | None, attempt: int) -> None:
        self.gateway.see_run(run_fact(run, phase, attempt=attempt, pod_uid=pod, name="hello"))

    async def move(self, run: RunUID) -> None:
        """Away from its owner, then to another; the facts follow when they follow."""
        _, attempt = self.owner.pop(run)
        await asyncio.sleep(self.rng.random() * 0.02)
        self.show(run, Phase.PENDING, None, attempt)
        await asyncio.sleep(self.rng.random() * 0.05)
        target = self.rng.choice(PODS)
        self.show(run, Phase.SCHEDULED, target, attempt + 1)
        await asyncio.sleep(self.rng.random() * 0.05)
        self.owner[run] = target, attempt + 1
        self.show(run, Phase.READY, target, attempt + 1)

    def break_connections(self) -> None:
        self.broken = True
        pod = self.pods[self.rng.choice(PODS)]
        for connection in list(pod.server.connections):
            connection.abort()

    async def rage(self) -> None:
        for run in RUNS:
            self.owner[run] = self.rng.choice(PODS), 1
            self.show(run, Phase.READY, *self.owner[run])
        ended = asyncio.Event()
        calling = [asyncio.create_task(self.call(number, ended)) for number in range(CALLERS)]
        moving = []
        for _ in range(STEPS):
            await asyncio.sleep(self.rng.random() * 0.01)
            run = self.rng.choice(RUNS)
            if run in self.owner:
                moving.append(asyncio.create_task(self.move(run)))
            if self.rng.random() < 0.05:
                self.break_connections()
        await asyncio.gather(*moving)
        ended.set()
        await asyncio.gather(*calling)

    async def call(self, number: int, ended: asyncio.Event) -> None:
        client, count = await self.gateway.client(), 0
        while not ended.is_set():
            count += 1
            name = f"{number}-{count}"
            headers = {
                "X-Kruntime-Invocation-ID": name,
                "X-Kruntime-Timeout-Ms": str(self.rng.choice(DEADLINES_MS)),
            }
            answer = await client.request(path=PATH.replace(RUN, self.rng.choice(RUNS)), headers=headers)
            self.told[name] = answer.status
            if answer.status != 200:
                self.messages[f"{answer.status} {answer.reason} {answer.json['message']}"] += 1


@pytest.fixture
async def pods(installation: Installation) -> AsyncIterator[list[FakeRuntimed]]:
    made = [await FakeRuntimed(installation, uid).start() for uid in PODS]
    yield made
    for pod in made:
        pod.server.close()


@pytest.mark.parametrize("seed", range(4))
async def test_what_a_caller_is_told_of_a_moving_run_is_true_of_its_call(
    installation: Installation, pods: list[FakeRuntimed], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MOVING_HOLD_S", 0.3)
    async with stage(installation) as gateway:
        for pod in pods:
            gateway.see_pod(pod.fact())
        storm = Storm(gateway, pods, seed)
        await storm.rage()
    assert set(storm.ran.values()) <= {1}, "a call ran twice"
    assert {status for name, status in storm.told.items() if status == 200 and storm.ran[name] != 1} == set()
    assert {name for name, status in storm.told.items() if status in (503, 504) and storm.ran[name]} == set()
    assert {said for said in storm.messages if said.startswith("504")} <= {TOO_LATE}
    seen = Counter(storm.told.values())
    assert set(seen) <= ALLOWED, (seen, storm.messages)
    assert seen[200] > len(storm.told) // 4, seen
    assert not seen[502] or storm.broken
