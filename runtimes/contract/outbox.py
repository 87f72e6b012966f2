"""The writing half of a connection: messages in, frames out, large ones in turn so that small ones pass them.

Here: the queue behind a transport that is full, its bounds' figures, and the batch: what a busy connection sends within
one turn of the loop leaves in one write, hence one TLS record, one system call and one wake-up of the peer. Not here:
what is written (`mux`), one frame's bytes (`frames`). Next: `mux.Connection` owns one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from runtimes.contract import frames
from runtimes.contract.limits import CHUNK_MAX_BYTES, WRITE_HIGH_WATER_BYTES


class Outgoing:
    """A message that is written chunk by chunk, in turn with the others."""

    __slots__ = ("body", "head", "kind", "offset", "started", "stream", "value")

    def __init__(self, kind: int, stream: int, value: int, head: bytes, body: bytes | memoryview) -> None:
        self.kind = kind
        self.stream = stream
        self.value = value
        self.head = head
        self.body = memoryview(body)
        self.offset = 0
        self.started = False

    def next_frame(self) -> bytes:
        chunk = self.body[self.offset : self.offset + CHUNK_MAX_BYTES]
        self.offset += len(chunk)
        if self.started:
            return frames.encode(frames.BODY, self.stream, 0, b"", 0, chunk)
        self.started = True
        return frames.encode(self.kind, self.stream, self.value, self.head, len(self.body), chunk)

    @property
    def done(self) -> bool:
        return self.started and self.offset >= len(self.body)

    @property
    def size(self) -> int:
        return len(self.head) + len(self.body) - self.offset


class Outbox:
    """`send` before `open` or after `close` is dropped; `on_empty` is called when the last queued one is written."""

    __slots__ = (
        "_batch",
        "_batch_bytes",
        "_batch_requests",
        "_loop",
        "_on_empty",
        "_paused",
        "_queue",
        "_transport",
        "queued_bytes",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, on_empty: Callable[[], None]) -> None:
        self._loop = loop
        self._on_empty = on_empty
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._batch_requests: list[int] = []
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Outgoing] = deque()
        self._paused = False
        self.queued_bytes = 0
        """What waits here, the transport's own buffer apart."""

    def __bool__(self) -> bool:
        """Something waits."""
        return bool(self._queue or self._batch)

    @property
    def length(self) -> int:
        """Messages that wait."""
        return len(self._queue)

    def open(self, transport: asyncio.Transport) -> None:
        """The transport is there."""
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

    def close(self) -> None:
        """The transport is gone."""
        self._transport = None
        self._queue.clear()
        self._batch.clear()
        self._batch_requests.clear()
        self.queued_bytes = 0

    def send(
        self, kind: int, stream: int, value: int, head: bytes, body: bytes | memoryview, *, alone: bool = True
    ) -> None:
        """Write one message: at once when it is one frame, nothing waits, and it is `alone`: no other message is
        likely to follow within this turn of the loop. One that is not is written at the turn's end."""
        transport = self._transport
        if transport is None:
            return
        if not self._paused and not self._queue and len(body) <= CHUNK_MAX_BYTES:
            frame = frames.encode(kind, stream, value, head, len(body), body)
            if alone and not self._batch:
                transport.write(frame)
                return
            if not self._batch:
                self._loop.call_soon(self.flush)
            self._batch.append(frame)
            self._batch_bytes += len(frame)
            if kind == frames.REQUEST:
                self._batch_requests.append(stream)
            if self._batch_bytes >= CHUNK_MAX_BYTES:
                self.flush()
            return
        self.flush()
        outgoing = Outgoing(kind, stream, value, head, body)
        self._queue.append(outgoing)
        self.queued_bytes += outgoing.size
        self._pump()

    def withdraw(self, stream: int) -> bool:
        """Take back a request of which nothing was written; False when there is none."""
        for outgoing in self._queue:
            if outgoing.stream == stream and outgoing.kind == frames.REQUEST and not outgoing.started:
                self._queue.remove(outgoing)
                self.queued_bytes -= outgoing.size
                return True
        return False

    def unwritten_requests(self) -> set[int]:
        """The streams of requests of which nothing was written."""
        queued = {one.stream for one in self._queue if one.kind == frames.REQUEST and not one.started}
        return queued.union(self._batch_requests)

    def pause(self) -> None:
        """The transport is full."""
        self._paused = True

    def resume(self) -> None:
        """It has room again."""
        self._paused = False
        self._pump()

    def flush(self) -> None:
        """Write the batch."""
        batch = self._batch
        if not batch or self._transport is None:
            return
        data = batch[0] if len(batch) == 1 else b"".join(batch)
        batch.clear()
        self._batch_bytes = 0
        self._batch_requests.clear()
        self._transport.write(data)
        if not self._queue:
            self._on_empty()

    def _pump(self) -> None:
        """Write one frame of each waiting message in turn, until the transport is full or nothing waits."""
        transport = self._transport
        while self._queue and not self._paused and transport is not None:
            outgoing = self._queue.popleft()
            before = outgoing.size
            transport.write(outgoing.next_frame())
            self.queued_bytes -= before
            if not outgoing.done:
                self._queue.append(outgoing)
                self.queued_bytes += outgoing.size
        if not self._queue:
            self._on_empty()
