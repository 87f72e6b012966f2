"""Bad peers on the internal wire: recorded sessions, broken in every way that a seed can think of.

    scripts/fuzz-wire [--frames 1000000] [--seed N]

Both roles are fed without sockets: a `Connection` that serves, with runtimed's real `Serving` behind it, and one that
calls, with the gateway's real reading of outcomes. What must hold, whatever comes: nothing is raised into the
transport, nothing is logged as an error, every call ends exactly once, what a connection keeps stays within its bounds,
and another connection of the same process still answers. `test_fuzz` runs a small version of each part.
"""

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, cast

import uvloop

from dataplane.gateway.forward import outcome_of
from dataplane.runtimed.gate import Gate
from dataplane.runtimed.local import Local, Stage
from dataplane.runtimed.routing import Here
from dataplane.runtimed.server_link import ServerLink
from dataplane.runtimed.serving import Serving
from dataplane.wire.identity import GatewayIdentity
from dataplane.wire.messages import METHOD_INVOKE, InvokeReply, InvokeRequest
from dataplane.wire.pool import Pool
from runtimes.contract import frames
from runtimes.contract import messages as m
from runtimes.contract.frames import Kind
from runtimes.contract.limits import (
    BODY_MAX_BYTES,
    CHUNK_MAX_BYTES,
    CONNECTION_BYTES_MAX,
    CONNECTION_STREAMS_MAX,
    HEAD_MAX_BYTES,
)
from runtimes.contract.mux import Connection, Done, Outcome, Reply, encode_head
from statemachine.ownership import Projection
from statemachine.run import Epoch, Mode, PodUID, RunUID

NAMESPACE: Final = "default"
RUNTIME: Final = "python"
POD: Final = PodUID("pod-1")
RUN: Final = RunUID("run-1")
BIG: Final = b"x" * (CHUNK_MAX_BYTES + 1000)


class Wire:
    """A transport in memory: what was written, and whether the connection was given up."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.ended = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.ended = True

    abort = close

    def set_write_buffer_limits(self, high: int) -> None:
        return None

    def get_extra_info(self, name: str) -> Any:
        return None


class Errors(logging.Handler):
    """Collects what is logged as an error: a bad peer is worth a warning, never a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


class Facts:
    """One open function here, and nothing else in the world."""

    def __init__(self) -> None:
        self.projection = Projection()
        self.open_gate = Gate()
        self._local = Local(Epoch(RUN, 1, POD), Mode.FUNCTION, Stage.OPEN, registration_id="r")

    def here(self, uid: str) -> Here:
        local = self._local if uid == RUN else None
        return Here(pod_uid=POD, local=local, run=None, fresh=True, draining=False)

    def gate(self, local: Local) -> Gate | None:
        return self.open_gate

    async def fact_of(self, uid: str, *, timeout: float) -> bool:
        return False


class RuntimeServer:
    """Answers every invocation with its body, at the next turn of the loop."""

    @property
    def client(self) -> "RuntimeServer":
        return self

    def start_invocation(self, request: m.InvokeRequest, body: bytes, done: Done, *, timeout: float) -> None:
        asyncio.get_running_loop().call_soon(done, Reply(m.InvokeReply(worker_us=7), body))


def serving_handler(facts: Facts) -> Serving:
    """runtimed's port, with that one function."""
    link = cast(ServerLink, RuntimeServer())
    return Serving(facts, link, Pool(cast(Any, None)), namespace=NAMESPACE, runtime=RUNTIME)


def open_connection(serving: Serving | None) -> tuple[Connection, Wire]:
    """A connection that serves (or, without a handler, one that calls) and its wire."""
    connection = Connection(handler=serving.handle if serving else None, initiator=serving is None)
    wire = Wire()
    connection.connection_made(cast(asyncio.BaseTransport, wire))
    connection.peer = GatewayIdentity()
    return connection, wire


