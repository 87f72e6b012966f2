"""Messages of more than one frame: one that arrives in pieces, one that is written in pieces, in turn with others."""

from __future__ import annotations

from runtimes.contract import frames
from runtimes.contract.limits import CHUNK_MAX_BYTES


class Incoming:
    """A message whose body has not arrived whole. `refused` is set when it will not be served: its body is dropped."""

    __slots__ = ("chunks", "head", "kind", "missing", "refused", "size", "value")

    def __init__(self, kind: int, value: int, head: bytes, size: int, chunk: bytes) -> None:
        self.kind = kind
        self.value = value
        self.head = head
        self.size = size
        self.chunks = [chunk]
        self.missing = size - len(chunk)
        self.refused = False


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
