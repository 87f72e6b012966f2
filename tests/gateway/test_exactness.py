"""HTTP at its edges, on real sockets: half-closed, idle, deaf and smuggling clients; IPv6; injection."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dataplane.gateway import connection
from dataplane.gateway.limits import KEEPALIVE_S
from dataplane.wire.messages import Cause, InvokeReply, InvokeRequest
from runtimes.contract.mux import Reply, Request
from tests.gateway.stage import PATH, Client, FakeRuntimed, Stage, encode_request
from tests.kit.waiting import eventually


@asynccontextmanager
async def listening(gateway: Stage, host: str) -> AsyncIterator[Client]:
    """A client of the same front over plain TCP."""
    server = await asyncio.get_running_loop().create_server(gateway.front, host, 0)
    reader, writer = await asyncio.open_connection(host, server.sockets[0].getsockname()[1])
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        server.close()


class Slow:
    """A handler that waits for the calls with body 0."""

    def __init__(self, runtimed: FakeRuntimed) -> None:
        self.go_on = asyncio.Event()
        runtimed.handler = self

    async def __call__(self, request: Request, head: InvokeRequest) -> Reply:
        if request.body == b"0":
            await self.go_on.wait()
        return Reply(InvokeReply(status=200), request.body)


async def test_a_client_that_closes_its_half_is_still_answered(gateway: Stage, runtimed: FakeRuntimed) -> None:
    slow = Slow(runtimed)
    async with listening(gateway, "127.0.0.1") as client:
        client.send(encode_request(body=b"0") + encode_request(body=b"1"))
        client.writer.write_eof()
        await runtimed.called.wait()
        slow.go_on.set()
        assert [(await client.receive()).body for _ in range(2)] == [b"0", b"1"]
        assert await client.closed()


async def test_a_client_that_closes_its_half_and_asks_nothing_is_closed(gateway: Stage) -> None:
    async with listening(gateway, "127.0.0.1") as client:
        client.writer.write_eof()
        assert await client.closed()


async def test_ipv6_is_served(gateway: Stage) -> None:
    async with listening(gateway, "::1") as client:
        assert (await client.request(headers={"Host": "[::1]:8443"})).status == 200


async def test_an_idle_connection_is_closed_in_time_and_a_busy_one_is_not(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KEEPALIVE_S >= 120
    monkeypatch.setattr(connection, "KEEPALIVE_S", 0.1)
    slow = Slow(runtimed)
    silent, idle, busy = [await gateway.client() for _ in range(3)]
    assert (await idle.request()).status == 200
    busy.send(encode_request(body=b"0"))
    assert await silent.closed()
    assert await idle.closed()
    slow.go_on.set()
    assert (await busy.receive()).status == 200


async def test_a_client_that_does_not_read_is_dropped(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WRITE_TIMEOUT_S", 0.1)
    client = await gateway.client()
    body = b'"' + b"x" * 1_000_000 + b'"'
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send(encode_request(body=body) * 20)
    await eventually(lambda: len(runtimed.seen) > 0)
    await eventually(lambda: not gateway.front.connections)
    await eventually(lambda: gateway.invoker.in_flight == 0)
    assert gateway.invoker.body_bytes == 0


async def test_what_waits_behind_a_slow_call_is_not_a_slow_head(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    slow = Slow(runtimed)
    client = await gateway.client()
    client.send(b"".join(encode_request(body=str(n).encode()) for n in range(6)))
    await runtimed.called.wait()
    await asyncio.sleep(0.15)  # longer than a head may take
    slow.go_on.set()
    assert [(await client.receive()).body for _ in range(6)] == [str(n).encode() for n in range(6)]


async def test_answers_that_need_no_waiting_are_given_in_order_however_many_come_at_once(gateway: Stage) -> None:
    client = await gateway.client()
    one, other = encode_request("GET", "/livez", b""), encode_request("GET", "/nowhere", b"")
    client.send((one + other) * 500)
    assert [(await client.receive()).status for _ in range(1000)] == [200, 404] * 500


@pytest.mark.parametrize("path", [PATH.replace("/runs/", "%2Fruns%2F"), "/v1/./" + PATH[4:], "/v1/../v1" + PATH[3:]])
async def test_nothing_in_a_path_is_decoded_or_folded(gateway: Stage, path: str) -> None:
    response = await (await gateway.client()).request(path=path)
    assert (response.status, response.reason) == (404, "NotFound")


async def test_a_runtimed_cannot_write_header_lines(gateway: Stage, runtimed: FakeRuntimed) -> None:
    async def hostile(request: Request, head: InvokeRequest) -> Reply:
        timing = (("a\r\nSet-Cookie: x=1\r\n\r\n", 1.0), ("b\x00é", 2.0))
        return Reply(InvokeReply(status=200, server_timing=timing), b"{}")

    runtimed.handler = hostile
    response = await (await gateway.client()).request()
    assert response.status == 200
    assert "set-cookie" not in response.headers
    assert response.body == b"{}"


async def test_what_a_runtimed_says_of_a_call_is_bounded_whatever_it_says(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    async def boast(request: Request, head: InvokeRequest) -> Reply:
        timing = tuple((f"hop{number}" + "x" * number, 1.0) for number in range(500))
        return Reply(InvokeReply(status=200, server_timing=timing), b"{}")

    async def complain(request: Request, head: InvokeRequest) -> Reply:
        causes = tuple(Cause("c", "m" * 9_000) for _ in range(40))
        return Reply(
            InvokeReply(status=503, reason="WorkerStarting", message="m" * 90_000, retry_after_s=10**9, causes=causes)
        )

    async def promise(request: Request, head: InvokeRequest) -> Reply:
        return Reply(InvokeReply(status=429, reason="TooManyInvocations", retry_after_s=-7))

    client = await gateway.client()
    runtimed.handler = boast
    assert len((await client.request()).headers["server-timing"]) < 600
    runtimed.handler = complain
    response = await client.request()
    assert (response.reason, response.headers["retry-after"]) == ("WorkerStarting", "60")
    assert len(response.body) < 100_000
    runtimed.handler = promise
    response = await client.request()
    assert (response.reason, response.headers["retry-after"]) == ("TooManyInvocations", "1")


@pytest.mark.parametrize(
    "fields",
    [
        {"Transfer-Encoding": "chunked"},
        {"Content-Length": "-", "Transfer-Encoding": "chunked, chunked"},
        {"Content-Length": "+2"},
        {"Content-Length": "2, 2"},
        {"Content-Length": "0x2"},
        {"Content-Length": "2\x0b"},
        {"Content-Length": "-", "Transfer-Encoding": "\x0bchunked"},
        {"Content-Length": "-", "Transfer-Encoding ": "chunked"},
        {"Content-Length": "-", "X: y\nTransfer-Encoding": "chunked"},
        {"X-Kruntime-Invocation-ID": "a\rb"},
    ],
)
async def test_what_two_readers_could_read_differently_is_refused_and_ends_the_connection(
    gateway: Stage, runtimed: FakeRuntimed, fields: dict[str, str]
) -> None:
    client = await gateway.client()
    client.send(encode_request(headers=fields) + encode_request())
    response = await client.receive()
    assert (response.status, response.reason) == (400, "InvalidRequest")
    assert response.headers["connection"] == "close"
    assert await client.closed()
    assert runtimed.seen == []
