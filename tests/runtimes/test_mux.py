"""The multiplexed connection: answers, refusals, deadlines, drain, and what is known when a connection is lost."""

from __future__ import annotations

import asyncio
import gc
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runtimes.contract import frames
from runtimes.contract import mux as mux_module
from runtimes.contract.endpoint import Server, connect_unix, peer_credentials
from runtimes.contract.limits import READ_BYTES
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import (
    CallError,
    CallTimeout,
    Connection,
    ConnectionLost,
    Handler,
    Refused,
    Reply,
    Request,
    encode_head,
)


class Peer:
    """A handler with a gate: `echo` answers at once, `hold` waits for the gate, others fail in their way."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.taken: list[Request] = []

    def __call__(self, request: Request) -> object:
        self.taken.append(request)
        if request.method == "quick":
            request.respond(Reply({"quick": True}))
            return None
        return self.answer(request)

    async def answer(self, request: Request) -> Reply:
        match request.method:
            case "hold":
                await self.gate.wait()
            case "fail":
                raise CallError(ErrorHead(reason="HandlerFailed", message="on purpose", details={"a": "b"}))
            case "refuse":
                raise Refused(ErrorHead(reason="Overloaded", message="not now", retry_after_ms=7))
            case "bug":
                raise RuntimeError("secret detail")
        return Reply(request.decode(dict), request.body)


@asynccontextmanager
async def pair(tmp_path: Path, handler: Handler) -> AsyncIterator[tuple[Connection, Server]]:
    server = Server(handler)
    await server.listen_unix(tmp_path / "s")
    connection = await connect_unix(tmp_path / "s")
    try:
        await until(lambda: server.connections)
        yield connection, server
    finally:
        server.close()
        connection.close()
        await connection.closed
        await until(lambda: not server.connections)


@pytest.fixture
def peer() -> Peer:
    return Peer()


async def until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 200_000, 2 * 1024 * 1024])
async def test_head_and_body_come_back_as_they_went(tmp_path: Path, peer: Peer, size: int) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        reply = await connection.call("echo", {"a": 1}, body, timeout=5)
        assert reply.decode(dict) == {"a": 1} and reply.body == body


async def test_a_plain_handler_answers_without_a_task(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        assert (await connection.call("quick", {}, timeout=5)).decode(dict) == {"quick": True}


async def test_errors_keep_reason_message_and_details(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        with pytest.raises(CallError) as failed:
            await connection.call("fail", {}, timeout=5)
        assert failed.value.error == ErrorHead(reason="HandlerFailed", message="on purpose", details={"a": "b"})
        with pytest.raises(Refused) as refused:
            await connection.call("refuse", {}, timeout=5)
        assert refused.value.error.retry_after_ms == 7
        with pytest.raises(CallError) as bug:
            await connection.call("bug", {}, timeout=5)
        assert bug.value.error.reason == "InternalError" and "secret" not in bug.value.error.message


async def test_a_call_that_times_out_tells_the_peer(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        with pytest.raises(CallTimeout):
            await connection.call("hold", {}, timeout=0.02)
        await until(lambda: peer.taken[0].cancelled)
        assert connection.calls_in_flight == 0
        peer.gate.set()
        assert (await connection.call("echo", {}, timeout=5)).body == b""


async def test_the_deadline_travels_and_the_grace_does_not(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        call = asyncio.create_task(connection.call("hold", {}, timeout=3, grace=60))
        await until(lambda: peer.taken)
        left = peer.taken[0].remaining()
        assert left is not None and 2 < left <= 3
        peer.gate.set()
        await call


async def test_a_cancelled_caller_tells_the_peer_and_late_answers_are_dropped(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        call = asyncio.create_task(connection.call("hold", {}, b"x" * 100_000, timeout=5))
        await until(lambda: peer.taken)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: peer.taken[0].cancelled)
        heard: list[str] = []
        peer.taken[0].on_cancel(lambda: heard.append("at once"))
        assert heard == ["at once"]
        (inside,) = server.connections
        assert inside.requests_in_flight == 1  # It goes on (I4).
        peer.gate.set()
        await until(lambda: inside.requests_in_flight == 0)


async def test_a_lost_connection_says_whether_it_was_dispatched(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        call = asyncio.create_task(connection.call("hold", {}, timeout=5))
        await until(lambda: peer.taken)
        next(iter(server.connections)).abort()
        with pytest.raises(ConnectionLost) as lost:
            await call
        assert lost.value.dispatched
        with pytest.raises(ConnectionLost) as again:
            await connection.call("echo", {}, timeout=5)
        assert not again.value.dispatched
        assert not connection.usable and peer.taken[0].cancelled


async def test_what_was_never_written_was_not_dispatched(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        connection.pause_writing()  # As the transport does when the peer reads nothing.
        calls = [asyncio.create_task(connection.call("echo", {}, timeout=5)) for _ in range(3)]
        await asyncio.sleep(0)
        calls[0].cancel()
        await asyncio.sleep(0)
        connection.abort()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert [error.dispatched for error in results[1:] if isinstance(error, ConnectionLost)] == [False, False]
        assert peer.taken == []


async def test_drain_refuses_what_comes_later_and_waits_for_what_is_there(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        call = asyncio.create_task(connection.call("hold", {}, timeout=5))
        await until(lambda: peer.taken)
        draining = asyncio.create_task(server.drain(timeout=5))
        await until(lambda: not connection.usable)
        with pytest.raises(Refused):
            await connection.call("echo", {}, timeout=5)
        peer.gate.set()
        assert (await call).body == b""
        assert await draining
        assert len(peer.taken) == 1


async def test_a_drain_waits_for_a_request_of_which_a_part_has_come(tmp_path: Path, peer: Peer) -> None:
    """It counts as taken: who sent it would have to believe that it has run."""
    async with pair(tmp_path, peer) as (connection, server):
        (theirs,) = server.connections
        body = b"x" * 100_000
        first, second = body[:65536], body[65536:]
        outcome = connection.loop.create_future()
        connection._calls.add(1, outcome.set_result, "echo", 5)
        transport = connection._transport
        assert transport is not None
        transport.write(frames.encode(frames.REQUEST, 1, 5000, encode_head(("echo", {})), len(body), first))
        await until(lambda: len(theirs._partial) == 1)
        draining = asyncio.create_task(server.drain(timeout=5))
        await until(lambda: connection._peer_going_away)
        assert not draining.done()
        transport.write(frames.encode(frames.BODY, 1, 0, b"", 0, second))
        reply = await outcome
        assert isinstance(reply, Reply), reply
        assert reply.body == body
        assert await draining


async def test_a_drain_that_takes_too_long_says_so(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        call = asyncio.create_task(connection.call("hold", {}, timeout=5))
        await until(lambda: peer.taken)
        assert not await server.drain(timeout=0.02)
        with pytest.raises(ConnectionLost) as lost:
            await call
        assert lost.value.dispatched


async def test_a_request_that_crosses_a_goaway_is_refused(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        await connection.call("echo", {}, timeout=5)
        (inside,) = server.connections
        inside._going_away = True  # It decided, and its GOAWAY is still on the way.
        for body in (b"", b"x" * 200_000):
            with pytest.raises(Refused) as refused:
                await connection.call("echo", {}, body, timeout=5)
            assert refused.value.error.reason == "Draining"
        assert len(peer.taken) == 1


async def test_goaway_ends_only_the_calls_above_its_number(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        taken = asyncio.create_task(connection.call("hold", {}, timeout=5))
        await until(lambda: peer.taken)
        (inside,) = server.connections
        inside._handler = lambda request: None  # Takes the next one and says nothing.
        later = asyncio.create_task(connection.call("echo", {}, timeout=5))
        await until(lambda: inside.requests_in_flight == 2)
        inside._outbox.send(frames.GOAWAY, 1, 0, b"", b"")
        with pytest.raises(Refused):
            await later
        peer.gate.set()
        assert (await taken).body == b""


async def test_more_than_the_connections_bound_is_refused_not_queued(
    tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux_module, "CONNECTION_STREAMS_MAX", 3)
    async with pair(tmp_path, peer) as (connection, _server):
        calls = [asyncio.create_task(connection.call("hold", {}, timeout=5)) for _ in range(3)]
        await until(lambda: len(peer.taken) == 3)
        with pytest.raises(Refused) as refused:
            await connection.call("echo", {}, timeout=5)
        assert refused.value.error.reason == "Overloaded"
        peer.gate.set()
        await asyncio.gather(*calls)
        assert (await connection.call("echo", {}, timeout=5)).body == b""


async def test_bytes_in_flight_are_bounded_and_given_back(
    tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        monkeypatch.setattr(mux_module, "CONNECTION_BYTES_MAX", 250_000)
        body = b"x" * 100_000
        calls = [asyncio.create_task(connection.call("hold", {}, body, timeout=5)) for _ in range(2)]
        await until(lambda: len(peer.taken) == 2)
        for size in (60_000, 200_000):
            with pytest.raises(Refused):
                await connection.call("echo", {}, b"x" * size, timeout=5)
        peer.gate.set()
        await asyncio.gather(*calls)
        (inside,) = server.connections
        assert inside._bytes_received == 0
        assert (await connection.call("echo", {}, b"x" * 200_000, timeout=5)).body == b"x" * 200_000


async def test_large_bodies_take_turns(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        order: list[str] = []

        async def call(name: str, size: int) -> None:
            await connection.call("echo", {}, b"x" * size, timeout=5)
            order.append(name)

        await asyncio.gather(call("large", 2_000_000), call("small", 10))
        assert order == ["small", "large"]


async def test_a_message_that_cannot_be_sent_is_refused_here(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        with pytest.raises(Refused) as refused:
            await connection.call("echo", {"a": "x" * 600_000}, timeout=5)
        assert refused.value.error.reason == "RequestTooLarge"
        with pytest.raises(Refused):
            await connection.call("echo", {}, b"x" * (2 * 1024 * 1024 + 1), timeout=5)
        assert peer.taken == [] and connection.usable


async def test_ping_returns_while_a_handler_works(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        call = asyncio.create_task(connection.call("hold", {}, timeout=5))
        await until(lambda: peer.taken)
        await connection.ping(timeout=5)
        peer.gate.set()
        await call


async def test_a_client_takes_no_requests(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, server):
        await connection.call("echo", {}, timeout=5)
        (inside,) = server.connections
        with pytest.raises(Refused):
            await inside.call("anything", {}, timeout=5)


async def test_the_servers_side_may_call_too(tmp_path: Path, peer: Peer) -> None:
    server = Server(peer)
    await server.listen_unix(tmp_path / "s")
    connection = await connect_unix(tmp_path / "s", handler=Peer())
    await connection.call("echo", {}, timeout=5)
    (inside,) = server.connections
    assert (await inside.call("echo", {"from": "server"}, timeout=5)).decode(dict) == {"from": "server"}
    server.close()
    await connection.closed


async def test_a_live_servers_socket_is_not_taken_and_a_dead_ones_is(tmp_path: Path, peer: Peer) -> None:
    first = Server(peer)
    await first.listen_unix(tmp_path / "s")
    with pytest.raises(OSError, match="another server"):
        await Server(peer).listen_unix(tmp_path / "s")
    first.close()
    second = Server(peer)
    await second.listen_unix(tmp_path / "s")
    connection = await connect_unix(tmp_path / "s")
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    assert peer_credentials(connection)[0] > 0
    connection.close()
    await connection.closed
    second.close()


async def test_a_peer_that_is_not_wanted_is_dropped(tmp_path: Path, peer: Peer) -> None:
    def nobody(connection: Connection) -> None:
        raise PermissionError("not you")

    server = Server(peer, on_connect=nobody)
    await server.listen_unix(tmp_path / "s")
    connection = await connect_unix(tmp_path / "s")
    await asyncio.wait_for(connection.closed, 5)
    assert server.connections == set()
    server.close()


async def test_a_call_without_a_task_ends_once_in_its_callback(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        ended: asyncio.Queue[object] = asyncio.Queue()
        for method in ("echo", "fail", "refuse", "hold"):
            connection.start(method, {"m": method}, b"body", ended.put_nowait, timeout=0.05)
            assert ended.empty()
        async with asyncio.timeout(5):
            outcomes = [await ended.get() for _ in range(4)]
        assert {type(outcome) for outcome in outcomes} == {Reply, CallError, Refused, CallTimeout}
        assert connection.calls_in_flight == 0


async def test_a_callback_that_fails_costs_nobody_else_an_answer(
    tmp_path: Path, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(outcome: object) -> None:
        raise ZeroDivisionError

    async with pair(tmp_path, peer) as (connection, _):
        connection.start("quick", {}, b"", broken, timeout=5)
        assert (await connection.call("quick", {}, timeout=5)).decode(dict) == {"quick": True}
    assert "failed to take its outcome" in caplog.text


async def test_what_is_given_up_is_not_told(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        ended: list[object] = []
        stream = connection.start("hold", {}, b"", ended.append, timeout=5)
        await until(lambda: peer.taken)
        connection.give_up(stream)
        connection.give_up(stream)
        await until(lambda: peer.taken[0].cancelled)
        peer.gate.set()
        await connection.call("quick", {}, timeout=5)
        assert ended == []


async def test_a_batch_that_was_not_written_was_not_dispatched(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        ended: list[ConnectionLost] = []
        for _ in range(3):  # the first leaves at once, the others at the end of this turn of the loop
            connection.start("hold", {}, b"", ended.append, timeout=5)  # type: ignore[arg-type]
        transport = connection._transport
        connection.connection_lost(None)
        assert [loss.dispatched for loss in ended] == [True, False, False]
        assert transport is not None
        transport.abort()


async def test_many_calls_of_one_turn_leave_in_one_write(tmp_path: Path, peer: Peer) -> None:
    async with pair(tmp_path, peer) as (connection, _):
        transport, writes = connection._outbox._transport, []
        assert transport is not None

        class Counting:
            def write(self, data: bytes) -> None:
                writes.append(len(data))
                transport.write(data)

        connection._outbox._transport = Counting()  # type: ignore[assignment]
        replies = await asyncio.gather(*(connection.call("quick", {}, timeout=5) for _ in range(20)))
        assert len(replies) == 20
        assert len(writes) == 2


async def test_a_dial_that_is_cancelled_is_cancelled_also_in_the_moment_in_which_it_fails(tmp_path: Path) -> None:
    """A loop that dials for ever would never end otherwise."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    cancelled = 0
    for turns in range(12):
        for _ in range(20):
            dialling = asyncio.create_task(connect_unix(path))
            for _ in range(turns):
                await asyncio.sleep(0)
            if dialling.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await dialling
                cancelled += 1
            else:
                assert isinstance(dialling.exception(), ConnectionRefusedError)
    assert cancelled > 0


async def test_a_connection_that_has_ended_keeps_no_buffer_until_the_collector_comes(
    tmp_path: Path, peer: Peer
) -> None:
    """A process that is probed every few seconds collects its garbage once in hours."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        async with pair(tmp_path, peer):
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(20):
                probe = await connect_unix(tmp_path / "s")
                await probe.ping(timeout=5)
                probe.close()
                await probe.closed
            kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < 4 * READ_BYTES, kept
