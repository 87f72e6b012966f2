"""Calls against the end of their Run, and user code at its worst: every answer is one that the contract names."""

import asyncio
import random
from collections import Counter
from typing import Any

import aiohttp
import pytest

from controlplane.kube.client import KubeClient
from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from tests.e2e.stack import COUNTER, Stack, function, names, settled
from tests.e2e.test_edges import gone, make, reach, slots

NAME = names()
SLEEPER = "import time\ndef invoke(r):\n    time.sleep(r.get('s', 0))\n    return {'outputs': {}}\n"
RUNS_A_RACE = 8
OVER = frozenset({"200", "409 RunFinished", "429 TooManyInvocations"})
GONE = OVER | {"404 RunNotFound"}


async def call(https: aiohttp.ClientSession, url: str, seconds: float = 0.0, **headers: str) -> str:
    """One call of a SLEEPER: its status, and the reason where it is none of 200."""
    async with https.post(url, json={"s": seconds}, headers=headers) as answer:
        said = await answer.json()
        return "200" if answer.status == 200 else f"{answer.status} {said['reason']}"


async def end(client: KubeClient, name: str) -> None:
    """Delete a Run and wait for it to go."""
    await client.delete(RUNS, client.namespace, name)
    await gone(client, name)


async def sleeper(client: KubeClient, **spec: Any) -> tuple[str, Any]:
    """A ready SLEEPER: its name and how it is."""
    name = await make(client, function(next(NAME), SLEEPER, **spec))
    return name, await reach(client, name, "Ready")


async def test_calls_against_the_idle_clock_are_served_or_refused_and_idleness_wins_in_the_end(stack: Stack) -> None:
    async with stack.client() as client, stack.https() as https:

        async def one(number: int) -> Counter[str]:
            dice, answers = random.Random(number), Counter[str]()
            name, run = await sleeper(client, mode={"idleTimeoutSeconds": 1, "concurrency": 2})
            for _ in range(2):
                await asyncio.sleep(dice.uniform(0.9, 1.02))
                answers.update(await asyncio.gather(*(call(https, run.status.endpoint.url) for _ in range(2))))
            await reach(client, name, "Timeout")
            assert await call(https, run.status.endpoint.url) == "409 RunFinished"
            await end(client, name)
            return answers

        answers = sum(await asyncio.gather(*(one(number) for number in range(RUNS_A_RACE))), Counter[str]())
        assert set(answers) <= {"200", "409 RunFinished"}, answers


async def test_calls_in_flight_at_the_end_of_a_lifetime_are_answered(stack: Stack) -> None:
    async with stack.client() as client, stack.https() as https:

        async def one() -> Counter[str]:
            answers = Counter[str]()
            name, run = await sleeper(client, timeout="3s", mode={"concurrency": 2})
            while "409 RunFinished" not in answers:
                answers.update(await asyncio.gather(*(call(https, run.status.endpoint.url, 0.07) for _ in range(2))))
            await reach(client, name, "Timeout")
            await end(client, name)
            return answers

        answers = sum(await asyncio.gather(*(one() for _ in range(RUNS_A_RACE))), Counter[str]())
        assert set(answers) == {"200", "409 RunFinished"}, answers


@pytest.mark.parametrize("how", ["cancel", "delete", "drain"])
async def test_a_call_in_flight_finishes_while_its_run_ends_or_moves(stack: Stack, how: str) -> None:
    async with stack.client() as client, stack.https() as https:
        # Where the Runs move to is there already: how long a new Pod takes is another matter.
        await client.create(RUNTIMES, client.namespace, stack.runtime("paired", runs=str(RUNS_A_RACE), replicas=2))
        await settled(
            lambda: client.get(RUNTIMES, client.namespace, "paired"), lambda r: r.status.ready_replicas == 2, 60
        )
        made = [await sleeper(client, runtime="paired") for _ in range(RUNS_A_RACE)]
        flying = [asyncio.create_task(call(https, run.status.endpoint.url, 1.0)) for _, run in made]
        await asyncio.sleep(0.3)
        if how == "drain":
            await client.delete(PODS, client.namespace, made[0][1].status.assigned_pod)
        for name, _ in made:
            if how == "cancel":
                await client.merge_patch(RUNS, client.namespace, name, {"spec": {"cancelRequested": True}})
            elif how == "delete":
                await client.delete(RUNS, client.namespace, name)
        late = set(await asyncio.gather(*(call(https, run.status.endpoint.url) for _, run in made)))
        assert late <= ({"200", "429 TooManyInvocations"} if how == "drain" else GONE), late
        assert set(await asyncio.gather(*flying)) == {"200"}
        for name, _ in made:
            if how == "drain":
                assert (await reach(client, name, "Ready")).status.failures == 0
            if how != "delete":
                await client.delete(RUNS, client.namespace, name)
            await gone(client, name)
        await client.delete(RUNTIMES, client.namespace, "paired")


