"""HTTP on the socket: order, keep-alive, early answers, slow and broken clients."""

import asyncio

import pytest

from dataplane.gateway import connection, exchange, front, invoke, ledger
from dataplane.wire.messages import InvokeReply, InvokeRequest
from runtimes.contract.mux import Reply, Request
from tests.gateway.stage import PATH, FakeRuntimed, Stage, encode_request
from tests.kit.waiting import eventually


async def test_a_connection_serves_request_after_request(gateway: Stage) -> None:
    client = await gateway.client()
    for _ in range(3):
        response = await client.request()
        assert "connection" not in response.headers
    assert (await client.request(headers={"Connection": "close"})).headers["connection"] == "close"
    assert await client.closed()


async def test_http_1_0_is_closed_unless_it_asks_to_stay(gateway: Stage) -> None:
    client = await gateway.client()
    old = encode_request(headers={"Connection": "keep-alive"}).replace(b"HTTP/1.1", b"HTTP/1.0")
    client.send(old)
    assert (await client.receive()).headers["connection"] == "keep-alive"
    client.send(old.replace(b"Connection: keep-alive\r\n", b""))
    assert (await client.receive()).headers["connection"] == "close"
    assert await client.closed()


async def test_pipelined_requests_are_answered_in_order(gateway: Stage, runtimed: FakeRuntimed) -> None:
    first = asyncio.Event()

    async def slow_first(request: Request, head: InvokeRequest) -> Reply:
        if request.body == b"0":
            await first.wait()
        return Reply(InvokeReply(status=200), request.body)

    runtimed.handler = slow_first
    client = await gateway.client()
    client.send(b"".join(encode_request(body=str(n).encode()) for n in range(10)))
    await runtimed.called.wait()
    first.set()
    assert [(await client.receive()).body for _ in range(10)] == [str(n).encode() for n in range(10)]


async def test_head_gets_the_length_and_no_body(gateway: Stage) -> None:
    client = await gateway.client()
    head = await client.request("HEAD", PATH, b"")
    get = await client.request("GET", PATH, b"")
    assert (head.status, head.body) == (405, b"")
    assert head.headers["allow"] == get.headers["allow"] == "POST"
    assert int(head.headers["content-length"]) == len(get.body)


async def test_an_absolute_target_and_a_query_are_the_same_request(gateway: Stage) -> None:
    client = await gateway.client()
    for target in (f"https://elsewhere:1{PATH}", f"HTTP://x{PATH}?a=b", f"{PATH}?%2F", f"{PATH}?"):
        assert (await client.request(path=target)).status == 200
    assert (await client.request(path="https://x")).status == 404


async def test_a_malformed_request_is_answered_and_the_connection_ends(gateway: Stage) -> None:
    client = await gateway.client()
    client.send(encode_request() + b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + encode_request())
    assert (await client.receive()).status == 200
    response = await client.receive()
    assert (response.status, response.reason) == (400, "InvalidRequest")
    assert response.headers["connection"] == "close"
    assert await client.closed()


async def test_a_client_that_asks_is_told_to_continue_only_when_its_body_is_wanted(gateway: Stage) -> None:
    client = await gateway.client()
    expecting = encode_request(body=b"", headers={"Expect": "100-continue", "Content-Length": "2"})
    client.send(expecting)
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"{}")
    assert (await client.receive()).status == 200
    client.send(expecting.replace(b"Bearer good", b"Bearer bad"))
    response = await client.receive()
    assert (response.status, response.interim) == (401, [])
    assert response.headers["connection"] == "close"


async def test_a_body_that_comes_along_is_not_asked_for(gateway: Stage) -> None:
    client = await gateway.client()
    response = await client.request(headers={"Expect": "100-continue"})
    assert (response.status, response.interim) == (200, [])


async def test_a_chunked_body_is_the_same_body(gateway: Stage) -> None:
    client = await gateway.client()
    head = encode_request(body=b"", headers={"Content-Length": "-", "Transfer-Encoding": "chunked"})
    for byte in head + b'4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n':
        client.send(bytes((byte,)))
    assert (await client.receive()).body == b'{"a":1}'