def feed(connection: Connection, data: bytes) -> None:
    """Hand bytes to a connection as a transport does."""
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def invoke_head(uid: str = RUN) -> bytes:
    """The head of an Invoke request."""
    head = InvokeRequest(
        namespace=NAMESPACE, runtime=RUNTIME, run_uid=uid, invocation_id="i-1", deadline_ms=30_000, user="jane"
    )
    return encode_head((METHOD_INVOKE, head))


def request(stream: int, body: bytes = b"{}", uid: str = RUN) -> list[bytes]:
    """The frames of one Invoke."""
    return message(frames.REQUEST, stream, 30_000, invoke_head(uid), body)


def message(kind: int, stream: int, value: int, head: bytes, body: bytes) -> list[bytes]:
    """A message as frames."""
    first = frames.encode(kind, stream, value, head, len(body), body[:CHUNK_MAX_BYTES])
    rest = range(CHUNK_MAX_BYTES, len(body), CHUNK_MAX_BYTES)
    return [first, *(frames.encode(frames.BODY, stream, 0, b"", 0, body[at : at + CHUNK_MAX_BYTES]) for at in rest)]


def control(kind: Kind, stream: int = 0) -> bytes:
    return frames.encode(kind, stream, 0, b"", 0, b"")


def caller_session() -> list[bytes]:
    """What a gateway sends: small and large calls, unknown Runs, a cancelled call, pings, a body it gives up."""
    large = request(5, BIG)
    return [
        *request(1),
        *request(3, b'{"a":1}', uid="nobody"),
        large[0],
        control(Kind.PING),
        *request(7, b""),
        *large[1:],
        control(Kind.CANCEL, 7),
        *request(9, BIG)[:1],
        control(Kind.CANCEL, 9),
        *request(11),
    ]


def server_session() -> list[bytes]:
    """What a runtimed sends to the calls 1, 3, … 15: each kind of answer, GOAWAY below the last."""
    good = encode_head(InvokeReply(status=200, server_timing=(("runtimed", 0.1),)))
    bad = encode_head(InvokeReply(status=503, reason="RunNotReady", message="moving", moving=True))
    error = encode_head(m.ErrorHead(reason="HandlerFailed", message="no", details={"type": "ValueError"}))
    large = message(frames.RESPONSE, 5, 0, good, BIG)
    return [
        *message(frames.RESPONSE, 1, 0, good, b'{"outputs":{}}'),
        *message(frames.RESPONSE, 3, 0, bad, b""),
        large[0],
        control(Kind.PONG),
        *message(frames.ERROR, 7, 0, error, b""),
        *large[1:],
        *message(frames.REFUSED, 9, 0, error, b""),
        control(Kind.PING),
        control(Kind.GOAWAY, 11),
        *message(frames.RESPONSE, 11, 0, good, b"{}"),
    ]


