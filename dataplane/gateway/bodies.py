"""Request bodies as they arrive: by length or in chunks, bounded, exact.

Here: what of the received bytes belongs to a body, and what a body that cannot be trusted is. Pure. Not here: heads
(`http1`), waiting for a body (`exchange`). Next: `http1.RequestParser` feeds them.
"""

import re
from typing import Final

from dataplane.gateway.limits import CHUNK_LINE_MAX_BYTES, CHUNKS_MAX, TRAILER_MAX_BYTES
from runtimes.contract.limits import INVOKE_BODY_MAX_BYTES
from statemachine.reasons import Reason

TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
FIELD: Final = re.compile(rb"(" + TOKEN + rb"):([\t\x20-\x7e\x80-\xff]*)")
PIECE_BYTES: Final = 16 * 1024
_CHUNK_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")


class Malformed(Exception):
    """The request cannot be trusted; it is answered with `reason` and its connection ends."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Body:
    """A request body as it arrives: at most 1 MiB is kept, the rest is counted and dropped."""

    __slots__ = ("_kept", "_pieces", "complete", "failure", "size")

    def __init__(self, first: bytes = b"", *, complete: bool = False) -> None:
        self._pieces = [first]
        self._kept = True
        self.size = len(first)
        self.complete = complete
        self.failure: Malformed | None = None

    @property
    def kept(self) -> int:
        """Bytes of it in memory."""
        return self.size if self._kept else 0

    @property
    def too_large(self) -> bool:
        """More came than the limit allows."""
        return self.size > INVOKE_BODY_MAX_BYTES

    def take(self) -> bytes:
        """What arrived, once complete and not too large."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def drop(self) -> None:
        """Nobody will take it: what came and what comes is only counted."""
        self._kept = False
        self._pieces = [b""]

    def append(self, data: bytes) -> None:
        """More content. Above the limit nothing is kept."""
        if not self._kept or self.size + len(data) > INVOKE_BODY_MAX_BYTES:
            self.drop()
        elif len(self._pieces[-1]) < PIECE_BYTES:  # so that a body of tiny chunks is no list of tiny pieces
            self._pieces[-1] += data
        else:
            self._pieces.append(data)
        self.size += len(data)


class LengthFraming:
    """A body of Content-Length bytes."""

    __slots__ = ("_left",)

    def __init__(self, length: int) -> None:
        self._left = length

    def feed(self, body: Body, data: bytes) -> bytes:
        """Take what belongs to the body; return what is behind it (empty while the body is incomplete)."""
        if len(data) < self._left:
            self._left -= len(data)
            body.append(data)
            return b""
        body.append(data[: self._left])
        rest = data[self._left :]
        self._left = 0
        body.complete = True
        return rest


class ChunkedFraming:
    """A chunked body. Sizes are plain hexadecimal, lines end in CRLF, trailers are checked and dropped."""

    __slots__ = ("_buffer", "_chunks", "_left", "_trailer_bytes")

    def __init__(self) -> None:
        self._chunks = 0
        self._buffer = b""
        self._left = 0  # bytes of the current chunk and its CRLF that are still to come
        self._trailer_bytes = -1  # >= 0 once the last chunk has been seen

    def feed(self, body: Body, data: bytes) -> bytes:
        """As LengthFraming.feed. Raises Malformed at a bad size, line end or trailer."""
        data = self._buffer + data
        self._buffer = b""
        position = 0
        while not body.complete:
            if self._left > 2:
                piece = data[position : position + self._left - 2]
                if not piece:
                    break
                body.append(piece)
                position += len(piece)
                self._left -= len(piece)
                continue
            if self._left == 2:
                end = data[position : position + 2]
                if len(end) < 2:
                    break
                if end != b"\r\n":
                    raise Malformed(Reason.INVALID_REQUEST, "a chunk is longer than its size says")
                position += 2
                self._left = 0
                continue
            limit = CHUNK_LINE_MAX_BYTES if self._trailer_bytes < 0 else TRAILER_MAX_BYTES
            stop = data.find(b"\r\n", position, position + limit + 2)
            if stop < 0:
                if len(data) - position > limit:
                    raise Malformed(Reason.INVALID_REQUEST, f"a line of the chunked body is longer than {limit} bytes")
                break
            self._line(body, data[position:stop])
            position = stop + 2
        self._buffer = b"" if body.complete else data[position:]
        return data[position:] if body.complete else b""

    def _line(self, body: Body, line: bytes) -> None:
        if self._trailer_bytes >= 0:
            self._trailer_bytes += len(line) + 2
            if not line:
                body.complete = True
            elif FIELD.fullmatch(line) is None or self._trailer_bytes > TRAILER_MAX_BYTES:
                raise Malformed(Reason.INVALID_REQUEST, "the trailer is malformed or too long")
            return
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise Malformed(Reason.INVALID_REQUEST, "a chunk size is malformed")
        size = int(match[1], 16)
        self._chunks += 1
        if self._chunks > CHUNKS_MAX:
            raise Malformed(Reason.INVALID_REQUEST, f"the body has more than {CHUNKS_MAX} chunks")
        if size:
            self._left = size + 2
        else:
            self._trailer_bytes = 0


Framing = LengthFraming | ChunkedFraming
