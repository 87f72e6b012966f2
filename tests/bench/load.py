"""The load generators of the benchmarks: keep-alive HTTP callers in a closed loop, each with one request in flight.

`run` is ours and tells hops apart; `run_wrk` is Debian's wrk. Whichever is used calls both sides, in a process of its
own, so that its work is the same for both. As a command, `python -m tests.bench.load` reads an `Order` from stdin and
writes a `Result`: a child of multiprocessing depends on a helper process and on pipes that it shares with the caller,
and where one of these dies the caller is told of a broken pipe and nothing else.
"""

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import uvloop


class Target(msgspec.Struct, frozen=True):
    """What is called: a URL with its body and fields; `ca` is a PEM file for https. `more`: URLs called in turn with
    it."""

    url: str
    body: bytes
    headers: dict[str, str]
    ca: str | None = None
    more: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Target({self.url})"


class Order(msgspec.Struct, frozen=True):
    """What one round is to do."""

    target: Target
    callers: int
    seconds: float
    rate: float = 0.0


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
    hops: int = 0
    """Answers that say that a peer passed the call on, and their median."""
    hop_p50_us: float = 0.0
    generator: str = "python"

    @property
    def rps(self) -> float:
        return self.calls / self.seconds


class Caller(asyncio.BufferedProtocol):
    """One connection: sends the next request when the answer to the last one is complete."""

    inbox = memoryview(bytearray(2 * 1024 * 1024))

    def __init__(self, requests: list[bytes], until: float, done: asyncio.Future[None], interval: float = 0.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.interval = interval
        self.due = time.perf_counter()
        self.requests = requests
        self.turn = 0
        self.until = until
        self.done = done
        self.latencies: list[float] = []
        self.hopped: list[float] = []
        self.failures = 0
        self.first_failure = ""
        self.parts: list[bytes] = []
        self.got = 0
        self.total = 0
        self.transport: asyncio.Transport | None = None
        self.sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        assert self.transport is not None
        if self.done.done():
            return
        self.turn += 1
        self.sent_at = time.perf_counter()
        self.transport.write(self.requests[self.turn % len(self.requests)])

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.inbox

    def buffer_updated(self, size: int) -> None:
        self.parts.append(self.inbox[:size].tobytes())
        self.got += size
        if not self.total:
            self.total = self._total()
        if self.total and self.got >= self.total:
            self._answered(time.perf_counter())

    def _total(self) -> int:
        """Bytes of the whole answer; 0 while its head is not complete."""
        start = self.parts[0] = b"".join(self.parts)
        del self.parts[1:]
        end = start.find(b"\r\n\r\n")
        if end < 0:
            return 0
        at = start[:end].lower().find(b"content-length:")
        return end + 4 + int(start[at + 15 : end].split(b"\r\n", 1)[0])

    def _answered(self, now: float) -> None:
        start = self.parts[0]
        latency = now - self.sent_at
        (self.hopped if b"peer;dur" in start[:600] else self.latencies).append(latency)
        if b" 200 " not in start[:16]:
            self.failures += 1
            self.first_failure = self.first_failure or start[:600].decode("utf-8", "replace")
        self.parts.clear()
        self.got = self.total = 0
        self.due = max(self.due + self.interval, now)
        if now >= self.until:
            self._finish()
        elif self.due - now < 0.001:  # a loop's timers are no finer
            self._send()
        else:
            self.loop.call_later(self.due - now, self._send)

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


def run(target: Target, *, callers: int, seconds: float, rate: float = 0.0) -> Result:
    """One round in a child process, at most at `rate` calls a second (0 = as fast as answers come)."""
    order = msgspec.msgpack.encode(Order(target, callers, seconds, rate))
    command = [sys.executable, "-m", "tests.bench.load"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], input=order, capture_output=True, timeout=seconds + 60, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the round against {target.url} failed: {done.stderr.decode(errors='replace')[-2000:]}")
    return msgspec.msgpack.decode(done.stdout, type=Result)


def main() -> int:
    """One round, as ordered."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(_round(order.target, order.callers, order.seconds, order.rate))
    sys.stdout.buffer.write(msgspec.msgpack.encode(result))
    return 0


async def _round(target: Target, callers: int, seconds: float, rate: float) -> Result:
    loop = asyncio.get_running_loop()
    url = urlsplit(target.url)
    tls: dict[str, Any] = {}
    if url.scheme == "https":
        tls = {"ssl": ssl.create_default_context(cafile=target.ca), "server_hostname": url.hostname}
    fields = {"Host": url.netloc, "Content-Type": "application/json", "Content-Length": str(len(target.body))}
    requests = []
    for path in (url.path or "/", *(urlsplit(other).path for other in target.more)):
        lines = [f"POST {path} HTTP/1.1", *(f"{k}: {v}" for k, v in (fields | target.headers).items())]
        requests.append("\r\n".join(lines).encode() + b"\r\n\r\n" + target.body)
    interval = callers / rate if rate else 0.0
    started = time.perf_counter()
    until = started + seconds
    protocols: list[Caller] = []
    for number in range(callers):
        done, turn = loop.create_future(), number % len(requests)
        port = url.port or (443 if tls else 80)
        _, protocol = await loop.create_connection(
            lambda d=done, n=turn: Caller(requests[n:] + requests[:n], until, d, interval),
            url.hostname,
            port,
            **tls,
        )
        protocols.append(protocol)
    await asyncio.gather(*(protocol.done for protocol in protocols))
    elapsed = time.perf_counter() - started
    local = sorted(latency for protocol in protocols for latency in protocol.latencies)
    hopped = sorted(latency for protocol in protocols for latency in protocol.hopped)
    latencies = local or hopped or [0.0]
    return Result(
        calls=len(local) + len(hopped),
        seconds=elapsed,
        p50_us=_at(latencies, 0.5),
        p90_us=_at(latencies, 0.9),
        p99_us=_at(latencies, 0.99),
        max_us=_at(latencies, 1.0),
        failures=sum(protocol.failures for protocol in protocols),
        first_failure=next((p.first_failure for p in protocols if p.first_failure), ""),
        hops=len(hopped),
        hop_p50_us=_at(hopped, 0.5) if hopped else 0.0,
    )


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6


def wrk_installed() -> bool:
    """Whether Debian's wrk is here: it takes less of the processors that it shares with what it measures."""
    return shutil.which("wrk") is not None


def run_wrk(target: Target, *, callers: int, seconds: float) -> Result:
    """One round by wrk. It counts what is no 200 and does not tell what it said."""
    fields = {"Content-Type": "application/json"} | target.headers
    script = [
        'wrk.method = "POST"',
        f"wrk.body = {json.dumps(target.body.decode())}",
        *(f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in fields.items()),
        "done = function(summary, latency, requests)",
        "  local e = summary.errors",
        '  io.write(string.format("RESULT %d %d %d %f %f %f %f\\n", summary.requests, summary.duration,',
        "    e.status + e.connect + e.read + e.write + e.timeout, latency:percentile(50), latency:percentile(90),",
        "    latency:percentile(99), latency.max))",
        "end",
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write("\n".join(script))
        file.flush()
        command = [
            "wrk",
            "-t",
            "1",
            "-c",
            str(callers),
            "-d",
            f"{max(1, round(seconds))}s",
            "-s",
            file.name,
            target.url,
        ]
        out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 60).stdout
    line = next(line for line in out.splitlines() if line.startswith("RESULT"))
    calls, duration_us, failures, p50, p90, p99, most = map(float, line.split()[1:])
    return Result(
        calls=int(calls),
        seconds=duration_us / 1e6,
        p50_us=p50,
        p90_us=p90,
        p99_us=p99,
        max_us=most,
        failures=int(failures),
        generator="wrk",
    )


if __name__ == "__main__":
    sys.exit(main())
