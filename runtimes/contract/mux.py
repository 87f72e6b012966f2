"""One multiplexed connection: many calls at once over a unix socket or TLS, with deadlines, refusals and drain.

Both roles live in `Connection`: `start` (or `call`, which awaits) sends, a `Handler` answers. What may not live here:
method names, message types, routing, retries. Next: `endpoint` connects and listens; `client` and the data plane call.

Whether a request may be sent again is known at all times (I2): `Refused` = not started there;
`ConnectionLost.dispatched` = some of it was written; anything else means that it was taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

import msgspec

from runtimes.contract import frames
from runtimes.contract.calls import (
    UNDECODABLE,
    CallError,
    CallTimeout,
    ConnectionLost,
    Done,
    Handler,
    Outcome,
    Refused,
    Reply,
    Request,
    decode_head,
    encode_head,
)
from runtimes.contract.frames import ProtocolError
from runtimes.contract.inbox import Assembly, Inbox, Incoming
from runtimes.contract.limits import (
    BODY_MAX_BYTES,
    CONNECTION_BYTES_MAX,
    CONNECTION_STREAMS_MAX,
    HEAD_MAX_BYTES,
    QUEUED_FRAMES_MAX,
)
from runtimes.contract.messages import ErrorHead
from runtimes.contract.outbox import Outbox
from runtimes.contract.pending import PendingCalls

__all__ = [
    "CallError",
    "CallTimeout",
    "Connection",
    "ConnectionLost",
    "Done",
    "Handler",
    "Outcome",
    "Refused",
    "Reply",
    "Request",
    "decode_head",
    "encode_head",
]

logger = logging.getLogger(__name__)

_decode_request: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode


class Connection(asyncio.BufferedProtocol):
    """One connection in either role. Made by `endpoint.connect_*` and `endpoint.Server`, never by hand.

    `handler` None: requests of the peer are refused. `peer` is free for the identity that `on_connect` finds.
    `on_close(connection)` runs once, when the transport is gone. It is a BufferedProtocol because TLS then decrypts
    into our buffer, which costs half of what it costs to be handed bytes.
    """

    def __init__(
        self,
        *,
        handler: Handler | None = None,
        on_connect: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        initiator: bool = True,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.peer: Any = None
        self.closed = self.loop.create_future()
        """Done when the transport is gone."""
        self._handler = handler
        self._on_connect = on_connect
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._next_stream = 1 if initiator else 2
        self._inbox = Inbox(self._frame)
        self._outbox = Outbox(self.loop, self._wake_when_idle)
        self._calls = PendingCalls(self.loop, self.give_up)
        self._serving: dict[int, Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._partial = Assembly()
        self._bytes_received = 0
        self._going_away = False
        self._peer_going_away = False
        self._highest_seen = 0
        self._highest_taken = 0
        self._pings: deque[asyncio.Future[None]] = deque()
        self._idle_waiters: list[asyncio.Future[None]] = []

    # --- the caller's side

    @property
    def usable(self) -> bool:
        """A new call may be sent: the transport is open and the peer has not said GOAWAY."""
        return self._transport is not None and not self._peer_going_away and not self.closed.done()

    @property
    def calls_in_flight(self) -> int:
        """Calls of ours that wait for an answer."""
        return len(self._calls)

    @property
    def requests_in_flight(self) -> int:
        """Requests of the peer that have not been answered."""
        return len(self._serving)

    def start(
        self,
        method: str,
        head: object,
        body: bytes | memoryview,
        done: Done,
        *,
        timeout: float,
        grace: float = 0.0,
    ) -> int:
        """Send one request whose deadline is `timeout` seconds from now; wait `grace` seconds more for the answer.

        `done` is called once with the Reply, or with CallError (taken, failed), Refused (not started, may go
        elsewhere), ConnectionLost (`dispatched` tells) or CallTimeout; never before this returns. Raises Refused or
        ConnectionLost when nothing is sent. The number returned is for `give_up`.
        """
        if self._transport is None:
            raise ConnectionLost("the connection is closed", dispatched=False)
        if self._peer_going_away:
            raise Refused(ErrorHead(reason="Draining", message="the peer said GOAWAY"))
        encoded = encode_head((method, head))
        if len(encoded) > HEAD_MAX_BYTES or len(body) > BODY_MAX_BYTES:
            limit = f"head {len(encoded)} B of {HEAD_MAX_BYTES} B, body {len(body)} B of {BODY_MAX_BYTES} B"
            raise Refused(ErrorHead(reason="RequestTooLarge", message=f"{method} does not fit the wire: {limit}"))
        calls, outbox = self._calls, self._outbox
        if outbox.queued_bytes + len(body) > CONNECTION_BYTES_MAX or len(calls) >= CONNECTION_STREAMS_MAX:
            raise Refused(
                ErrorHead(reason="Overloaded", message="too much waits on this connection", retry_after_ms=100)
            )
        stream = self._next_stream
        self._next_stream = stream + 2
        calls.add(stream, done, method, timeout + grace)
        value = max(1, min(int(timeout * 1000), 0xFFFFFFFF))
        outbox.send(frames.REQUEST, stream, value, encoded, body, alone=len(calls) == 1)
        return stream

    def give_up(self, stream: int) -> None:
        """The answer of that call is not waited for any more: `done` is not called, the peer is told CANCEL."""
        if not self._calls.drop(stream):
            return
        self._partial.drop(stream)
        if not self._outbox.withdraw(stream):
            self._outbox.send(frames.CANCEL, stream, 0, b"", b"")
        self._wake_when_idle()

    async def call(
        self, method: str, head: object, body: bytes | memoryview = b"", *, timeout: float, grace: float = 0.0
    ) -> Reply:
        """As `start`, awaited: returns the Reply, raises what `done` would get.

        When the calling task is cancelled the peer is told CANCEL.
        """
        future: asyncio.Future[Reply] = self.loop.create_future()
        stream = self.start(method, head, body, partial(_settle, future), timeout=timeout, grace=grace)
        try:
            return await future
        except asyncio.CancelledError:
            self.give_up(stream)
            raise

    async def ping(self, *, timeout: float) -> None:
        """Return when the peer's event loop has answered; raises CallTimeout or ConnectionLost."""
        if not self.usable:
            raise ConnectionLost("the connection is closed", dispatched=False)
        future = self.loop.create_future()
        self._pings.append(future)
        self._outbox.send(frames.PING, 0, 0, b"", b"")
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError as error:
            raise CallTimeout(f"no answer to PING within {timeout:g} s") from error

    # --- the server's side

    async def drain(self, *, timeout: float) -> bool:
        """Say GOAWAY, refuse what comes later, wait for what is in flight, close. False: `timeout` seconds passed."""
        self.go_away()
        waiter = self.loop.create_future()
        self._idle_waiters.append(waiter)
        self._wake_when_idle()
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self.close()
        return True

    def go_away(self) -> None:
        """Tell the peer to send no more requests here; those that still come are REFUSED."""
        if not self._going_away and not self.closed.done():
            self._going_away = True
            self._outbox.send(frames.GOAWAY, self._highest_taken, 0, b"", b"")

    def close(self) -> None:
        """Write what is queued in the transport, then close. Unanswered calls end in ConnectionLost."""
        if self._transport is not None:
            self._outbox.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def get_extra_info(self, name: str) -> Any:
        """As of the transport: `socket`, `ssl_object`, `peername`."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def answer(self, stream: int, kind: int, head: bytes, body: bytes) -> None:
        """Write the one answer of a request; a second one is dropped. `Request.respond`, `fail`, `refuse` call it."""
        request = self._serving.pop(stream, None)
        if request is None:
            return
        self._bytes_received -= len(request.body)
        if not request.cancelled:
            if len(body) > BODY_MAX_BYTES or len(head) > HEAD_MAX_BYTES:
                kind, body = frames.ERROR, b""
                head = encode_head(ErrorHead(reason="InternalError", message="the answer does not fit the wire"))
            self._outbox.send(kind, stream, 0, head, body, alone=not self._serving)
        if self._idle_waiters:
            self._wake_when_idle()

    def _take(self, stream: int, value: int, encoded: bytes, body: bytes) -> None:
        try:
            method, head = _decode_request(encoded)
        except UNDECODABLE as error:
            raise ProtocolError(f"head of a request: {error}") from error
        deadline = self.loop.time() + value / 1000 if value else None
        request = self._serving[stream] = Request(self, stream, method, head, body, deadline)
        handler = self._handler
        assert handler is not None, "requests without a handler are refused before they get here"
        try:
            awaitable = handler(request)
        except Exception as error:
            request.fail_with(error)
            return
        if awaitable is not None:
            task = self.loop.create_task(self._run(request, awaitable))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _run(request: Request, awaitable: Awaitable[Reply | None]) -> None:
        try:
            reply = await awaitable
        except asyncio.CancelledError:
            request.fail(ErrorHead(reason="InternalError", message=f"{request.method} was interrupted"))
            raise
        except Exception as error:
            request.fail_with(error)
        else:
            if reply is not None:
                request.respond(reply)

    def _refusal(self, body_size: int) -> ErrorHead | None:
        """Why a request is not taken now, or None."""
        if self._going_away:
            return ErrorHead(reason="Draining", message="going away")
        if self._handler is None:
            return ErrorHead(reason="UnknownMethod", message="this end takes no requests")
        full = self._bytes_received + self._outbox.queued_bytes + body_size > CONNECTION_BYTES_MAX
        if full or len(self._serving) + len(self._partial) >= CONNECTION_STREAMS_MAX:
            return ErrorHead(
                reason="Overloaded", message="too much is in flight on this connection", retry_after_ms=100
            )
        return None

    def _wake_when_idle(self) -> None:
        if self._idle_waiters and not (self._serving or self._partial or self._outbox or self._calls):
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()

    # --- frames in

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it.
        self._outbox.open(self._transport)
        if self._on_connect is not None:
            try:
                self._on_connect(self)
            except Exception as error:
                logger.warning("connection refused: %s", error)
                self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.space

    def buffer_updated(self, size: int) -> None:
        """Take the next bytes of the peer. What breaks the protocol ends the connection."""
        try:
            self._inbox.filled(size)
        except ProtocolError as error:
            logger.warning("closing a connection: %s", error)
            self.abort()

    def _frame(self, kind: int, stream: int, value: int, head: bytes, body_size: int, chunk: bytes) -> None:
        if kind == frames.REQUEST:
            self._request(stream, value, head, body_size, chunk)
        elif kind in (frames.RESPONSE, frames.ERROR, frames.REFUSED):
            if len(chunk) == body_size:
                self._answered(kind, stream, head, chunk)
            elif stream in self._calls:  # else nobody waits for it any more
                self._partial.begin(stream, Incoming(kind, value, head, body_size, chunk))
        elif kind == frames.BODY:
            self._more(stream, chunk)
        elif kind == frames.CANCEL:
            self._cancelled(stream)
        elif kind == frames.GOAWAY:
            self._told_to_go(stream)
        elif kind == frames.PING:
            self._reply(frames.PONG, 0, b"")
        elif kind == frames.PONG:
            if self._pings and not (waiter := self._pings.popleft()).done():
                waiter.set_result(None)
        else:
            raise ProtocolError(f"unknown kind of frame {kind}")

    def _request(self, stream: int, value: int, head: bytes, body_size: int, chunk: bytes) -> None:
        if stream <= self._highest_seen:
            raise ProtocolError(f"request {stream} after {self._highest_seen}")
        self._highest_seen = stream
        refusal = self._refusal(body_size)
        if refusal is not None:
            self._reply(frames.REFUSED, stream, encode_head(refusal))
            return  # What still comes of its body belongs to no stream, and is dropped.
        self._highest_taken = stream
        self._bytes_received += body_size
        if len(chunk) == body_size:
            self._take(stream, value, head, chunk)
        else:
            self._partial.begin(stream, Incoming(frames.REQUEST, value, head, body_size, chunk))

    def _more(self, stream: int, chunk: bytes) -> None:
        whole = self._partial.more(stream, chunk)
        if whole is None:
            return
        incoming, body = whole
        if incoming.kind == frames.REQUEST:
            self._take(stream, incoming.value, incoming.head, body)
        else:
            self._answered(incoming.kind, stream, incoming.head, body)

    def _answered(self, kind: int, stream: int, head: bytes, body: bytes) -> None:
        self._calls.answered(kind, stream, head, body)
        if self._idle_waiters:
            self._wake_when_idle()

    def _cancelled(self, stream: int) -> None:
        incoming = self._partial.get(stream)
        if incoming is not None and incoming.kind == frames.REQUEST:
            self._partial.drop(stream)  # Never taken; what still comes of it is dropped.
            self._bytes_received -= incoming.size
            self._wake_when_idle()
        request = self._serving.get(stream)
        if request is not None:
            request.cancel()

    def _told_to_go(self, highest_taken: int) -> None:
        self._peer_going_away = True
        for stream in self._calls.refuse_above(highest_taken):
            self._outbox.withdraw(stream)

    # --- frames out

    def _reply(self, kind: int, stream: int, head: bytes) -> None:
        """Write what the peer can provoke without bound; one that reads nothing of it loses its connection."""
        if self._outbox.length >= QUEUED_FRAMES_MAX:
            raise ProtocolError("the peer asks and does not read")
        self._outbox.send(kind, stream, 0, head, b"")

    def pause_writing(self) -> None:
        self._outbox.pause()

    def resume_writing(self) -> None:
        self._outbox.resume()

    def connection_lost(self, error: Exception | None) -> None:
        unwritten = self._outbox.unwritten_requests()
        reason = f"the connection was lost: {error}" if error else "the connection was closed by the peer"
        self._transport = None
        self._outbox.close()
        self._inbox.close()
        self._partial.clear()
        if not self.closed.done():
            self.closed.set_result(None)
        self._calls.lose(reason, unwritten)
        for waiter in self._pings:
            if not waiter.done():
                waiter.set_exception(ConnectionLost(reason, dispatched=True))
        for request in list(self._serving.values()):
            request.cancel()
        self._wake_when_idle()
        if self._on_close is not None:
            self._on_close(self)


def _settle(future: asyncio.Future[Reply], outcome: Outcome) -> None:
    """The outcome of an awaited call."""
    if future.done():
        return
    if isinstance(outcome, Reply):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
