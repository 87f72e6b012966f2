"""The answers of the gateway: one shape for every error, bytes for the socket.

Here: the Status of an error, the header block of any response. Pure but for the Date, which is given. Not here: which
reason applies (`invoke`), the socket (`front`). Next: `invoke` builds an `Answer`, `front` writes it.
"""

import re
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct

from dataplane.wire.messages import Cause, Hop
from statemachine.reasons import Reason

_encode: Final = msgspec.json.Encoder().encode
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e]")
RETRY_AFTER_S: Final = 1  # seconds; what waits is a registration, a worker or an API server: short
RETRY_AFTER_MAX_S: Final = 60  # whatever an owner says
MESSAGE_MAX_CHARS: Final = 8192  # an error's message: exception text and its last frames come bounded from the owner
CAUSES_MAX: Final = 16  # of an error, from whoever took the call; an honest one names the exception and its frames
CAUSE_MAX_CHARS: Final = 4096
TIMINGS_MAX: Final = 8  # hops that a result tells of; there are five
TIMING_NAME_MAX_CHARS: Final = 32


class _Details(Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[Cause, ...] = ()
    retry_after_seconds: int = 0


class _Extension(Struct, frozen=True, rename="camel"):
    hop: Hop
    invocation_id: str
    retryable: bool


class _Status(Struct, frozen=True, rename="camel", kw_only=True):
    kind: str = "Status"
    api_version: str = "v1"
    metadata: dict[str, str] = {}
    status: str = "Failure"
    message: str
    reason: str
    code: int
    details: _Details
    kruntimes: _Extension


class Failure(Struct, frozen=True, kw_only=True):
    """An error before it is written: the reason decides status code and the defaults of the rest."""

    reason: Reason
    message: str = ""
    hop: Hop = "gateway"
    retryable: bool | None = None
    retry_after_s: int | None = None
    causes: tuple[Cause, ...] = ()
    close: bool = False
    """The connection cannot be used any more."""
    allow: str = "POST"
    """What MethodNotAllowed names instead."""


class Answer(Struct, frozen=True, kw_only=True):
    """A whole response, except for what the connection adds."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"
    close: bool = False
    reason: str = ""
    """For metrics: the Reason of an error, empty for a success."""


def error_answer(failure: Failure, *, invocation_id: str, uid: str = "", name: str = "") -> Answer:
    """The one JSON shape of every error: a Kubernetes Status, and ours beside it (I1).

    `uid` and `name` are those of the Run, as far as the caller may know them.
    """
    info = failure.reason.info
    retryable = info.retryable if failure.retryable is None else failure.retryable
    retry_after = 0
    if retryable and info.http_status in (429, 503):
        retry_after = max(RETRY_AFTER_S, min(failure.retry_after_s or 0, RETRY_AFTER_MAX_S))
    about_run = bool(uid)
    status = _Status(
        message=(failure.message or info.sentence)[:MESSAGE_MAX_CHARS],
        reason=failure.reason.value,
        code=info.http_status,
        details=_Details(
            name=name,
            group="kruntimes.io" if about_run else "",
            kind="runs" if about_run else "",
            uid=uid,
            causes=tuple(
                Cause(cause.reason[:CAUSE_MAX_CHARS], cause.message[:CAUSE_MAX_CHARS])
                for cause in failure.causes[:CAUSES_MAX]
            ),
            retry_after_seconds=retry_after,
        ),
        kruntimes=_Extension(hop=failure.hop, invocation_id=invocation_id, retryable=retryable),
    )
    headers = [("X-Kruntime-Invocation-ID", invocation_id)]
    if retry_after:
        headers.append(("Retry-After", str(retry_after)))
    if failure.reason is Reason.UNAUTHENTICATED:
        headers.append(("WWW-Authenticate", 'Bearer realm="kruntimes"'))
    if failure.reason is Reason.METHOD_NOT_ALLOWED:
        headers.append(("Allow", failure.allow))
    return Answer(
        status=info.http_status,
        body=_encode(status),
        headers=tuple(headers),
        close=failure.close,
        reason=failure.reason.value,
    )


def server_timing(entries: tuple[tuple[str, float], ...]) -> str:
    """A Server-Timing value: `name;dur=milliseconds` per hop, outermost first."""
    known = [entry for entry in entries[:TIMINGS_MAX] if len(entry[0]) <= TIMING_NAME_MAX_CHARS]
    return ", ".join([f"{name};dur={milliseconds:.3f}" for name, milliseconds in known])


def encode_response(answer: Answer, *, unix_s: int, minor: int, keep_alive: bool, with_body: bool) -> bytes:
    """The bytes of one response. A HEAD request gets the length of what GET would get, and no body."""
    connection = "" if keep_alive and minor else "keep-alive" if keep_alive else "close"
    fields = [f"{name}: {_printable(value)}\r\n" for name, value in answer.headers]
    start = _start(unix_s, answer.status, answer.content_type, connection)
    head = f"{start}{''.join(fields)}Content-Length: {len(answer.body)}\r\n\r\n".encode("ascii")
    return head + answer.body if with_body else head


def _printable(value: str) -> str:
    return value if value.isascii() and value.isprintable() else _UNPRINTABLE.sub("?", value)


@lru_cache(maxsize=128)
def _start(unix_s: int, status: int, content_type: str, connection: str) -> str:
    """The first lines, which are the same for many answers of one second."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Date: {formatdate(unix_s, usegmt=True)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Content-Type: {content_type}",
        *([f"Connection: {connection}"] if connection else ()),
    ]
    return "\r\n".join(lines) + "\r\n"
