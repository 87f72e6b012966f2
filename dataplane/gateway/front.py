"""The gateway's HTTP connections: aiohttp's server with a strict parser, one answer per request, in order.

Here: sockets, the clocks of head and answer, keep-alive, 100-continue, early answers. Not here: grammar (`http1`), what
an answer says (`invoke`). aiohttp keeps the life of a connection: queue, flow control, keep-alive, shutdown. The parser
is ours, because a gateway must refuse what a general server tolerates, and so is the loop over requests, which spares a
task for each.
Next: `main` listens with a `Front`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from aiohttp.web import RequestHandler, Server

from controlplane.kube.clock import Clock
from dataplane.gateway.answer import Answer, encode_response
from dataplane.gateway.bodies import Body, Malformed
from dataplane.gateway.credentials import ClientCertificate, client_certificate
from dataplane.gateway.exchange import ClientGone, Payload, Request
from dataplane.gateway.http1 import Head, RequestParser
from dataplane.gateway.limits import (
    CONNECTIONS_MAX,
    HEAD_TIMEOUT_S,
    KEEPALIVE_S,
    LINGER_S,
    PIPELINE_MAX,
    UNREAD_BODY_MAX_BYTES,
    WRITE_TIMEOUT_S,
)
from dataplane.gateway.request import Ask, ask_of
from statemachine.reasons import Reason

log = logging.getLogger(__name__)


class _Parser:
    """`http1.RequestParser` with the face that aiohttp's connection expects of its parser."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._requests = RequestParser()
        self._arriving: Payload | None = None
        self._waiting = 0
        self._unparsed = b""

    @property
    def head_incomplete(self) -> bool:
        return self._requests.head_incomplete

    def feed_data(self, data: bytes) -> tuple[list[tuple[Head | Malformed, Payload]], bool, bytes]:
        messages: list[tuple[Head | Malformed, Payload]] = []
        if self._unparsed:
            data, self._unparsed = self._unparsed + data, b""
        while self._waiting < PIPELINE_MAX:
            request = self._requests.feed(data)
            data = b""
            if self._arriving is not None:
                self._arriving.wake()
                if self._arriving.body.complete:
                    self._arriving = None
            if request is None:
                break
            head, body = request
            payload = Payload(body, self._now())
            if not body.complete:
                self._arriving = payload
            messages.append((head, payload))
            self._waiting += 1
        self._unparsed = data
        return messages, False, b""

    @property
    def filled(self) -> bool:
        """A body that nobody has asked for yet is as large as may be read ahead."""
        arriving = self._arriving
        return arriving is not None and not arriving.wanted and arriving.body.size >= UNREAD_BODY_MAX_BYTES

    def give_up(self, message: str) -> tuple[Malformed, Payload]:
        """The last request of this connection: one that did not come."""
        self._waiting += 1
        return Malformed(Reason.REQUEST_TIMEOUT, message), Payload(Body(complete=True), self._now())

    def message_consumed(self) -> None:
        self._waiting -= 1

    def pause_reading(self) -> None:
        """Bodies are bounded, so that nothing asks for this."""