async def test_too_much_is_refused_before_it_is_read_or_as_soon_as_it_is_seen(gateway: Stage) -> None:
    client = await gateway.client()
    client.send(encode_request(body=b"", headers={"Content-Length": "1048577"}))
    response = await client.receive()
    assert (response.status, response.reason) == (413, "RequestTooLarge")
    assert "1048577" in response.json["message"]
    assert "1048576" in response.json["message"]
    assert response.headers["connection"] == "close"
    client = await gateway.client()
    client.send(encode_request(body=b"", headers={"Content-Length": "-", "Transfer-Encoding": "chunked"}))
    for _ in range(17):
        client.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    assert (await client.receive()).reason == "RequestTooLarge"


async def test_a_body_is_not_read_ahead_of_the_decision_about_its_caller(gateway: Stage) -> None:
    gateway.kube.answering.clear()
    body = b'"' + b"x" * 900_000 + b'"'
    client = await gateway.client()
    client.send(encode_request(body=body))
    await eventually(lambda: len(gateway.kube.asked) > 0)
    (carrier,) = gateway.front.connections
    await eventually(lambda: carrier.reading_paused)
    request = carrier.current
    assert isinstance(request, exchange.Request)
    assert 64 * 1024 <= request.payload.body.size < 700_000
    gateway.kube.answering.set()
    assert (await client.receive()).body == body
    assert (await client.request(body=body)).body == body
    refused = await client.request(body=body, headers={"Authorization": "Bearer bad"})
    assert (refused.status, refused.headers["connection"]) == (401, "close")
    assert gateway.invoker.body_bytes == 0


async def test_bodies_in_flight_are_bounded_as_they_arrive(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "INFLIGHT_BODY_MAX_BYTES", 1000)
    first, second = await gateway.client(), await gateway.client()
    raw = encode_request(body=b"x" * 900)
    first.send(raw[:-1])
    await eventually(lambda: gateway.invoker.body_bytes == 899)
    response = await second.request(body=b"x" * 102)
    assert (response.status, response.reason) == (503, "Overloaded")
    first.send(b"x")
    assert (await first.receive()).status == 200
    assert (await second.request(body=b"x" * 102)).status == 200
    assert gateway.invoker.body_bytes == 0


async def test_more_calls_in_flight_than_allowed_are_overload(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invoke, "INFLIGHT_MAX", 1)
    finish = asyncio.Event()

    async def slow(request: Request, head: InvokeRequest) -> Reply:
        await finish.wait()
        return Reply(InvokeReply(status=200), b"{}")

    runtimed.handler = slow
    first, second = await gateway.client(), await gateway.client()
    waiting = asyncio.create_task(first.request())
    await runtimed.called.wait()
    response = await second.request()
    assert (response.status, response.reason) == (503, "Overloaded")
    assert response.headers["retry-after"] == "1"
    finish.set()
    assert (await waiting).status == 200


async def test_a_bad_chunk_is_invalid_and_ends_the_connection(gateway: Stage, runtimed: FakeRuntimed) -> None:
    client = await gateway.client()
    client.send(encode_request(body=b"", headers={"Content-Length": "-", "Transfer-Encoding": "chunked"}) + b"zz\r\n")
    response = await client.receive()
    assert (response.status, response.reason) == (400, "InvalidRequest")
    assert await client.closed()
    assert runtimed.seen == []


async def test_the_rest_of_a_small_body_behind_an_early_answer_is_read_and_the_connection_stays(
    gateway: Stage,
) -> None:
    client = await gateway.client()
    whole = encode_request(body=b"x" * 1000, headers={"Authorization": "-"})
    client.send(whole[:-500])
    response = await client.receive()
    assert response.status == 401
    assert "connection" not in response.headers
    client.send(whole[-500:])
    assert (await client.request()).status == 200


async def test_a_long_rest_behind_an_early_answer_costs_the_connection_but_not_the_answer(gateway: Stage) -> None:
    client = await gateway.client()
    client.send(encode_request(body=b"", headers={"Authorization": "-", "Content-Length": "1000000"}) + b"x" * 10)
    response = await client.receive()
    assert (response.status, response.headers["connection"]) == (401, "close")
    assert await client.closed()


