"""What waits and why, and what ends how: Runtimes that are missing, full, deleted or rolled out, with Runs on them."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from controlplane.kube.client import KubeClient
from controlplane.kube.errors import NotFound
from controlplane.kube.resources import NAMESPACES, PODS, RUNS, RUNTIMES
from tests.e2e.stack import COUNTER, DEADLINE_S, Stack, function, names, settled, task

NAME = names()
FOREIGN = "example.com/hold"


async def make(client: KubeClient, manifest: dict[str, Any], namespace: str | None = None) -> str:
    """Create a Run and return its name."""
    await client.create(RUNS, namespace or client.namespace, manifest)
    return str(manifest["metadata"]["name"])


async def reach(
    client: KubeClient, name: str, *phases: str, namespace: str | None = None, seconds: float = DEADLINE_S
) -> Any:
    """The Run once it is in one of these phases."""
    seen: list[Any] = []

    async def look() -> Any:
        run = await client.get(RUNS, namespace or client.namespace, name)
        seen[:] = [(run.status.phase, run.status.reason, run.status.message)]
        return run

    try:
        return await settled(look, lambda run: run.status.phase in phases, seconds)
    except TimeoutError:
        raise AssertionError(f"{name} is {seen}, not {phases}") from None


async def gone(client: KubeClient, name: str, namespace: str | None = None, seconds: float = DEADLINE_S) -> None:
    """Wait until there is no such Run."""

    async def look() -> bool:
        try:
            await client.get(RUNS, namespace or client.namespace, name)
        except NotFound:
            return True
        return False

    await settled(look, bool, seconds)


def waits_for(reason: str) -> Callable[[Any], bool]:
    """Whether a Run's condition Scheduled=False says this."""

    def says(run: Any) -> bool:
        return any(c.type == "Scheduled" and c.status == "False" and c.reason == reason for c in run.status.conditions)

    return says


async def says(client: KubeClient, name: str, reason: str) -> Any:
    """The Run once it says why it waits."""
    return await settled(lambda: client.get(RUNS, client.namespace, name), waits_for(reason))


def slots(stack: Stack, name: str = "python") -> str:
    return stack.kubectl("get", "runtime", name, "-o", "jsonpath={.status.capacity.used.runs}").out or "0"


@asynccontextmanager
async def load(https: aiohttp.ClientSession, urls: list[str], callers: int = 4) -> AsyncIterator[Counter[str]]:
    """Calls without end while the block runs, one at a time a function; what was answered, when it has ended."""
    answers: Counter[str] = Counter()
    ended = asyncio.Event()

    async def caller(number: int) -> None:
        mine = itertools.cycle(urls[number::callers])
        while not ended.is_set():
            try:
                async with https.post(next(mine), data=b"{}") as answer:
                    text = await answer.text()
                    answers["200" if answer.status == 200 else f"{answer.status} {text[:300]}"] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                answers[repr(error)] += 1

    callers_ = [asyncio.create_task(caller(number)) for number in range(min(callers, len(urls)))]
    try:
        yield answers
    finally:
        ended.set()
        await asyncio.gather(*callers_)


async def test_a_run_waits_for_a_runtime_that_comes_later_and_says_so(stack: Stack) -> None:
    async with stack.client() as client:
        first = await make(client, function(next(NAME), COUNTER, runtime="later"))
        await says(client, first, "RuntimeNotFound")
        await client.create(RUNTIMES, client.namespace, stack.runtime("later", runs="1"))
        await reach(client, first, "Ready")
        second = await make(client, function(next(NAME), COUNTER, runtime="later"))
        await says(client, second, "NoCapacity")
        greedy = await make(
            client, function(next(NAME), COUNTER, runtime="later", resources={"requests": {"runs": "2"}})
        )
        await says(client, greedy, "NeverFits")
        await client.merge_patch(
            RUNTIMES, client.namespace, "later", {"spec": {"capacity": {"resources": {"runs": "2"}}}}
        )
        await reach(client, second, "Ready")
        await says(client, greedy, "NoCapacity")
        for name in (first, second):
            await client.delete(RUNS, client.namespace, name)
        await reach(client, greedy, "Ready")
        last = await make(client, function(next(NAME), COUNTER, runtime="later"))
        # The Runtime goes with a Run on it, which its Pod moves away while it drains.
        await client.delete(RUNTIMES, client.namespace, "later")
        for name in (last, greedy):
            await says(client, name, "RuntimeNotFound")
            await client.delete(RUNS, client.namespace, name)
            await gone(client, name)


