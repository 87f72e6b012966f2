"""A worker's end of the private channel, and how it says what failed.

Loaded by `zygote.py` under the *user's* interpreter: standard library only. The channel carries messages: a header of
13 bytes (kind u8, sequence u32, size of meta u32, size of body u32, big endian), JSON meta (INVOKE: three lines of
text), a raw body. The Runtime Server's end is `server/channel.py`. Next: `function.py` and `jobs.py` answer through it.
"""

from __future__ import annotations  # This runs on Python 3.9.

import json
import os
import socket
import struct
import sys
import traceback

HEADER = struct.Struct(">BIII")
CHANNEL_FD = 3
INBOX_BYTES = 65536

# Kinds of messages: to the child, and from it.
JOB, INVOKE = 1, 2
STARTED, FAILED, RESULT, ERROR = 10, 11, 12, 13

ERROR_MESSAGE_MAX = 4096
FRAMES_MAX = 8
FRAMES_TEXT_MAX = 8192
OUR_FILES = "/proc/self/fd/"
"""How the names of this project's files begin in here; no user code has such a name."""

# What a worker needs after user code has run: whatever that does to modules, these are ours.
getpid, leave = os.getpid, os._exit
_encode = json.JSONEncoder().encode


class Channel:
    """The child's end. A process that the handler forks does not have it: what it returns goes nowhere."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=CHANNEL_FD)
        self.owner = getpid()
        self.inbox = memoryview(bytearray(INBOX_BYTES))  # Allocating it for each message costs page faults.
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        try:
            self.socket.close()
        except OSError:
            pass

    def receive(self) -> tuple[int, int, bytes, bytes] | None:
        """(kind, sequence, meta, body) as bytes, or None at the end of the channel."""
        data = self.inbox[: self.socket.recv_into(self.inbox)].tobytes()
        while len(data) < HEADER.size:
            more = self.socket.recv(HEADER.size - len(data)) if data else b""
            if not more:
                return None
            data += more
        kind, sequence, meta_size, body_size = HEADER.unpack_from(data)
        meta_end = HEADER.size + meta_size
        missing = meta_end + body_size - len(data)
        if missing:
            whole = bytearray(meta_end + body_size)
            at = len(data)
            whole[:at] = data
            with memoryview(whole) as view:
                while missing:
                    size = self.socket.recv_into(view[at:])
                    if not size:
                        return None
                    at += size
                    missing -= size
            data = bytes(whole)
        return kind, sequence, data[HEADER.size : meta_end], data[meta_end:]

    def send(self, kind: int, sequence: int, meta: bytes = b"", body: bytes = b"") -> None:
        head = HEADER.pack(kind, sequence, len(meta), len(body)) + meta
        if len(body) < INBOX_BYTES:
            self.socket.sendall(head + body)
        else:
            self.socket.sendall(head)
            self.socket.sendall(body)

    def fail(self, kind: int, sequence: int, **meta: str) -> None:
        self.send(kind, sequence, _encode(meta).encode())


class Failure(Exception):
    """What the Runtime Server is to be told: one of the contract's reasons and a message that is never empty."""

    def __init__(self, reason: str, message: str, **details: str) -> None:
        super().__init__(message)
        self.meta = dict(details, reason=reason, message=message)


def describe(error: BaseException) -> dict[str, str]:
    """type, message and last frames of an exception of the user's code, bounded; ours are left out."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except BaseException as broken:
        text = f"(str() of it raised {type(broken).__name__})"
    trace = traceback.extract_tb(error.__traceback__)
    frames = [
        frame
        for frame in trace
        if not frame.filename.startswith(OUR_FILES) and not frame.filename.startswith("<frozen importlib")
    ]
    lines = "".join(traceback.format_list(frames[-FRAMES_MAX:]))
    message = f"{name}: {text}" if text else name
    return {"type": name, "message": utf8(message[:ERROR_MESSAGE_MAX]), "frames": utf8(lines[-FRAMES_TEXT_MAX:])}


def utf8(text: str) -> str:
    """The text with what UTF-8 does not have (lone surrogates) escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            continue  # Closed or replaced by the user's code: what it printed is its own business.
