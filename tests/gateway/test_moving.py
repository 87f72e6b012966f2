"""Calls while facts change: held for the new owner, never sent twice, never held for ever."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from dataplane.gateway import dispatch, holding
from dataplane.wire.messages import InvokeReply, InvokeRequest
from dataplane.wire.pool import Peer
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import Refused, Reply, Request
from statemachine.ownership import PodFact
from statemachine.reasons import Reason
from statemachine.run import Phase, PodUID, RunUID
from tests.gateway.stage import PATH, POD, RUN, FakeRuntimed, Stage, run_fact
from tests.kit.waiting import eventually
from tests.wire.installation import Installation

NEW_POD = PodUID("11111111-2222-4333-8444-555555555555")


@pytest.fixture
async def successor(installation: Installation) -> AsyncIterator[FakeRuntimed]:
    server = await FakeRuntimed(installation, NEW_POD).start()
    yield server
    server.server.close()


def peer_of(runtimed: FakeRuntimed) -> Peer:
    return Peer("127.0.0.1", runtimed.port, runtimed.pod_uid, "default", "python")


async def test_an_unknown_run_is_held_until_it_is_seen(empty: Stage, runtimed: FakeRuntimed) -> None:
    client = await empty.client()
    waiting = asyncio.create_task(client.request())
    await empty.held()
    empty.see_pod(runtimed.fact())
    empty.see_run(run_fact(RunUID("another")))
    empty.see_run(run_fact())
    assert (await waiting).status == 200
    assert empty.invoker.caps.unknown == 0


async def test_an_unknown_run_is_not_found_after_its_moment(empty: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "UNKNOWN_HOLD_S", 0.02)
    client = await empty.client()
    response = await client.request()
    assert (response.status, response.reason) == (404, "RunNotFound")
    assert len(empty.changes) == 0
    assert empty.invoker.caps.unknown == 0


async def test_only_so_many_unknown_runs_are_held_for_one_caller(empty: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "UNKNOWN_HELD_PER_CALLER_MAX", 2)
    clients = [await empty.client() for _ in range(3)]
    held = [asyncio.create_task(client.request()) for client in clients[:2]]
    await eventually(lambda: len(empty.changes) == 2)
    assert (await clients[2].request()).reason == "RunNotFound"
    empty.lose_run(RUN)
    assert {(await waiting).reason for waiting in held} == {"RunNotFound"}


async def test_a_deleted_run_is_not_found_at_once(gateway: Stage) -> None:
    gateway.lose_run(RUN)
    client = await gateway.client()
    assert (await client.request()).reason == "RunNotFound"


async def test_a_call_of_a_moving_run_waits_for_the_new_owner(
    gateway: Stage, runtimed: FakeRuntimed, successor: FakeRuntimed
) -> None:
    gateway.see_run(run_fact(phase=Phase.PENDING, attempt=1, pod_uid=None))
    client = await gateway.client()
    waiting = asyncio.create_task(client.request())
    await gateway.held()
    assert gateway.invoker.caps.moving == 1
    gateway.see_pod(successor.fact())
    await gateway.held()
    gateway.see_run(run_fact(attempt=2, pod_uid=NEW_POD))
    assert (await waiting).status == 200
    assert runtimed.seen == []
    assert [(seen.attempt, seen.pod_uid) for seen in successor.seen] == [(2, NEW_POD)]
    assert gateway.invoker.caps.moving == 0


@pytest.mark.parametrize("reason", [Reason.DRAINING, Reason.STALE_OWNER, Reason.RUN_NOT_READY])
async def test_a_call_that_the_old_owner_refused_goes_to_the_new_one(
    gateway: Stage, runtimed: FakeRuntimed, successor: FakeRuntimed, reason: Reason
) -> None:
    async def refuse(request: Request, head: InvokeRequest) -> Reply:
        raise Refused(ErrorHead(reason=reason.value, message="closed"))

    runtimed.handler = refuse
    client = await gateway.client()
    waiting = asyncio.create_task(client.request())
    await gateway.held()
    gateway.see_pod(successor.fact())
    gateway.see_run(run_fact(phase=Phase.SCHEDULED, attempt=2, pod_uid=NEW_POD))
    assert (await waiting).status == 200
    assert (len(runtimed.seen), len(successor.seen)) == (1, 1)


async def test_a_new_owner_that_is_not_ready_yet_is_asked_again_when_it_is(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    async def not_yet(request: Request, head: InvokeRequest) -> Reply:
        return Reply(InvokeReply(status=503, reason=Reason.RUN_NOT_READY, message="registering"))

    gateway.see_run(run_fact(phase=Phase.REGISTERING, attempt=2))
    handler, runtimed.handler = runtimed.handler, not_yet
    client = await gateway.client()
    waiting = asyncio.create_task(client.request())
    await gateway.held()
    runtimed.handler = handler
    gateway.see_run(run_fact(phase=Phase.READY, attempt=2))
    assert (await waiting).status == 200
    assert len(runtimed.seen) == 2


async def test_a_run_that_moves_for_too_long_is_not_ready(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOVING_HOLD_S", 0.02)
    gateway.see_run(run_fact(phase=Phase.PENDING, attempt=1, pod_uid=None))
    client = await gateway.client()
    response = await client.request()
    assert (response.status, response.reason) == (503, "RunNotReady")
    assert response.headers["retry-after"] == "1"
    assert gateway.invoker.caps.moving == 0


async def test_a_call_is_not_held_beyond_its_deadline(gateway: Stage) -> None:
    gateway.see_run(run_fact(phase=Phase.PENDING, attempt=1, pod_uid=None))
    client = await gateway.client()
    response = await client.request(headers={"X-Kruntime-Timeout-Ms": "30"})
    assert (response.status, response.reason) == (503, "RunNotReady")


async def test_a_held_call_of_a_run_that_ends_is_told_so(gateway: Stage) -> None:
    gateway.see_run(run_fact(phase=Phase.PENDING, attempt=1, pod_uid=None))
    client = await gateway.client()
    for last, reason in ((Phase.CANCELLED, "RunFinished"), (None, "RunNotFound")):
        gateway.see_run(run_fact(phase=Phase.PENDING, attempt=1, pod_uid=None))
        waiting = asyncio.create_task(client.request())
        await gateway.held()
        if last is None:
            gateway.lose_run(RUN)
        else:
            gateway.see_run(run_fact(phase=last))
        assert (await waiting).reason == reason


async def test_only_so_many_calls_of_moving_runs_are_held(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "MOVING_HELD_MAX", 1)
    gateway.see_run(run_fact(phase=Phase.PENDING, attempt=1, pod_uid=None))
    first, second = await gateway.client(), await gateway.client()
    waiting = asyncio.create_task(first.request())
    await gateway.held()
    assert (await second.request()).reason == "RunNotReady"
    gateway.see_run(run_fact(attempt=2))
    assert (await waiting).status == 200


async def test_a_call_in_flight_on_a_lost_connection_is_unknown_and_never_sent_again(
    gateway: Stage, runtimed: FakeRuntimed, successor: FakeRuntimed
) -> None:
    async def die(request: Request, head: InvokeRequest) -> Reply:
        request.connection.abort()
        await asyncio.sleep(60)
        raise AssertionError

    runtimed.handler = die
    client = await gateway.client()
    waiting = asyncio.create_task(client.request())
    await runtimed.called.wait()
    gateway.see_pod(successor.fact())
    gateway.see_run(run_fact(attempt=2, pod_uid=NEW_POD))
    response = await waiting
    assert (response.status, response.reason) == (502, "OutcomeUnknown")
    assert "retry-after" not in response.headers
    assert response.json["kruntimes"]["retryable"] is False
    assert (len(runtimed.seen), len(successor.seen)) == (1, 0)


async def test_a_connection_lost_between_calls_costs_no_call(gateway: Stage, runtimed: FakeRuntimed) -> None:
    client = await gateway.client()
    assert (await client.request()).status == 200
    for connection in list(runtimed.server.connections):
        connection.abort()
    await eventually(lambda: not runtimed.server.connections)
    assert (await client.request()).status == 200


async def test_a_pod_that_says_goaway_is_not_used_and_its_calls_in_flight_finish(
    gateway: Stage, runtimed: FakeRuntimed, successor: FakeRuntimed
) -> None:
    finish = asyncio.Event()

    async def slow(request: Request, head: InvokeRequest) -> Reply:
        await finish.wait()
        return Reply(InvokeReply(status=200), b"old")

    runtimed.handler = slow
    first, second = await gateway.client(), await gateway.client()
    in_flight = asyncio.create_task(first.request())
    await runtimed.called.wait()
    draining = asyncio.create_task(runtimed.server.drain(timeout=10))
    await eventually(lambda: gateway.pool.ready(peer_of(runtimed)) is None)
    waiting = asyncio.create_task(second.request())
    await gateway.held()
    gateway.see_pod(successor.fact())
    gateway.see_run(run_fact(attempt=2, pod_uid=NEW_POD))
    assert (await waiting).status == 200
    assert not in_flight.done()
    finish.set()
    assert (await in_flight).body == b"old"
    assert (len(runtimed.seen), len(successor.seen)) == (1, 1)
    assert gateway.reported == []
    await draining


async def test_an_owner_that_refuses_connections_is_503_and_reported_once(gateway: Stage) -> None:
    gateway.see_pod(PodFact(NEW_POD, "default", "python", "127.0.0.1", 1, True))
    gateway.see_run(run_fact(attempt=2, pod_uid=NEW_POD))
    client = await gateway.client()
    for _ in range(3):
        response = await client.request()
        assert (response.status, response.reason) == (503, "OwnerUnreachable")
    assert [owner.run.attempt for owner in gateway.reported] == [2]


async def test_an_endpoint_that_refuses_is_passed_over_for_calls_of_others(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    gateway.see_pod(PodFact(NEW_POD, "default", "python", "127.0.0.1", 1, True))
    gateway.see_run(run_fact(RunUID("far"), pod_uid=PodUID("unknown")))
    client = await gateway.client()
    for _ in range(4):
        assert (await client.request(path=PATH.replace(RUN, "far"))).status == 200
    assert gateway.reported == []
    assert len(runtimed.seen) == 4


async def test_an_address_that_belongs_to_another_pod_now_gets_no_call(
    gateway: Stage, runtimed: FakeRuntimed, successor: FakeRuntimed
) -> None:
    gateway.see_pod(PodFact(POD, "default", "python", "127.0.0.1", successor.port, True))
    client = await gateway.client()
    response = await client.request()
    assert (response.status, response.reason) == (503, "OwnerUnreachable")
    assert (runtimed.seen, successor.seen) == ([], [])


async def test_a_deadline_without_a_word_from_the_owner_is_unknown(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: Request, head: InvokeRequest) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("dataplane.gateway.forward.ANSWER_GRACE_S", 0.02)
    runtimed.handler = never
    client = await gateway.client()
    response = await client.request(headers={"X-Kruntime-Timeout-Ms": "20"})
    assert (response.status, response.reason) == (504, "InvocationTimeout")
    assert "unknown" in response.json["message"]
    assert gateway.invoker.in_flight == 0


async def test_a_call_that_was_held_until_its_deadline_is_told_what_it_waited_for(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fact that it waited for comes with the last moment of its time: it did not run, and 504 would not say so."""
    gateway.see_run(run_fact(phase=Phase.PENDING, attempt=1, pod_uid=None))
    client = await gateway.client()
    waiting = asyncio.create_task(client.request(headers={"X-Kruntime-Timeout-Ms": "10000"}))
    await gateway.held()
    now = gateway.clock.monotonic()
    monkeypatch.setattr(gateway.clock, "monotonic", lambda: now + 11)
    gateway.see_run(run_fact(attempt=2))
    response = await waiting
    assert (response.status, response.reason) == (503, "RunNotReady")
    assert response.json["kruntimes"]["retryable"] is True
    assert runtimed.seen == []