class Fuzzer:
    """Feeds broken sessions to both roles and judges what comes of it. `frames` counts what was fed."""

    def __init__(self) -> None:
        self.frames = 0
        self.ends: Counter[str] = Counter()
        self._facts = Facts()
        self._serving = serving_handler(self._facts)
        self._witness, self._witness_wire = open_connection(self._serving)
        self._witness_stream = -1
        self._errors = Errors()
        logging.getLogger().addHandler(self._errors)

    def close(self) -> None:
        logging.getLogger().removeHandler(self._errors)

    async def feed_server(self, parts: list[bytes]) -> None:
        """One connection to runtimed's port."""
        connection, wire = open_connection(self._serving)
        await self._feed(connection, wire, parts)
        assert connection._bytes_received <= CONNECTION_BYTES_MAX
        assert len(connection._serving) + len(connection._partial) <= CONNECTION_STREAMS_MAX
        for _ in range(8):  # until what was taken has been answered
            await asyncio.sleep(0)
        assert not connection._serving, "a request was never answered"
        connection.connection_lost(None)
        assert self._facts.open_gate.in_flight == 0, "a call never left"
        self._count("server", wire)
        self._judge(bytes(wire.written))

    async def feed_caller(self, parts: list[bytes]) -> None:
        """One connection of a gateway, with eight calls in flight."""
        connection, wire = open_connection(None)
        ended: Counter[int] = Counter()

        def done(number: int, outcome: Outcome) -> None:
            ended[number] += 1
            assert outcome_of(outcome) is not None

        for number in range(1, 16, 2):
            stream = connection.start("Invoke", {}, b"", lambda outcome, n=number: done(n, outcome), timeout=60)  # type: ignore[misc]
            assert stream == number
        await self._feed(connection, wire, parts)
        connection.connection_lost(None)
        assert ended == Counter(range(1, 16, 2)), "a call ended twice, or never"
        assert len(connection._calls) == 0
        assert not connection._partial
        self._count("caller", wire)

    async def _feed(self, connection: Connection, wire: Wire, parts: list[bytes]) -> None:
        for part in parts:
            if wire.ended:
                return
            feed(connection, part)
        await asyncio.sleep(0)

    def _count(self, role: str, wire: Wire) -> None:
        self.ends[f"{role} {'ended' if wire.ended else 'kept'}"] += 1
        if self._errors.seen:
            raise AssertionError("logged as an error: " + self._errors.seen[0])

    def _judge(self, written: bytes) -> None:
        """Whatever was answered is whole frames, and no defect of ours."""
        offset = 0
        while (decoded := frames.decode(written, offset)) is not None:
            (kind, _, _, head, _, _), offset = decoded
            assert not (kind == frames.ERROR and b"InternalError" in head), head
        assert offset == len(written)

    async def still_serves(self) -> None:
        """A connection that behaves is not disturbed by those that do not."""
        self._witness_stream += 2
        before = len(self._witness_wire.written)
        feed(self._witness, request(self._witness_stream, b'{"w":1}')[0])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        decoded = frames.decode(self._witness_wire.written, before)
        assert decoded is not None, "the witness was not answered"
        (kind, stream, _, _, _, chunk), _ = decoded
        assert (kind, stream, chunk) == (frames.RESPONSE, self._witness_stream, b'{"w":1}')
        self._witness_wire.written.clear()

    # --- the parts

    async def every_prefix(self, *, step: int = 1) -> None:
        """Each session cut off after every `step` bytes."""
        for session, feed in ((caller_session(), self.feed_server), (server_session(), self.feed_caller)):
            whole = b"".join(session)
            for end in _cuts(len(whole), step):
                self.frames += 1
                await feed([whole[:end]])
        await self.still_serves()

    async def every_flip(self, *, masks: tuple[int, ...] = (0xFF, 0x01, 0x80)) -> None:
        """Each byte of each session changed, those inside of large bodies apart: they are never looked at."""
        for session, feed in ((caller_session(), self.feed_server), (server_session(), self.feed_caller)):
            for index, frame in enumerate(session):
                for at in range(min(len(frame), 400)):
                    for mask in masks:
                        broken = bytearray(frame)
                        broken[at] ^= mask
                        self.frames += 1
                        await feed([*session[:index], bytes(broken), *session[index + 1 :]])
        await self.still_serves()

    async def limits(self) -> None:
        """Headers at each bound, one below and one above, alone and with the bytes that they announce."""
        sizes = {HEAD_MAX_BYTES, CHUNK_MAX_BYTES, BODY_MAX_BYTES, 0, 2**31, 2**32 - 1}
        around = sorted({max(0, min(2**32 - 1, size + by)) for size in sizes for by in (-1, 0, 1)})
        for kind in (*Kind, 0, 10, 255):
            for first in around:
                for second in around:
                    length = min(2**32 - 1, frames.HEADER_BYTES - 4 + first)
                    for header in ((length, kind, 13, 1, first, second), (length, kind, 13, 1, second, first)):
                        self.frames += 1
                        await self.feed_server([frames.HEADER.pack(*header), b"\x92\xa6Invoke\x80"])
                        await self.feed_caller([frames.HEADER.pack(*header)])
        for head, chunk in ((HEAD_MAX_BYTES, CHUNK_MAX_BYTES), (HEAD_MAX_BYTES, 0), (0, CHUNK_MAX_BYTES)):
            whole = frames.encode(frames.REQUEST, 1, 1, b"\xc0" * head, chunk, b"y" * chunk)
            await self.feed_server([whole])
            await self.feed_server([whole[:-1], whole[-1:]])
        await self.still_serves()

    async def mutated(self, count: int, rng: random.Random) -> None:
        """`count` frames: sessions with frames dropped, doubled, moved, spliced, their bytes and fields changed."""
        until = self.frames + count
        sessions = (caller_session(), server_session())
        turn = 0
        while self.frames < until:
            turn += 1
            parts = _mutate(list(sessions[turn % 2]), rng)
            self.frames += len(parts)
            await (self.feed_server if turn % 2 == 0 else self.feed_caller)(_recut(parts, rng))
            if turn % 1000 == 0:
                await self.still_serves()
        await self.still_serves()


