"""The load generator of the benchmarks: keep-alive HTTP callers in a closed loop, each with one request in flight.

The same code calls both sides. It runs in a process of its own, so that its work is the same for both.
"""

import asyncio
import multiprocessing
import ssl
import time
from multiprocessing.connection import Connection
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import uvloop


class Target(msgspec.Struct, frozen=True):
    """What is called: a URL with its body and fields; `ca` is a PEM file for https."""

    url: str
    body: bytes
    headers: dict[str, str]
    ca: str | None = None

    def __repr__(self) -> str:
        return f"Target({self.url})"


class Result(msgspec.Struct, frozen=True):
    """One round: latencies in microseconds, answers that were no 200, and what the first of them said."""

    calls: int
    seconds: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float
    failures: int
    first_failure: str = ""

    @property
    def rps(self) -> float:
        return self.calls / self.seconds


class Caller(asyncio.Protocol):
    """One connection: sends the next request when the answer to the last one is complete."""

    def __init__(self, request: bytes, until: float, done: asyncio.Future[None]) -> None:
        self.request = request
        self.until = until
        self.done = done
        self.latencies: list[float] = []
        self.failures = 0
        self.first_failure = ""
        self.buffer = b""
        self.transport: asyncio.Transport | None = None
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's TLS transport is none by class
        self._send()

    def _send(self) -> None:
        assert self.transport is not None
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self.buffer) < end + 4 + length:
            return
        now = time.perf_counter()
        self.latencies.append(now - self.sent_at)
        if b" 200 " not in self.buffer[:16]:
            self.failures += 1
            self.first_failure = self.first_failure or self.buffer[:600].decode("utf-8", "replace")
        self.buffer = b""
        if now < self.until:
            self._send()
        else:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.failures += 1
            self.first_failure = self.first_failure or f"the connection was lost: {error}"
            self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        if self.transport is not None:
            self.transport.close()


def run(target: Target, *, callers: int, seconds: float) -> Result:
    """One round in a child process."""
    mine, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=_child, args=(theirs, target, callers, seconds))
    child.start()
    try:
        if not mine.poll(seconds + 60):
            raise TimeoutError(f"no result of the round against {target.url}")
        return msgspec.msgpack.decode(mine.recv_bytes(), type=Result)
    finally:
        child.terminate()
        child.join()


def _child(answer: Connection, target: Target, callers: int, seconds: float) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer.send_bytes(msgspec.msgpack.encode(runner.run(_round(target, callers, seconds))))


async def _round(target: Target, callers: int, seconds: float) -> Result:
    loop = asyncio.get_running_loop()
    url = urlsplit(target.url)
    tls: dict[str, Any] = {}
    if url.scheme == "https":
        tls = {"ssl": ssl.create_default_context(cafile=target.ca), "server_hostname": url.hostname}
    fields = {"Host": url.netloc, "Content-Type": "application/json", "Content-Length": str(len(target.body))}
    lines = [f"POST {url.path or '/'} HTTP/1.1", *(f"{k}: {v}" for k, v in (fields | target.headers).items())]
    request = "\r\n".join(lines).encode() + b"\r\n\r\n" + target.body
    started = time.perf_counter()
    until = started + seconds
    protocols: list[Caller] = []
    for _ in range(callers):
        done = loop.create_future()
        port = url.port or (443 if tls else 80)
        _, protocol = await loop.create_connection(lambda d=done: Caller(request, until, d), url.hostname, port, **tls)
        protocols.append(protocol)
    await asyncio.gather(*(protocol.done for protocol in protocols))
    elapsed = time.perf_counter() - started
    latencies = sorted(latency for protocol in protocols for latency in protocol.latencies) or [0.0]

    def at(share: float) -> float:
        return latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1e6

    return Result(
        calls=len(latencies),
        seconds=elapsed,
        p50_us=at(0.5),
        p90_us=at(0.9),
        p99_us=at(0.99),
        max_us=latencies[-1] * 1e6,
        failures=sum(protocol.failures for protocol in protocols),
        first_failure=next((p.first_failure for p in protocols if p.first_failure), ""),
    )
