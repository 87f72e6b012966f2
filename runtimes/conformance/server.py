"""Frames and the server itself: C1 to C9."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from pathlib import Path

import msgspec

from runtimes.conformance.kit import Bench, Server, alive, descendants, failing, folder_mode, until, until_free
from runtimes.contract import messages as m
from runtimes.contract.mux import ConnectionLost

HEADER = struct.Struct(">IBQIII")


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes, bytes]:
    """(kind, stream, head, chunk)"""
    length, kind, stream, _, head_size, _ = HEADER.unpack(await reader.readexactly(HEADER.size))
    rest = await reader.readexactly(length + 4 - HEADER.size)
    return kind, stream, rest[:head_size], rest[head_size:]


def request_frame(stream: int, method: str, head: object, body: bytes = b"") -> bytes:
    encoded = msgspec.msgpack.encode([method, head])
    size = HEADER.size - 4 + len(encoded) + len(body)
    return HEADER.pack(size, 1, stream, 5000, len(encoded), len(body)) + encoded + body


async def test_calls_on_one_connection_do_not_wait_for_one_another(bench: Bench) -> None:
    """C1"""
    epoch, registration = await bench.register("wait")
    started, end = bench.tmp / "started", bench.tmp / "until"
    call = asyncio.create_task(bench.invoke(registration, {"started": str(started), "until": str(end)}))
    await until(started.exists, "the handler started")
    assert (await bench.client.alive()).instance_id
    end.touch()
    await call
    await bench.unregister(epoch)


async def test_a_small_answer_does_not_wait_for_large_ones(bench: Bench) -> None:
    """C2"""
    _, large = await bench.register("just-fits")
    answers: list[str] = []

    async def note(name: str, work: asyncio.Task[object]) -> None:
        await work
        answers.append(name)

    calls = [
        note("large", asyncio.create_task(bench.invoke(large))),
        note("small", asyncio.create_task(bench.client.alive())),
    ]
    await asyncio.gather(*calls)
    assert answers == ["small", "large"]


async def test_the_bytes_on_the_wire_are_those_of_the_document(bench: Bench) -> None:
    """C1, C4"""
    reader, writer = await asyncio.open_unix_connection(os.fspath(bench.server.socket))
    writer.write(request_frame(1, "Alive", {}) + HEADER.pack(HEADER.size - 4, 8, 0, 0, 0, 0))
    answers = [await read_frame(reader) for _ in range(2)]
    kinds = {kind for kind, *_ in answers}
    assert kinds == {2, 9}
    alive_answer = next(answer for answer in answers if answer[0] == 2)
    assert alive_answer[1] == 1 and "instanceId" in msgspec.msgpack.decode(alive_answer[2])
    writer.close()
    await writer.wait_closed()


async def test_a_broken_frame_ends_its_connection_only(bench: Bench) -> None:
    """C3"""
    broken = [
        HEADER.pack(HEADER.size - 4, 77, 1, 0, 0, 0),
        HEADER.pack(0xFFFFFFFF, 1, 1, 0, 10, 0),
        HEADER.pack(HEADER.size, 1, 1, 0, 0xFFFFFFF0, 0),
        HEADER.pack(3, 1, 1, 0, 0, 0),
        HEADER.pack(HEADER.size - 4 + 3, 1, 1, 0, 3, 0) + b"\xc1\xc1\xc1",
        HEADER.pack(HEADER.size - 4 + 3, 1, 1, 0, 0, 1) + b"abc",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"x" * 100,
    ]
    for data in broken:
        reader, writer = await asyncio.open_unix_connection(os.fspath(bench.server.socket))
        writer.write(data)
        async with asyncio.timeout(5):
            assert await reader.read() == b"", data
        writer.close()
        await writer.wait_closed()
    assert (await bench.client.alive()).instance_id


async def test_the_call_of_a_caller_that_went_away_finishes_and_frees_its_slot(bench: Bench) -> None:
    """C5"""
    _, registration = await bench.register("wait")
    started, end = bench.tmp / "started", bench.tmp / "until"
    other = Bench(await bench.server.connect(), bench.server, bench.tmp)
    call = asyncio.create_task(other.invoke(registration, {"started": str(started), "until": str(end)}))
    await until(started.exists, "the handler started")
    other.client.connection.abort()
    try:
        await call
    except ConnectionLost as lost:
        assert lost.dispatched
    async with failing("TooManyInvocations"):
        await bench.invoke(registration, {})
    end.touch()
    await until_free(bench, registration)
    assert "pid" in (await bench.invoke(registration, {"started": str(started), "until": str(end)}))["outputs"]


async def test_heads_that_do_not_fit_get_an_error_with_a_message(bench: Bench) -> None:
    """C6"""
    call = bench.client.connection.call
    for head in ({}, {"versions": "x"}, {"versions": [1.5]}, 5):
        async with failing("InvalidArgument"):
            await call("Hello", head, timeout=5)
    async with failing("UnknownMethod"):
        await call("NoSuchMethod", {}, timeout=5)
    reply = await call("Alive", {"aKeyOfTheFuture": 1}, timeout=5)
    assert reply.decode(m.AliveReply).instance_id
    good = bench.function("echo")
    for change in (
        {"concurrency": 0},
        {"concurrency": 65},
        {"handler": "nodot"},
        {"env": {"A=B": "x"}},
        {"directory": "/etc"},
    ):
        head = msgspec.to_builtins(good) | change
        head["digest"] = m.register_digest(
            epoch=good.epoch,
            handler=head["handler"],
            env=head.get("env", {}),
            idle_timeout_ms=None,
            concurrency=head.get("concurrency", 1),
        )
        async with failing("InvalidArgument"):
            await call("RegisterFunction", head, timeout=5)


async def test_hello_tells_who_the_server_is_and_what_it_holds(bench: Bench) -> None:
    """C7"""
    epoch, registration = await bench.register("echo")
    hello = await bench.client.hello()
    assert hello.version == 1 and hello.language and hello.default_script == bench.dialect.file()
    assert bench.dialect.name in ("", hello.language)
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000
    assert 0 < hello.started_boottime_us < now
    mine = [held for held in hello.held if held.epoch == epoch]
    assert mine == [m.HeldEpoch(epoch=epoch, kind="function", open=True, registration_id=registration)]
    async with failing("UnsupportedVersion"):
        await bench.client.connection.call("Hello", {"versions": [99]}, timeout=5)


async def test_a_condemned_server_fails_its_probe(own: Bench) -> None:
    """C8"""
    first = (await own.client.alive()).instance_id
    async with failing("Unhealthy"):
        await own.client.alive(condemn="a release hangs")
    async with failing("Unhealthy") as caught:
        await own.client.alive()
    assert caught[0].message == "a release hangs"
    own.server.kill()
    own.server.start()
    client = await own.server.connect()
    assert (await client.alive()).instance_id != first
    client.close()
    await client.connection.closed


async def test_nothing_outlives_a_server_that_is_killed(fresh: Server, tmp_path: Path) -> None:
    """C9"""
    bench = Bench(await fresh.connect(), fresh, tmp_path)
    await bench.register("echo")
    _, registration = await bench.register("stray")
    started = tmp_path / "started"
    call = asyncio.create_task(bench.invoke(registration, {"started": str(started)}, timeout=60))
    await until(lambda: started.exists() and started.read_text(), "the handler started")
    if bench.dialect.tasks:  # A Runtime may leave them out.
        await bench.client.execute_task(bench.task("sleep", env={"MARK": str(tmp_path / "mark")}))
        await until((tmp_path / "mark").exists, "the task started")
    below = descendants(fresh.pid)
    assert len(below) >= 5, below
    homes = fresh.homes()
    assert len(homes) == (3 if bench.dialect.tasks else 2)
    fresh.kill()
    await until(lambda: not [pid for pid in below if alive(pid)], f"every one of {below} is gone")
    await asyncio.gather(call, return_exceptions=True)
    fresh.start()
    client = await fresh.connect()
    assert (await client.hello()).held == ()
    assert fresh.homes() == []
    assert all(folder_mode(str(home.parent / "src")) is not None for home in homes)
    client.close()
    await client.connection.closed


async def test_a_server_that_is_stopped_leaves_nothing_and_exits_0(fresh: Server, tmp_path: Path) -> None:
    """C9"""
    bench = Bench(await fresh.connect(), fresh, tmp_path)
    await bench.register("echo")
    below = descendants(fresh.pid)
    bench.client.close()
    assert await asyncio.to_thread(fresh.stop) == 0
    assert not [pid for pid in below if alive(pid)]
    assert not fresh.socket.exists()
