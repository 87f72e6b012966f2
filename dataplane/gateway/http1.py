"""HTTP/1.x as the gateway accepts it: bytes in, heads and bodies out, strict where two readers could disagree.

Here: the grammar of a request head, which fields may not repeat, where requests begin and end. Pure: no sockets, no
clock; bodies are framed in `bodies`.
Not here: what a request means (`request`), timeouts and connections (`connection`). A parser that guesses is how
requests are smuggled, so whatever is not exactly right is refused and ends the connection.
Next: `connection` feeds it what a socket received.
"""

import re
from typing import Final

from msgspec import Struct

from dataplane.gateway.bodies import FIELD, TOKEN, Body, ChunkedFraming, Framing, LengthFraming, Malformed
from dataplane.gateway.limits import (
    FIELD_MAX_BYTES,
    FIELDS_MAX,
    HEAD_MAX_BYTES,
    REPEATED_HEAD_MAX_BYTES,
    TARGET_MAX_BYTES,
)
from statemachine.reasons import Reason

_METHOD: Final = re.compile(TOKEN)
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
_VERSION: Final = re.compile(rb"HTTP/([0-9])\.([0-9])")
_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]*)(?::[0-9]{0,5})?")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
_SINGLE: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization"})
_OURS: Final = b"x-kruntime-"


class Head(Struct, frozen=True):
    """One request head. Field names are lower case; a field that may not repeat stands once."""

    method: str
    target: str
    minor: int
    """The minor version: 0 or 1."""
    fields: tuple[tuple[bytes, bytes], ...]
    keep_alive: bool
    length: int | None
    """Content-Length; None when absent. A chunked request has none."""
    chunked: bool
    expects_continue: bool

    def __repr__(self) -> str:
        return f"Head({self.method} HTTP/1.{self.minor}, {len(self.fields)} fields)"

    def field(self, name: bytes) -> bytes | None:
        """The first value of that field (lower-case name), or None."""
        for key, value in self.fields:
            if key == name:
                return value
        return None


def parse_head(raw: bytes) -> Head:
    """A head without its closing empty line. Raises Malformed with the reason of the error table."""
    lines = raw.split(b"\r\n")
    method, target, minor = _request_line(lines[0])
    if len(lines) - 1 > FIELDS_MAX:
        raise Malformed(Reason.HEADERS_TOO_LARGE, f"more than {FIELDS_MAX} fields")
    fields = []
    single: dict[bytes, bytes] = {}
    connection = b""
    expect: bytes | None = None
    for line in lines[1:]:
        match = FIELD.fullmatch(line)
        if match is None:
            raise Malformed(Reason.INVALID_REQUEST, "a line of the head is no header field")
        if len(line) > FIELD_MAX_BYTES:
            raise Malformed(Reason.HEADERS_TOO_LARGE, f"a field of the head is longer than {FIELD_MAX_BYTES} bytes")
        name, value = match[1].lower(), match[2].strip(b" \t")
        if name in _SINGLE or name.startswith(_OURS):
            if name in single:
                raise Malformed(Reason.INVALID_REQUEST, f"{name.decode()} stands more than once")
            single[name] = value
        elif name == b"connection":
            connection += b"," + value.lower()
        elif name == b"expect":
            expect = value if expect is None else expect + b"," + value
        fields.append((name, value))
    host = single.get(b"host")
    if host is None:
        if minor == 1:
            raise Malformed(Reason.INVALID_REQUEST, "Host is missing")
    elif _HOST.fullmatch(host) is None:
        raise Malformed(Reason.INVALID_REQUEST, "Host is malformed")
    length, chunked = _framing(single, minor)
    if expect is not None and minor == 1 and expect.lower() != b"100-continue":
        raise Malformed(Reason.EXPECTATION_FAILED, "only Expect: 100-continue is understood")
    return Head(
        method,
        target,
        minor,
        tuple(fields),
        _keeps_alive(connection, minor),
        length,
        chunked,
        expect is not None and minor == 1,
    )