async def test_a_slow_head_and_a_slow_body_are_timed_out(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr(exchange, "BODY_TIMEOUT_S", 0.05)
    client = await gateway.client()
    assert (await client.request()).status == 200
    client.send(b"POST /x HTT")
    response = await client.receive()
    assert (response.status, response.reason) == (408, "RequestTimeout")
    assert await client.closed()
    client = await gateway.client()
    client.send(encode_request(body=b"", headers={"Content-Length": "2"}) + b"{")
    response = await client.receive()
    assert (response.status, response.reason) == (408, "RequestTimeout")
    assert response.headers["connection"] == "close"


async def test_a_head_in_time_stops_its_clock(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.2)
    client = await gateway.client()
    raw = encode_request()
    client.send(raw[:20])
    await asyncio.sleep(0.05)
    client.send(raw[20:])
    assert (await client.receive()).status == 200
    await asyncio.sleep(0.25)  # longer than the clock that must not run any more
    assert (await client.request()).status == 200


async def test_a_client_that_goes_leaves_its_call_running_and_frees_its_place_once(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    finish, finished = asyncio.Event(), asyncio.Event()

    async def slow(request: Request, head: InvokeRequest) -> Reply:
        await finish.wait()
        assert not request.cancelled
        finished.set()
        return Reply(InvokeReply(status=200), b"{}")

    runtimed.handler = slow
    client = await gateway.client()
    client.send(encode_request())
    await runtimed.called.wait()
    client.writer.transport.abort()
    await eventually(lambda: not gateway.front.connections or gateway.invoker.in_flight == 1)
    await asyncio.sleep(0.01)
    assert gateway.invoker.in_flight == 1
    finish.set()
    async with asyncio.timeout(5):
        await finished.wait()
    await eventually(lambda: gateway.invoker.in_flight == 0)
    assert (await (await gateway.client()).request()).status == 200


async def test_a_client_that_goes_within_its_body_frees_its_place(gateway: Stage) -> None:
    client = await gateway.client()
    client.send(encode_request(body=b"", headers={"Content-Length": "2"}) + b"{")
    await eventually(lambda: gateway.invoker.in_flight == 1)
    client.writer.transport.abort()
    await eventually(lambda: gateway.invoker.in_flight == 0)


async def test_a_draining_front_answers_everything_and_says_close(gateway: Stage, runtimed: FakeRuntimed) -> None:
    client = await gateway.client()
    assert (await client.request()).status == 200
    gateway.front.draining = True
    response = await client.request()
    assert (response.status, response.headers["connection"]) == (200, "close")
    assert await client.closed()
    assert await gateway.invoker.idle(timeout_s=1)


async def test_a_defect_of_ours_is_one_answer_and_says_nothing_about_itself(
    gateway: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(gateway.projection, "look_up", broken)
    client = await gateway.client()
    response = await client.request()
    assert (response.status, response.reason) == (500, "InternalError")
    assert "secret" not in response.body.decode()
    assert "an invocation met a defect" in caplog.text
    assert "good" not in caplog.text


async def test_one_connection_too_many_takes_the_place_of_the_idlest_and_of_none_in_use(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(front, "EVICTED_AT_ONCE", 1)
    finish = asyncio.Event()

    async def slow(request: Request, head: InvokeRequest) -> Reply:
        await finish.wait()
        return Reply(InvokeReply(status=200), b"{}")

    idle, used = await gateway.client(), await gateway.client()
    for client in (idle, used):
        assert (await client.request()).status == 200
        now = gateway.front.loop.time()
        await eventually(lambda now=now: gateway.front.loop.time() > now + 0.002)  # a loop's time has milliseconds
    another = await gateway.client()
    assert await idle.closed()
    runtimed.handler = slow
    waiting = [asyncio.create_task(client.request()) for client in (used, another)]
    await eventually(lambda: gateway.invoker.in_flight == 2)
    assert await (await gateway.client()).closed()
    finish.set()
    assert [response.status for response in await asyncio.gather(*waiting)] == [200, 200]
