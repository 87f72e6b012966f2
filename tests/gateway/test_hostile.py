"""Clients that mean harm: what they can make the gateway keep is bounded by number, and others are served meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from dataplane.gateway import connection, holding, ledger
from dataplane.gateway.limits import AHEAD_READ_BYTES, RUN_INFLIGHT_MAX, UNREAD_BODY_MAX_BYTES
from dataplane.wire.messages import InvokeReply, InvokeRequest
from runtimes.contract.limits import INVOKE_BODY_MAX_BYTES
from runtimes.contract.mux import Reply, Request
from statemachine.run import RunUID
from tests.gateway.stage import PATH, RUN, Client, FakeRuntimed, Stage, encode_request, run_fact
from tests.kit.waiting import eventually

OTHER = RunUID("33333333-2222-4333-8444-555555555555")
CLIENTS = 20


class Stuck:
    """The calls of `hello` wait, those of any other Run are answered."""

    def __init__(self, runtimed: FakeRuntimed) -> None:
        self.go_on = asyncio.Event()
        self.inside = 0
        self.most = 0
        runtimed.handler = self

    async def __call__(self, request: Request, head: InvokeRequest) -> Reply:
        if head.run_uid == RUN:
            self.inside += 1
            self.most = max(self.most, self.inside)
            await self.go_on.wait()
            self.inside -= 1
        return Reply(InvokeReply(status=200), b"{}")


@pytest.fixture
async def stuck(runtimed: FakeRuntimed) -> AsyncIterator[Stuck]:
    handler = Stuck(runtimed)
    yield handler
    handler.go_on.set()


def other(gateway: Stage) -> str:
    """Another Run of the same Pod."""
    gateway.kube.allowed.add(("jane", "other"))
    gateway.see_run(run_fact(OTHER, name="other"))
    return PATH.replace(RUN, OTHER)


async def settle(gateway: Stage) -> None:
    """Until nothing is read any more."""
    before = -1
    while before != gateway.front.ahead_bytes:
        before = gateway.front.ahead_bytes
        await asyncio.sleep(0.1)  # longer than a turn of the loop with all that was sent


async def test_what_comes_ahead_of_its_turn_is_kept_for_each_client_up_to_a_bound(gateway: Stage, stuck: Stuck) -> None:
    clients = [await gateway.client() for _ in range(CLIENTS)]
    ahead = encode_request(body=b'"' + b"x" * (INVOKE_BODY_MAX_BYTES // 2) + b'"')
    for client in clients:
        client.send(encode_request() + ahead * 6)
    await eventually(lambda: stuck.inside == CLIENTS)
    await settle(gateway)
    assert all(one.reading_paused for one in gateway.front.connections)
    assert 0 < gateway.front.ahead_bytes <= CLIENTS * (UNREAD_BODY_MAX_BYTES + 256 * 1024)
    stuck.go_on.set()
    for client in clients:
        assert [(await client.receive()).status for _ in range(7)] == [200] * 7
    assert gateway.front.ahead_bytes == 0


async def test_all_that_comes_ahead_of_its_turn_has_one_bound_for_all_clients(
    gateway: Stage, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 256 * 1024
    monkeypatch.setattr(connection, "AHEAD_MAX_BYTES", most)
    clients = [await gateway.client() for _ in range(CLIENTS)]
    for client in clients:
        client.send(encode_request())
    await eventually(lambda: stuck.inside == CLIENTS)
    for client in clients:
        client.send(encode_request(body=b'"' + b"x" * 200_000 + b'"'))
    await settle(gateway)
    assert gateway.front.ahead_bytes <= most + CLIENTS * AHEAD_READ_BYTES
    honest = await gateway.client()
    assert (await honest.request(path=other(gateway), body=b'"' + b"x" * 200_000 + b'"')).status == 200
    stuck.go_on.set()
    for client in clients:
        assert [(await client.receive()).status for _ in range(2)] == [200] * 2
    assert gateway.front.ahead_bytes == 0


async def test_a_flood_of_unfinished_heads_is_overload_for_long_ones_and_none_for_short_ones(
    gateway: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "AHEAD_MAX_BYTES", 200_000)
    clients = [await gateway.client() for _ in range(CLIENTS)]
    for client in clients:
        client.send(b"POST / HTTP/1.1\r\nHost: h\r\n" + b"X-A: " + b"a" * 30_000)
    refused = [asyncio.create_task(client.receive()) for client in clients]
    done, waiting = await asyncio.wait(refused, timeout=1)
    assert {(task.result().status, task.result().reason) for task in done} == {(503, "Overloaded")}
    assert len(waiting) < CLIENTS
    assert gateway.front.ahead_bytes <= 200_000 + 31_000
    assert (await (await gateway.client()).request()).status == 200
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_client_that_goes_takes_what_it_sent_ahead_with_it(gateway: Stage, stuck: Stuck) -> None:
    client = await gateway.client()
    gone, stays = client, await gateway.client()
    gone.send(encode_request() + encode_request(body=b"x" * 8_000))
    stays.send(encode_request() + encode_request(body=b"x" * 100_000))
    await eventually(lambda: gateway.front.ahead_bytes > 8_000 + AHEAD_READ_BYTES)
    gone.writer.transport.abort()
    await eventually(lambda: len(gateway.front.connections) == 1)
    stays.writer.transport.abort()  # nothing is read there any more: it is noticed with the answer
    stuck.go_on.set()
    await eventually(lambda: not gateway.front.connections)
    assert gateway.front.ahead_bytes == 0


async def test_answers_that_are_not_read_do_not_let_requests_pile_up(gateway: Stage, stuck: Stuck) -> None:
    client = await gateway.client()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    flood = encode_request("GET", "/n", b"", {"Authorization": "-"}) * 60_000  # more than sockets hold of the answers
    client.send(flood)
    await eventually(lambda: any(one.reading_paused for one in gateway.front.connections))
    await settle(gateway)
    assert gateway.front.ahead_bytes < 1024 * 1024
    honest = await gateway.client()
    assert (await honest.request(path=other(gateway))).status == 200


async def test_a_flood_of_one_run_leaves_room_for_the_others_of_its_pod(
    gateway: Stage, stuck: Stuck, runtimed: FakeRuntimed
) -> None:
    """Three times what its owner may take, each with the largest body."""
    body = b'"' + b"x" * (INVOKE_BODY_MAX_BYTES - 2) + b'"'
    clients = [await gateway.client() for _ in range(3 * 64)]
    flood = [asyncio.create_task(client.request(body=body)) for client in clients]
    await eventually(lambda: sum(task.done() for task in flood) >= len(flood) - RUN_INFLIGHT_MAX, within=30)
    path, honest = other(gateway), await gateway.client()
    for _ in range(5):
        assert (await honest.request(path=path, body=body)).status == 200
    stuck.go_on.set()
    answers = await asyncio.gather(*flood)
    assert {(answer.status) for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status == 429)
    assert (refused.reason, refused.headers["retry-after"]) == ("TooManyInvocations", "1")
    assert stuck.most <= RUN_INFLIGHT_MAX
    assert gateway.invoker.body_bytes == 0


async def test_a_place_of_a_run_is_given_back_whatever_becomes_of_its_call(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holding, "RUN_INFLIGHT_MAX", 1)
    client = await gateway.client()
    bad = {"X-Kruntime-Timeout-Ms": "none"}
    for headers, status in (({}, 200), (bad, 400), ({"Content-Type": "a/b"}, 415), ({}, 200)):
        assert (await client.request(headers=headers)).status == status
    client.send(encode_request(body=b"", headers={"Content-Length": "2"}) + b"{")
    await eventually(lambda: gateway.invoker.in_flight == 1)
    client.writer.transport.abort()
    await eventually(lambda: gateway.invoker.in_flight == 0)
    again: Client = await gateway.client()
    assert (await again.request()).status == 200


async def test_a_defect_of_ours_keeps_no_place(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "RUN_INFLIGHT_MAX", 1)

    def broken(*_: object, **__: object) -> bool:
        raise ZeroDivisionError

    client = await gateway.client()
    assert (await client.request()).status == 200
    with monkeypatch.context() as patch:
        patch.setattr(gateway.invoker._dispatcher, "start", broken)
        for _ in range(3):
            assert (await (await gateway.client()).request()).reason == "InternalError"
    assert (await client.request()).status == 200
    assert (gateway.invoker.body_bytes, gateway.invoker.in_flight) == (0, 0)


async def test_what_a_flood_of_bodies_used_is_given_back_once_all_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "BODIES_FLOOD_BYTES", 1000)
    monkeypatch.setattr(ledger, "BODIES_SETTLE_S", 0.01)
    monkeypatch.setattr(ledger, "INFLIGHT_BODY_MAX_BYTES", 1500)
    given: list[int] = []
    books = ledger.BodyLedger(lambda: given.append(books.bytes))
    assert books.take(999)
    books.give(999)
    await asyncio.sleep(0.02)
    assert given == []  # no flood
    assert books.take(900)
    assert books.take(600)
    assert not books.take(1)
    books.give(900)
    books.give(600)
    await eventually(lambda: given == [0])
    assert books.take(10)
    books.give(10)
    await asyncio.sleep(0.02)
    assert given == [0]  # once a flood


async def test_only_so_many_connections_that_have_sent_much_are_kept_open(
    gateway: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LARGE_CONNECTIONS_MAX", 2)
    clients = [await gateway.client() for _ in range(4)]
    small = await gateway.client()
    body = b'"' + b"x" * 50_000 + b'"'
    said = [(await client.request(body=body)).headers.get("connection") for client in clients]
    assert said == [None, None, "close", "close"]
    assert "connection" not in (await small.request()).headers
    for client in clients[2:]:
        assert await client.closed()
    await eventually(lambda: gateway.front.large_connections == 2)
    assert "connection" not in (await clients[0].request(body=body)).headers
    clients[0].close()
    await eventually(lambda: gateway.front.large_connections == 1)