def _request_line(line: bytes) -> tuple[str, str, int]:
    parts = line.split(b" ")
    if len(parts) != 3 or not _METHOD.fullmatch(parts[0]):
        raise Malformed(Reason.INVALID_REQUEST, "the request line is malformed")
    method, target, version = parts
    if len(target) > TARGET_MAX_BYTES:
        raise Malformed(Reason.URI_TOO_LONG, f"the request target is longer than {TARGET_MAX_BYTES} bytes")
    match = _VERSION.fullmatch(version)
    if match is None or not _TARGET.fullmatch(target):
        raise Malformed(Reason.INVALID_REQUEST, "the request line is malformed")
    if match[1] != b"1" or match[2] not in b"01":
        raise Malformed(Reason.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.0 and HTTP/1.1 are served")
    return method.decode("ascii"), target.decode("ascii"), int(match[2])


def _framing(single: dict[bytes, bytes], minor: int) -> tuple[int | None, bool]:
    """Content-Length and whether the body is chunked; both at once is how requests are smuggled."""
    length, coding = single.get(b"content-length"), single.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise Malformed(Reason.INVALID_REQUEST, "Content-Length and Transfer-Encoding exclude each other")
        if minor == 0:
            raise Malformed(Reason.INVALID_REQUEST, "HTTP/1.0 has no Transfer-Encoding")
        if coding.lower() == b"chunked":
            return None, True
        names = [name.strip(b" \t").lower() for name in coding.split(b",")]
        if not all(map(_METHOD.fullmatch, names)) or names.count(b"chunked") > 1:
            raise Malformed(Reason.INVALID_REQUEST, "Transfer-Encoding is malformed")
        raise Malformed(Reason.NOT_IMPLEMENTED, "only Transfer-Encoding: chunked is understood")
    if length is None:
        return None, False
    if _DIGITS.fullmatch(length) is None:
        raise Malformed(Reason.INVALID_REQUEST, "Content-Length is malformed")
    return int(length), False


def _keeps_alive(connection: bytes, minor: int) -> bool:
    if not connection:
        return minor == 1
    options = {option.strip(b" \t") for option in connection.split(b",")}
    return b"close" not in options and (minor == 1 or b"keep-alive" in options)


class RequestParser:
    """Bytes of one connection → requests, in order. After the first Malformed head nothing more is read.

    Clients repeat themselves: a head that is byte for byte the last one is the same `Head` object, not parsed again.
    """

    def __init__(self) -> None:
        self._last_raw = b""
        self._last_head: Head | None = None
        self._buffer = b""
        self._body: Body | None = None
        self._framing: Framing | None = None
        self._dead = False

    @property
    def head_incomplete(self) -> bool:
        """A head has begun and not ended: its clock runs."""
        return bool(self._buffer) and self._body is None and not self._dead

    @property
    def pending(self) -> bool:
        """Bytes wait behind what was returned: `feed(b"")` may find a request in them."""
        return bool(self._buffer)

    @property
    def kept(self) -> int:
        """Bytes of those."""
        return len(self._buffer)

    def give_up(self) -> None:
        """Nothing more is read."""
        self._dead = True
        self._buffer = b""

    @property
    def body(self) -> Body | None:
        """The body that is still arriving."""
        return self._body

    def feed(self, data: bytes) -> tuple[Head | Malformed, Body] | None:
        """Add what was received and return the next request, or None while there is none.

        Call again with b"" until None. A body is complete at once when it came along, else it is filled later.
        """
        if self._dead:
            return None
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        if self._body is not None:
            data = self._feed_body(data)
            if self.body is not None or not data:
                return None
        if data[:2] == b"\r\n":  # an empty line after a body is tolerated by every server (RFC 9112, 2.2)
            data = data[2:]
        end = data.find(b"\r\n\r\n", 0, HEAD_MAX_BYTES + 4)
        try:
            if end < 0:
                self._judge_unfinished(data)
                self._buffer = data
                return None
            raw = data[:end]
            head = self._last_head if raw == self._last_raw else None
            if head is None:
                head = parse_head(raw)
                if len(raw) <= REPEATED_HEAD_MAX_BYTES:
                    self._last_raw, self._last_head = raw, head
        except Malformed as fault:
            self._dead = True
            return fault, Body(complete=True)
        if not head.chunked and len(data) - end - 4 == (head.length or 0):  # all of it is here, and nothing behind it
            return head, Body(data[end + 4 :], complete=True)
        body = Body()
        self._framing = ChunkedFraming() if head.chunked else LengthFraming(head.length or 0)
        self._body = body
        self._buffer = self._feed_body(data[end + 4 :])
        return head, body

    def _feed_body(self, data: bytes) -> bytes:
        body, framing = self._body, self._framing
        assert body is not None
        assert framing is not None
        try:
            rest = framing.feed(body, data)
        except Malformed as fault:
            body.failure = fault
            body.complete = True
            self._body = None
            self._dead = True
            return b""
        if body.complete:
            self._body = None
        return rest

    @staticmethod
    def _judge_unfinished(data: bytes) -> None:
        """Refuse what cannot become a head any more before its end arrives."""
        if len(data) > HEAD_MAX_BYTES:
            line = data.find(b"\r\n")
            if line < 0 or line > TARGET_MAX_BYTES + 256:
                raise Malformed(Reason.URI_TOO_LONG, f"the request target is longer than {TARGET_MAX_BYTES} bytes")
            raise Malformed(Reason.HEADERS_TOO_LARGE, f"the head is larger than {HEAD_MAX_BYTES} bytes")
