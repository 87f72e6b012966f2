"""The frame: the one shape in which bytes travel between gateway, runtimed, its peers and the Runtime Server.

Pure encoding and decoding of one frame's header; no sockets, no streams (those are `mux`). A frame is

    length u32 | kind u8 | stream u64 | value u32 | head size u32 | body size u32 | head | chunk

big endian; `length` counts the bytes behind itself. `body size` of a REQUEST, RESPONSE or ERROR is that of the whole
body; what the frame does not carry follows in BODY frames of that stream. `value` is the time left in milliseconds
(REQUEST, 0 = none).
"""

from __future__ import annotations

import enum
import struct
from typing import Final

from runtimes.contract.limits import BODY_MAX_BYTES, CHUNK_MAX_BYTES, HEAD_MAX_BYTES

HEADER: Final = struct.Struct(">IBQIII")
HEADER_BYTES: Final = HEADER.size
_AFTER_LENGTH: Final = HEADER_BYTES - 4
_pack: Final = HEADER.pack
_unpack_from: Final = HEADER.unpack_from


class Kind(enum.IntEnum):
    """What a frame is. A peer that reads a kind it does not know must close the connection."""

    REQUEST = 1
    """Head: msgpack array [method, parameters]."""
    RESPONSE = 2
    """Head: msgpack map of the method's reply."""
    ERROR = 3
    """Head: msgpack map, `messages.ErrorHead`: the request was taken and failed."""
    BODY = 4
    """The next chunk of the stream's body. No head."""
    CANCEL = 5
    """The caller no longer waits. The call goes on, its answer is dropped."""
    REFUSED = 6
    """Head as of ERROR: the request was not started and may be sent elsewhere."""
    GOAWAY = 7
    """`stream` is the highest stream that was taken: higher ones were not started; send no more here."""
    PING = 8
    PONG = 9


REQUEST: Final = int(Kind.REQUEST)
RESPONSE: Final = int(Kind.RESPONSE)
ERROR: Final = int(Kind.ERROR)
BODY: Final = int(Kind.BODY)
CANCEL: Final = int(Kind.CANCEL)
REFUSED: Final = int(Kind.REFUSED)
GOAWAY: Final = int(Kind.GOAWAY)
PING: Final = int(Kind.PING)
PONG: Final = int(Kind.PONG)


class ProtocolError(Exception):
    """The peer broke the framing: nothing that follows can be trusted, the connection must be closed."""


Frame = tuple[int, int, int, bytes, int, bytes]
"""One decoded frame: kind, stream, value, head, size of the whole body, the part of the body that it carries."""


def encode(kind: int, stream: int, value: int, head: bytes, body_size: int, chunk: bytes | memoryview) -> bytes:
    """Return one frame as bytes. `chunk` is at most CHUNK_MAX_BYTES; the caller has checked the head's size."""
    head_size = len(head)
    header = _pack(_AFTER_LENGTH + head_size + len(chunk), kind, stream, value, head_size, body_size)
    return b"".join((header, head, chunk))


def decode(buffer: bytes | bytearray | memoryview, offset: int, size: int = -1) -> tuple[Frame, int] | None:
    """Return the frame at `offset` and the offset behind it, or None when more than the first `size` bytes of `buffer`
    (-1 = all) are needed. The frame's parts are copies.

    Raises ProtocolError as soon as the header breaks a bound, before anything of that size is kept.
    """
    if size < 0:
        size = len(buffer)
    if size - offset < HEADER_BYTES:
        return None
    length, kind, stream, value, head_size, body_size = _unpack_from(buffer, offset)
    chunk_size = length - _AFTER_LENGTH - head_size
    if head_size > HEAD_MAX_BYTES or not 0 <= chunk_size <= CHUNK_MAX_BYTES or body_size > BODY_MAX_BYTES:
        raise ProtocolError(
            f"frame of kind {kind} breaks a bound: head {head_size} B, chunk {chunk_size} B, body {body_size} B"
        )
    end = offset + 4 + length
    if end > size:
        return None
    head_at = offset + HEADER_BYTES
    chunk_at = head_at + head_size
    head = bytes(buffer[head_at:chunk_at])
    chunk = bytes(buffer[chunk_at:end]) if chunk_size else b""
    return (kind, stream, value, head, body_size, chunk), end