async def test_a_slot_of_concurrency_is_freed_once_whatever_becomes_of_its_call(stack: Stack) -> None:
    async with stack.client() as client, stack.https() as https:
        name, run = await sleeper(client, mode={"concurrency": 4})
        url = run.status.endpoint.url

        async def crowd(seconds: float, count: int = 4, **headers: str) -> Counter[str]:
            return Counter(await asyncio.gather(*(call(https, url, seconds, **headers) for _ in range(count))))

        assert await crowd(0.4, 12) == {"200": 4, "429 TooManyInvocations": 8}
        for _ in range(8):  # clients that go
            flying = asyncio.create_task(call(https, url, 0.2))
            await asyncio.sleep(0.02)
            flying.cancel()

        async def free() -> bool:
            return await crowd(0.2) == {"200": 4}

        await settled(free, bool)
        assert await crowd(9, **{"X-Kruntime-Timeout-Ms": "300"}) == {"504 InvocationTimeout": 4}
        await settled(free, bool)
        await end(client, name)


HANDLERS = {
    "prints": ("import sys\ndef invoke(r):\n    print('x' * (10 << 20))\n    return {'outputs': {}}\n", "200"),
    "leaves": (
        "import subprocess\ndef invoke(r):\n    subprocess.Popen(['sleep', '99'], start_new_session=True)\n"
        "    return {'outputs': {}}\n",
        "200",
    ),
    "closes": (
        "import os\ndef invoke(r):\n    os.closerange(0, 99)\n    return {'outputs': {}}\n",
        "500 WorkerCrashed",
    ),
    "forges": (
        "import os\ndef invoke(r):\n    for fd in range(3, 9):\n        try:\n            os.write(fd, b'{}' * 9999)\n"
        "        except OSError:\n            pass\n    return {'outputs': {}}\n",
        "500 WorkerCrashed",
    ),
    "exits": ("import os\ndef invoke(r):\n    os._exit(0)\n", "500 WorkerCrashed"),
    "hangs": (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef invoke(r):\n    time.sleep(99)\n",
        "504 InvocationTimeout",
    ),
    "nan": ("def invoke(r):\n    return {'outputs': {'x': float('nan')}}\n", "500 HandlerResultInvalid"),
    "large": ("def invoke(r):\n    return {'outputs': {'x': 'x' * (2 << 20)}}\n", "500 ResponseTooLarge"),
}


@pytest.mark.parametrize("kind", HANDLERS)
async def test_bad_user_code_gets_its_own_answer_again_and_again_and_harms_nobody(stack: Stack, kind: str) -> None:
    source, expected = HANDLERS[kind]
    async with stack.client() as client, stack.https() as https:
        neighbour = await make(client, function(next(NAME), COUNTER))
        name = await make(client, function(next(NAME), source))
        run, other = await reach(client, name, "Ready"), await reach(client, neighbour, "Ready")
        for _ in range(3):
            assert await call(https, run.status.endpoint.url, **{"X-Kruntime-Timeout-Ms": "700"}) == expected
        assert await call(https, other.status.endpoint.url) == "200"
        assert (await client.get(RUNS, client.namespace, name)).status.phase == "Ready"
        for one in (name, neighbour):
            await end(client, one)


async def test_nothing_of_the_runs_before_is_left(stack: Stack) -> None:
    """Runs last in this file: whatever was done above, no slot is held by what is gone."""
    async with stack.client() as client:
        held = sum(
            run.status.assigned_pod is not None
            and run.status.phase not in ("Succeeded", "Failed", "Timeout", "Cancelled")
            for run in (await client.list(RUNS, client.namespace, fields="spec.runtime=python")).items
        )
        await settled(lambda: asyncio.to_thread(slots, stack), lambda used: used == str(held))
