"""A call as its two ends see it: request, reply, heads, and the ways in which it can fail.

No sockets and no frames: `mux.Connection` carries these, handlers and callers use them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from runtimes.contract import frames
from runtimes.contract.messages import ErrorHead

if TYPE_CHECKING:
    from runtimes.contract.mux import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNDECODABLE: Final = (ValueError, OverflowError, RecursionError)
"""What decoding the bytes of a stranger raises: msgspec's errors are ValueErrors, as is bad UTF-8; what nests deeply
is a RecursionError."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {}


def encode_head(head: object) -> bytes:
    """Msgpack bytes of a Struct or dict."""
    return _encode(head)


def decode_head(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode a head as `kind`; raises msgspec.DecodeError (ValidationError is one), whatever a peer has sent."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        head: T = decoder.decode(data)
    except msgspec.DecodeError:
        raise
    except UNDECODABLE as error:
        raise msgspec.DecodeError(f"{type(error).__name__}: {error}") from error
    return head


class Reply:
    """An answer: its head as msgpack bytes (or a Struct or dict still to be encoded), and its raw body."""

    __slots__ = ("body", "head")

    def __init__(self, head: object = b"", body: bytes = b"") -> None:
        self.head: bytes = head if isinstance(head, bytes) else _encode(head)
        self.body = body

    def decode(self, kind: type[T]) -> T:
        return decode_head(self.head, kind)


class CallError(Exception):
    """The peer took the request and answered with an error. Handlers raise it to answer so."""

    def __init__(self, error: ErrorHead) -> None:
        super().__init__(f"{error.reason}: {error.message}")
        self.error = error


class Refused(Exception):
    """The request was not started and may be sent elsewhere. Handlers raise it to answer so."""

    def __init__(self, error: ErrorHead) -> None:
        super().__init__(f"{error.reason}: {error.message}")
        self.error = error


class ConnectionLost(Exception):
    """The connection ended before the answer. `dispatched`: the request, or some of it, was written."""

    def __init__(self, message: str, *, dispatched: bool) -> None:
        super().__init__(message)
        self.dispatched = dispatched


class CallTimeout(Exception):
    """No answer within the caller's time; the request was written and may have run. The peer has been told CANCEL."""


class Request:
    """One request as its handler sees it. It is answered exactly once: see `Handler`."""

    __slots__ = ("_on_cancel", "_stream", "body", "cancelled", "connection", "deadline", "head", "method")

    def __init__(
        self, connection: Connection, stream: int, method: str, head: msgspec.Raw, body: bytes, deadline: float | None
    ) -> None:
        self.connection = connection
        self.method = method
        self.head = head
        self.body = body
        self.deadline = deadline
        """Loop time by which the caller wants the answer, None = it did not say."""
        self.cancelled = False
        """The caller no longer waits (CANCEL, or its connection is gone)."""
        self._stream = stream
        self._on_cancel: Callable[[], None] | None = None

    @property
    def peer(self) -> Any:
        """What `on_connect` left on the connection: the peer's identity."""
        return self.connection.peer

    def decode(self, kind: type[T]) -> T:
        """The head as `kind`. A head that does not decode is answered InvalidArgument."""
        try:
            return decode_head(self.head, kind)
        except msgspec.DecodeError as error:
            raise CallError(ErrorHead(reason="InvalidArgument", message=f"{self.method}: {error}")) from error

    def remaining(self) -> float | None:
        """Seconds left of the caller's deadline, never below 0."""
        return None if self.deadline is None else max(0.0, self.deadline - self.connection.loop.time())

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the caller stops waiting (at once if it already has)."""
        if self.cancelled:
            callback()
        else:
            self._on_cancel = callback

    def respond(self, reply: Reply) -> None:
        self.connection.answer(self._stream, frames.RESPONSE, reply.head, reply.body)

    def fail(self, error: ErrorHead) -> None:
        self.connection.answer(self._stream, frames.ERROR, _encode(error), b"")

    def refuse(self, error: ErrorHead) -> None:
        """Say that it was not started."""
        self.connection.answer(self._stream, frames.REFUSED, _encode(error), b"")

    def fail_with(self, error: BaseException) -> None:
        """Answer with what a handler raised; an exception that is not ours is logged and becomes InternalError."""
        match error:
            case CallError():
                self.fail(error.error)
            case Refused():
                self.refuse(error.error)
            case _:
                logger.error("handler of %s failed", self.method, exc_info=error)
                self.fail(ErrorHead(reason="InternalError", message=f"{type(error).__name__} in {self.method}"))

    def cancel(self) -> None:
        """The connection tells that the caller has gone."""
        if not self.cancelled:
            self.cancelled = True
            if self._on_cancel is not None:
                self._on_cancel()


Handler = Callable[[Request], Awaitable[Reply | None] | None]
"""Answers requests. An async function returns the Reply, or raises CallError or Refused, and runs as a task.
A function of either form that returns None has answered, or will, by `request.respond`, `fail` or `refuse`; a plain
one needs no task."""

Outcome = Reply | CallError | Refused | ConnectionLost | CallTimeout
"""How a call of ours ended."""

Done = Callable[[Outcome], None]
"""Takes the outcome of a call, on the loop; it must be quick and not raise."""
