"""O2 and L10: a client that sees Ready may call at once, and what we write to the API stays within its budget."""

import asyncio
from collections import Counter
from contextlib import aclosing

from controlplane.kube.resources import EVENTS, RUNS
from tests.e2e.stack import COUNTER, Stack, changes, function, names, settled, until

NAME = names()
QUIET_S = 1.5  # a Runtime's status is written at most once a second


async def quiet(stack: Stack) -> bool:
    """Whether nothing was asked of the API for longer than anything is put off: Events, and a Runtime's status."""
    count = len(stack.requests())
    await asyncio.sleep(QUIET_S)
    return len(stack.requests()) == count


async def test_an_invoke_sent_the_moment_a_watch_shows_ready_never_fails(stack: Stack) -> None:
    runs = 200
    outcomes: Counter[str] = Counter()
    async with stack.client() as client, stack.https() as https:
        listed = await client.list(RUNS, client.namespace)
        pending = {next(NAME) for _ in range(runs)}
        mine = set(pending)
        calls: list[asyncio.Task[None]] = []
        gate = asyncio.Semaphore(8)

        async def create(name: str) -> None:
            async with gate:
                await client.create(RUNS, client.namespace, function(name, COUNTER))

        async def call(name: str, url: str) -> None:
            async with https.post(url, data=b"{}") as answer:
                text = await answer.text()
                outcomes["ok" if answer.status == 200 else f"{answer.status} {text[:200]}"] += 1
            await client.delete(RUNS, client.namespace, name)

        makers = [asyncio.create_task(create(name)) for name in sorted(pending)]
        async with (
            asyncio.timeout(100),
            aclosing(changes(client, listed.resource_version)) as seen,
        ):
            async for run in seen:
                if run.metadata.name not in pending:
                    continue
                if any(c.type == "Ready" and c.status == "True" for c in run.status.conditions):
                    pending.discard(run.metadata.name)
                    assert run.status.endpoint is not None
                    calls.append(asyncio.create_task(call(run.metadata.name, run.status.endpoint.url)))
                    if not pending:
                        break
        await asyncio.gather(*makers, *calls)
        assert outcomes == {"ok": runs}
        await settled(
            lambda: client.list(RUNS, client.namespace),
            lambda found: not mine & {run.metadata.name for run in found.items},
        )


async def test_writes_and_events_of_a_run_stay_within_their_budgets(stack: Stack) -> None:
    async with stack.client() as client:
        deleted, cancelled = next(NAME), next(NAME)
        for name in (deleted, cancelled):
            await client.create(RUNS, client.namespace, function(name, COUNTER))
        for name in (deleted, cancelled):
            run = await settled(
                lambda name=name: client.get(RUNS, client.namespace, name), lambda r: r.status.phase == "Ready"
            )
            assert len(stack.writes(name)) <= 4, stack.writes(name)
        uid = run.metadata.uid
        await client.delete(RUNS, client.namespace, deleted)
        await client.merge_patch(RUNS, client.namespace, cancelled, {"spec": {"cancelRequested": True}})
        await settled(
            lambda: client.get(RUNS, client.namespace, cancelled),
            lambda r: r.status.phase == "Cancelled" and not r.metadata.finalizers,
        )
        await asyncio.to_thread(until, "it is gone", lambda: stack.krt("get", deleted).code == 3)
        assert len(stack.writes(deleted)) <= 6, [one.patched for one in stack.writes(deleted)]
        assert len(stack.writes(cancelled)) <= 7, [one.patched for one in stack.writes(cancelled)]
        events = await client.list(EVENTS, client.namespace, fields=f"involvedObject.uid={uid}")
        assert 1 <= len(events.items) <= 6
        assert all(event.type == "Normal" for event in events.items)


async def test_a_thousand_invocations_cost_the_api_access_reviews_and_nothing_else(stack: Stack) -> None:
    async with stack.client() as client, stack.https() as https:
        name = next(NAME)
        await client.create(RUNS, client.namespace, function(name, COUNTER))
        run = await settled(lambda: client.get(RUNS, client.namespace, name), lambda r: r.status.phase == "Ready")
        assert run.status.endpoint is not None
        url = run.status.endpoint.url
        await settled(lambda: quiet(stack), bool)
        before = len(stack.requests())
        for _ in range(1000):
            async with https.post(url, data=b"{}") as answer:
                assert answer.status == 200
        made = stack.requests()[before:]
        # Leases of the API go on whether anyone calls or not: an owner reads its own Pod, watches are renewed.
        standing = {
            ("get", "pods"),
            ("watch", "runs"),
            ("watch", "pods"),
            ("watch", "runtimes"),
            ("watch", "endpointslices"),
        }
        caused = [one for one in made if (one.verb, one.resource) not in standing]
        reviews = Counter(one.resource for one in caused)
        assert set(reviews) <= {"tokenreviews", "subjectaccessreviews"}, caused
        assert all(count <= 2 for count in reviews.values()), reviews
        await client.delete(RUNS, client.namespace, name)