class Connection(RequestHandler):
    """One client connection."""

    __slots__ = ("_ask", "_ask_head", "_certificate", "_head_timer", "front")

    def __init__(self, front: "Front", server: Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server, loop=loop, keepalive_timeout=KEEPALIVE_S, lingering_time=LINGER_S, access_log=cast(Any, None)
        )
        self.front = front
        self._parser: Any = _Parser(front.clock.monotonic)
        self._max_msg_queue_size = PIPELINE_MAX
        self._msg_queue_resume_size = PIPELINE_MAX // 2
        self._head_timer: asyncio.TimerHandle | None = None
        self._certificate: ClientCertificate | None = None
        self._ask: Ask | None = None
        self._ask_head: Head | None = None

    @property
    def certificate(self) -> ClientCertificate | None:
        """The client certificate that TLS verified, if there is one."""
        return self._certificate

    @property
    def draining(self) -> bool:
        """The front wants this connection to end."""
        return self.front.draining

    def ask_of(self, head: Head) -> Ask:
        """What a head says; the last answer is kept, since the parser gives the same object for the same bytes."""
        if self._ask is None or self._ask_head is not head:
            self._ask, self._ask_head = ask_of(head), head
        return self._ask

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self.front.server.connections) > CONNECTIONS_MAX:
            cast(asyncio.Transport, transport).abort()
            return
        self._certificate = client_certificate(transport.get_extra_info("ssl_object"))

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._parser is None:
            return
        if self._parser.filled and not self._buffer_paused:
            self._pause_reading_for_buffer()
        if self._parser.head_incomplete:
            if self._head_timer is None:
                self._head_timer = self._loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)
        else:
            self._stop_head_timer()

    async def start(self) -> None:
        """One request after the other, in the connection's own task: as aiohttp's, without a task per request."""
        try:
            while not self._force_close:
                if not self._messages:
                    self._waiter = self._loop.create_future()
                    try:
                        await self._waiter
                    finally:
                        self._waiter = None
                if not await self._serve_one() or self._close:
                    break
        except asyncio.CancelledError:
            self.force_close()
            raise
        finally:
            self._task_handler = None
            if not self._force_close and self.transport is not None:
                self.transport.close()

    async def _serve_one(self) -> bool:
        """Answer the next request; False when the connection ends with it."""
        message, payload = cast(tuple[Head | Malformed, Payload], self._messages.popleft())
        self._parser_consumed()
        request = Request(message, payload, self)
        self._current_request = cast(Any, request)
        self._request_in_progress = True
        try:
            data, keep_alive = await self.front.respond(request)
            await self._write_answer(data)
        finally:
            self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None and not self._handler_waiter.done():
                self._handler_waiter.set_result(None)
        if not payload.body.complete:
            await self._linger(payload)
        if not keep_alive or self._force_close or not payload.is_eof():
            return False
        self._next_keepalive_close_time = self._loop.time() + KEEPALIVE_S
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)
        return True

    def _parser_consumed(self) -> None:
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()

    async def _linger(self, payload: Payload) -> None:
        """Read on behind an early answer, so that the client can read it before a reset."""
        payload.drop()
        self.read_on()
        try:
            async with asyncio.timeout(LINGER_S):
                await payload.ended()
        except TimeoutError:
            return

    def read_on(self) -> None:
        """Somebody takes the body that was not read further."""
        if self._buffer_paused and self.transport is not None:
            self._resume_reading_if_drained()

    def write(self, data: bytes) -> None:
        """Write now, unless the client is gone."""
        if self.transport is not None:
            self.transport.write(data)

    async def _write_answer(self, data: bytes) -> None:
        """Write, and wait until a slow client has taken it: at most WRITE_TIMEOUT_S, then the connection is dropped."""
        self.write(data)
        if not self._paused:
            return
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._drain_helper()
        except TimeoutError:
            if self.transport is not None:
                self.transport.abort()

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._messages.append(self._parser.give_up(f"the head did not arrive within {HEAD_TIMEOUT_S:g} s"))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class Front:
    """Answers HTTP with what `handler` returns; `handler` never raises but CancelledError and ClientGone."""

    def __init__(self, handler: Callable[[Request], Awaitable[Answer]], clock: Clock) -> None:
        self._handler = handler
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self.draining = False
        """Every answer says Connection: close."""
        self.server = Server(cast(Any, self.respond))

    def __call__(self) -> Connection:
        """The protocol of a new connection, for `loop.create_server`."""
        return Connection(self, self.server, self._loop)

    async def shutdown(self, timeout: float) -> None:
        """Let the requests in flight finish for `timeout` seconds, then close every connection."""
        self.draining = True
        await self.server.shutdown(timeout)

    async def respond(self, request: Request) -> tuple[bytes, bool]:
        """The bytes of the answer, and whether the connection takes another request behind it."""
        try:
            answer = await self._handler(request)
        except ClientGone:
            return b"", False
        keep_alive = request.keeps_alive(answer)
        head = request.head
        data = encode_response(
            answer,
            unix_s=self.clock.now_us() // 1_000_000,
            minor=head.minor if isinstance(head, Head) else 1,
            keep_alive=keep_alive,
            with_body=not (isinstance(head, Head) and head.method == "HEAD"),
        )
        return data, keep_alive
