"""The reading half of a connection: bytes in, frames and whole messages out.

Here: the buffer that a transport reads into, and messages that arrive in more than one frame, with their bounds. Not
here: what a message means (`mux`), one frame's bytes (`frames`). Next: `mux.Connection` owns one of each.
"""

from __future__ import annotations

from collections.abc import Callable

from runtimes.contract import frames
from runtimes.contract.frames import ProtocolError
from runtimes.contract.limits import ASSEMBLING_BYTES_MAX, FRAME_MAX_BYTES, READ_BYTES

OnFrame = Callable[[int, int, int, bytes, int, bytes], None]
"""Kind, stream, value, head, size of the whole body, chunk."""


class Inbox:
    """Frames of a stream of bytes, in order. What is not a whole frame yet stays at the buffer's start."""

    __slots__ = ("_buffer", "_filled", "_on_frame")

    def __init__(self, on_frame: OnFrame) -> None:
        self._on_frame = on_frame
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._filled = 0

    @property
    def space(self) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[self._filled :]

    def close(self) -> None:
        """Nothing more comes. A connection is a knot of references that the collector undoes at some later time, and a
        process that is asked a little now and then would keep the buffers of hours until then."""
        self._buffer = memoryview(b"")
        self._filled = 0

    def filled(self, size: int) -> None:
        """So many bytes were put into `space`. Raises what `on_frame` raises, and ProtocolError."""
        buffer, end, offset = self._buffer, self._filled + size, 0
        on_frame = self._on_frame
        self._filled = 0
        while (decoded := frames.decode(buffer, offset, end)) is not None:
            frame, offset = decoded
            on_frame(*frame)
        rest = self._filled = end - offset
        if offset and rest:
            buffer[:rest] = buffer[offset:end]
        elif rest == len(buffer):  # a frame with a large head
            self._buffer = memoryview(bytearray(FRAME_MAX_BYTES))
            self._buffer[:rest] = buffer


class Incoming:
    """A message whose body has not arrived whole."""

    __slots__ = ("chunks", "head", "kind", "missing", "size", "value")

    def __init__(self, kind: int, value: int, head: bytes, size: int, chunk: bytes) -> None:
        self.kind = kind
        self.value = value
        self.head = head
        self.size = size
        self.chunks = [chunk]
        self.missing = size - len(chunk)


class Assembly:
    """The messages of a connection that have begun and are not whole. What breaks a bound raises ProtocolError."""

    __slots__ = ("_bytes", "_incoming")

    def __init__(self) -> None:
        self._incoming: dict[int, Incoming] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._incoming)

    def get(self, stream: int) -> Incoming | None:
        """The unfinished message of that stream."""
        return self._incoming.get(stream)

    def begin(self, stream: int, incoming: Incoming) -> None:
        """Its first frame."""
        if incoming.missing < 0 or stream in self._incoming:
            raise ProtocolError("a chunk is longer than its body, or a message begins twice")
        self._incoming[stream] = incoming
        self._bytes += incoming.size
        if self._bytes > ASSEMBLING_BYTES_MAX:
            raise ProtocolError(f"more than {ASSEMBLING_BYTES_MAX} bytes of unfinished messages")

    def more(self, stream: int, chunk: bytes) -> tuple[Incoming, bytes] | None:
        """Its next frame; the message and its body with the last one. Of an unknown stream it is dropped."""
        incoming = self._incoming.get(stream)
        if incoming is None:
            return None  # The rest of something that was given up (CANCEL), or never taken.
        incoming.missing -= len(chunk)
        if incoming.missing < 0 or not chunk:
            raise ProtocolError("a body is longer than its head said, or a chunk is empty")
        incoming.chunks.append(chunk)
        if incoming.missing:
            return None
        self.drop(stream)
        return incoming, b"".join(incoming.chunks)

    def drop(self, stream: int) -> None:
        """Forget it; what still comes of it is dropped."""
        incoming = self._incoming.pop(stream, None)
        if incoming is not None:
            self._bytes -= incoming.size

    def clear(self) -> None:
        """Forget all."""
        self._incoming.clear()
        self._bytes = 0