def _cuts(size: int, step: int) -> Iterator[int]:
    """Every cut near a frame's edge, every `step`th elsewhere."""
    at = 0
    while at <= size:
        yield at
        at += step if at < 4000 or at > size - 4000 else 4096


def _mutate(parts: list[bytes], rng: random.Random) -> list[bytes]:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(parts))
        match rng.randrange(9):
            case 0:
                parts[at : at + 1] = []
            case 1:
                parts.insert(at, parts[rng.randrange(len(parts))])
            case 2:
                other = rng.randrange(len(parts))
                parts[at], parts[other] = parts[other], parts[at]
            case 3:
                parts[at] = parts[at][: rng.randrange(len(parts[at]) + 1)]
            case 4:
                parts[at] += rng.randbytes(rng.randint(1, 60))
            case 5:
                parts[at] = _change_field(parts[at], rng)
            case 6:
                broken = bytearray(parts[at])
                for _ in range(rng.randint(1, 8)):
                    broken[rng.randrange(min(len(broken), 400))] = rng.randrange(256)
                parts[at] = bytes(broken)
            case 7:
                head = rng.randbytes(rng.randrange(80))
                parts[at] = frames.encode(rng.randrange(12), rng.randrange(20), rng.randrange(9), head, 0, b"")
            case _:
                size = rng.choice((0, 1, 5, BODY_MAX_BYTES))
                parts.insert(at, frames.encode(frames.REQUEST, rng.randrange(1, 99), 9, invoke_head(), size, b"abcde"))
        if not parts:
            break
        parts = [part for part in parts if part] or [b"\0"]
    return parts


def _change_field(frame: bytes, rng: random.Random) -> bytes:
    if len(frame) < frames.HEADER_BYTES:
        return frame
    fields = list(frames.HEADER.unpack_from(frame))
    which = rng.randrange(len(fields))
    bits = (32, 8, 64, 32, 32, 32)[which]
    fields[which] = rng.choice((0, 1, fields[which] + 1, fields[which] - 1, rng.getrandbits(bits))) % (1 << bits)
    return frames.HEADER.pack(*fields) + frame[frames.HEADER_BYTES :]


def _recut(parts: list[bytes], rng: random.Random) -> list[bytes]:
    """The same bytes as reads of other sizes."""
    if rng.random() < 0.7:
        return parts
    whole = b"".join(parts)
    cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randint(0, 6)))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True) if end > start]


async def _run(count: int, seed: int) -> None:
    fuzzer, began = Fuzzer(), time.perf_counter()
    await fuzzer.every_prefix()
    await fuzzer.every_flip()
    await fuzzer.limits()
    await fuzzer.mutated(count, random.Random(seed))
    fuzzer.close()
    print(f"{fuzzer.frames} frames in {time.perf_counter() - began:.0f} s, seed {seed}: {dict(fuzzer.ends)}")  # noqa: T201


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz-wire", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.getLogger("runtimes").setLevel(logging.ERROR)  # a warning for each connection that is given up
    uvloop.run(_run(options.frames, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
