"""Messages to and from a child of the zygote: the other end of `Channel` in runtimes/python/channel.py. Pure."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

HEADER: Final = struct.Struct(">BIII")
JOB: Final = 1
INVOKE: Final = 2
STARTED: Final = 10
FAILED: Final = 11
RESULT: Final = 12
ERROR: Final = 13
MESSAGE_MAX_BYTES: Final = 4 * 1024 * 1024
"""A result is at most 1 MiB, so a header that announces more is not our worker's."""


Message = tuple[int, int, bytes, bytes]
"""Kind, sequence, meta, body."""


class ChannelBroken(Exception):
    """Bytes that no worker of ours would write."""


def job(meta: dict[str, object]) -> bytes:
    """The message that tells a fresh child what to become."""
    encoded = msgspec.json.encode(meta)
    return HEADER.pack(JOB, 0, len(encoded), 0) + encoded


def invoke(sequence: int, meta: bytes, body: bytes) -> bytes:
    return b"".join((HEADER.pack(INVOKE, sequence, len(meta), len(body)), meta, body))


def missing(data: bytes) -> int:
    """How many bytes the message that begins with `data` still lacks, as far as its header says; at least 1."""
    if len(data) < HEADER.size:
        return 1
    _, _, meta_size, body_size = HEADER.unpack_from(data)
    return HEADER.size + int(meta_size) + int(body_size) - len(data)


def decode(data: bytes) -> tuple[Message, int] | None:
    """The first message of `data` and its size, or None when it is not whole. Raises ChannelBroken."""
    if len(data) < HEADER.size:
        return None
    kind, sequence, meta_size, body_size = HEADER.unpack_from(data)
    if not STARTED <= kind <= ERROR or meta_size + body_size > MESSAGE_MAX_BYTES:
        raise ChannelBroken(f"kind {kind}, {meta_size + body_size} bytes")
    body_at = HEADER.size + meta_size
    end = body_at + body_size
    if len(data) < end:
        return None
    return (kind, sequence, data[HEADER.size : body_at], data[body_at:end]), end