async def test_a_runtime_scaled_to_zero_and_back_brings_its_runs_back(stack: Stack) -> None:
    async with stack.client() as client, stack.https() as https:
        await client.create(RUNTIMES, client.namespace, stack.runtime("elastic"))
        name = await make(client, function(next(NAME), COUNTER, runtime="elastic"))
        before = await reach(client, name, "Ready")
        await client.merge_patch(RUNTIMES, client.namespace, "elastic", {"spec": {"replicas": 0}})
        await says(client, name, "NoCapacity")
        async with https.post(before.status.endpoint.url, headers={"X-Kruntime-Timeout-Ms": "500"}) as answer:
            assert answer.status == 503, await answer.text()
        await client.merge_patch(RUNTIMES, client.namespace, "elastic", {"spec": {"replicas": 1}})
        after = await reach(client, name, "Ready")
        assert after.status.failures == 0
        assert after.status.assigned_pod_uid != before.status.assigned_pod_uid
        async with https.post(after.status.endpoint.url, data=b"{}") as answer:
            assert (await answer.json())["outputs"] == {"count": 1}
        await client.delete(RUNS, client.namespace, name)
        await gone(client, name)
        await client.delete(RUNTIMES, client.namespace, "elastic")


async def test_a_rollout_of_the_runtime_under_load_fails_no_call(stack: Stack) -> None:
    async with stack.client() as client, stack.https() as https:
        await client.create(RUNTIMES, client.namespace, stack.runtime("rolled", runs="4"))
        made = [await make(client, function(next(NAME), COUNTER, runtime="rolled")) for _ in range(3)]
        runs = [await reach(client, name, "Ready") for name in made]
        old = {run.status.assigned_pod_uid for run in runs}
        urls = [run.status.endpoint.url for run in runs]
        async with load(https, urls) as answers:
            await settled(lambda: asyncio.sleep(0, answers["200"]), lambda count: count > 20)
            change = {"spec": {"template": {"metadata": {"annotations": {"example.com/version": "2"}}}}}
            await client.merge_patch(RUNTIMES, client.namespace, "rolled", change)

            async def owners() -> set[str | None]:
                return {(await client.get(RUNS, client.namespace, name)).status.assigned_pod_uid for name in made}

            await settled(owners, lambda found: not found & old and None not in found, 40)

            async def pods() -> set[str]:
                found = await client.list(PODS, client.namespace, labels="kruntimes.io/runtime=rolled")
                return {pod.metadata.uid for pod in found.items}

            await settled(pods, lambda found: not found & old, 40)
        assert set(answers) == {"200"}, answers
        for name in made:
            assert (await reach(client, name, "Ready")).status.failures == 0
            await client.delete(RUNS, client.namespace, name)
            await gone(client, name)
        await client.delete(RUNTIMES, client.namespace, "rolled")


async def test_a_namespace_goes_with_ready_functions_and_a_runtime_in_it(stack: Stack) -> None:
    async with stack.client() as client:
        await client.create(NAMESPACES, None, {"metadata": {"name": "brief"}})
        await client.create(RUNTIMES, "brief", stack.runtime("own"))
        made = [await make(client, function(next(NAME), COUNTER, runtime="own"), "brief") for _ in range(3)]
        for name in made[:2]:
            await reach(client, name, "Ready", namespace="brief")
        await client.delete(NAMESPACES, None, "brief")

        async def there() -> bool:
            try:
                await client.get(NAMESPACES, None, "brief")
            except NotFound:
                return False
            return True

        await settled(there, lambda found: not found, 40)
        found = await client.list(RUNS, "brief")
        assert not found.items


async def test_another_finalizer_holds_the_object_without_pod_slot_or_endpoint(stack: Stack) -> None:
    async with stack.client() as client, stack.https() as https:
        held = function(next(NAME), COUNTER)
        held["metadata"]["finalizers"] = [FOREIGN]
        name = await make(client, held)
        run = await reach(client, name, "Ready")
        url = run.status.endpoint.url
        await client.delete(RUNS, client.namespace, name)
        run = await settled(
            lambda: client.get(RUNS, client.namespace, name),
            lambda r: r.status.assigned_pod is None and r.metadata.finalizers == (FOREIGN,),
        )
        assert (run.status.phase, run.status.endpoint) == ("Releasing", None)
        async with https.post(url, data=b"{}") as answer:
            assert answer.status == 409, await answer.text()
        await client.json_patch(RUNS, client.namespace, name, [{"op": "remove", "path": "/metadata/finalizers"}])
        await gone(client, name)
        # Deleted before it ever had a Pod, and after it had finished.
        waiting = function(next(NAME), COUNTER, runtime="nobody")
        done = task(next(NAME), "print(1)")
        for manifest in (waiting, done):
            manifest["metadata"]["finalizers"] = [FOREIGN]
            await make(client, manifest)
        await reach(client, done["metadata"]["name"], "Succeeded")
        for manifest in (waiting, done):
            name = manifest["metadata"]["name"]
            await client.delete(RUNS, client.namespace, name)
            run = await client.get(RUNS, client.namespace, name)
            assert run.metadata.deletion_timestamp
            await settled(
                lambda name=name: client.get(RUNS, client.namespace, name),
                lambda r: r.metadata.finalizers == (FOREIGN,),
            )
            await client.json_patch(RUNS, client.namespace, name, [{"op": "remove", "path": "/metadata/finalizers"}])
            await gone(client, name)


@pytest.mark.parametrize("phase", ["Pending", "Scheduled", "Registering", "Ready", "Running"])
@pytest.mark.parametrize("verb", ["cancel", "delete"])
async def test_cancel_and_deletion_end_a_run_in_every_phase(stack: Stack, verb: str, phase: str) -> None:
    slow = "import time\ntime.sleep(60)\ndef invoke(request): return {}\n"
    manifest = {
        "Pending": lambda n: function(n, COUNTER, runtime="nobody"),
        "Scheduled": lambda n: function(n, COUNTER),
        "Registering": lambda n: function(n, slow),
        "Ready": lambda n: function(n, COUNTER),
        "Running": lambda n: task(n, "import time\ntime.sleep(60)\n"),
    }[phase](next(NAME))
    async with stack.client() as client:
        name = await make(client, manifest)
        if phase != "Scheduled":  # which passes by itself: it is struck somewhere on the way
            await reach(client, name, phase)
        if verb == "cancel":
            await client.merge_patch(RUNS, client.namespace, name, {"spec": {"cancelRequested": True}})
            run = await reach(client, name, "Cancelled", seconds=30)
            await settled(lambda: client.get(RUNS, client.namespace, name), lambda r: not r.metadata.finalizers)
            assert run.status.endpoint is None
        await client.delete(RUNS, client.namespace, name)
        await gone(client, name, seconds=30)


async def test_sixty_four_functions_move_when_their_pod_is_deleted(fresh: Stack) -> None:
    fresh.start()
    async with fresh.client() as client, fresh.https() as https:
        made = [await make(client, function(next(NAME), COUNTER)) for _ in range(64)]
        runs = [await reach(client, name, "Ready", seconds=30) for name in made]
        pod = runs[0].status.assigned_pod
        assert {run.status.assigned_pod for run in runs} == {pod}
        async with load(https, [run.status.endpoint.url for run in runs]) as answers:
            await client.delete(PODS, client.namespace, pod)

            async def moved() -> list[Any]:
                found = (await client.list(RUNS, client.namespace)).items
                return [r for r in found if r.status.phase == "Ready" and r.status.assigned_pod != pod]

            await settled(moved, lambda found: len(found) == 64, 40)
        assert not [text for text in answers if not text.startswith(("200", "503"))], answers
        assert answers["200"] > 0
        for run in await moved():
            assert (run.status.failures, run.status.attempt) == (0, 2)
