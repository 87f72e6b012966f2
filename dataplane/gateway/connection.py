"""One HTTP connection of a client: its requests in order, one answer for each, and a clock for every wait.

Here: the socket, the clocks of head, idleness and unread answers, keep-alive, pipelining, early answers. Not here:
grammar (`http1`), what an answer says (`site`, `invoke`), what all connections share (`front`). A connection has no
task: what was received is parsed, judged and passed on in one turn of the loop, and the answer is written from the
callback that brings it. TLS decrypts into one buffer for all connections (BufferedProtocol): being handed bytes costs
twice as much.
Next: `front.Front` makes one per client.
"""

import asyncio
from collections import deque
from typing import Any, cast

from dataplane.gateway.answer import Answer
from dataplane.gateway.bodies import Body, Malformed
from dataplane.gateway.credentials import ClientCertificate, client_certificate
from dataplane.gateway.exchange import Payload, Request
from dataplane.gateway.http1 import Head, RequestParser
from dataplane.gateway.limits import (
    AHEAD_HEAD_BYTES,
    AHEAD_MAX_BYTES,
    AHEAD_READ_BYTES,
    CONNECTIONS_MAX,
    HEAD_TIMEOUT_S,
    KEEPALIVE_S,
    LARGE_CONNECTIONS_MAX,
    LARGE_READ_BYTES,
    LINGER_S,
    PIPELINE_MAX,
    UNREAD_BODY_MAX_BYTES,
    WRITE_TIMEOUT_S,
)
from dataplane.gateway.request import Ask, ask_of
from dataplane.gateway.shared import Shared
from statemachine.reasons import Reason


class Connection(asyncio.BufferedProtocol):
    """One client connection. `current` is the request that is being answered; others wait behind it."""

    __slots__ = (
        "_ahead",
        "_arriving",
        "_ask",
        "_ask_head",
        "_certificate",
        "_closing",
        "_ended",
        "_head_timer",
        "_idle_since",
        "_idle_timer",
        "_large",
        "_linger_timer",
        "_lingering",
        "_parser",
        "_stepping",
        "_transport",
        "_unparsed",
        "_waiting",
        "_write_timer",
        "current",
        "front",
        "reading_paused",
    )

    def __init__(self, front: Shared) -> None:
        self.front = front
        self.current: Request | None = None
        self.reading_paused = False
        self._transport: asyncio.Transport | None = None
        self._parser = RequestParser()
        self._waiting: deque[tuple[Head | Malformed, Payload]] = deque()
        self._arriving: Payload | None = None
        self._unparsed = b""
        self._ahead = 0
        self._lingering: tuple[Payload, bool] | None = None
        self._closing = False
        self._ended = False
        self._large = False
        self._stepping = False
        self._certificate: ClientCertificate | None = None
        self._ask: Ask | None = None
        self._ask_head: Head | None = None
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # --- what a request asks of its connection (exchange.Carrier)

    @property
    def certificate(self) -> ClientCertificate | None:
        """The client certificate that TLS verified, if there is one."""
        return self._certificate

    @property
    def draining(self) -> bool:
        """This connection is to end behind the answer."""
        if self._large and self.front.large_connections > LARGE_CONNECTIONS_MAX:
            return True
        return self.front.draining or (self._ended and not self._waiting)

    @property
    def idle_since(self) -> float | None:
        """Loop time of its last answer, or of its beginning; 0 when it is closing, None while something is going on."""
        if self._closing:
            return 0.0
        busy = self.current is not None or self._lingering is not None or self._waiting or self._arriving is not None
        return None if busy or self._parser.pending else self._idle_since

    def ask_of(self, head: Head) -> Ask:
        """What a head says; the last answer is kept, since the parser gives the same object for the same bytes."""
        ask = self._ask
        if ask is None or self._ask_head is not head:
            ask = self._ask = ask_of(head)
            self._ask_head = head
        return ask

    def write(self, data: bytes) -> None:
        """Write now, unless the client is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def read_on(self) -> None:
        """Somebody takes the body that was not read further."""
        self._regulate()

    def finish(self, request: Request, answer: Answer) -> None:
        """The answer of the current request. A second one, or one for a client that is gone, is dropped."""
        if request is not self.current:
            return
        self.current = None
        self.front.answered(request, answer)
        if self._transport is None:
            return
        data, keep_alive = self.front.encode(request, answer)
        self._transport.write(data)
        if not request.payload.body.complete:
            self._linger(request.payload, keep_alive)
        elif keep_alive:
            self._idle_since = self.front.loop.time()
        else:
            self.close()
        if self._waiting or self._unparsed or self._ended:
            self._step()

    # --- the life of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it.
        if len(self.front.connections) >= CONNECTIONS_MAX and not self.front.make_room():
            self._closing = True
            self._transport.abort()
            return
        self.front.connections.add(self)
        tls = transport.get_extra_info("ssl_object")
        self._certificate = client_certificate(tls)
        if tls is not None:
            cast(Any, transport).set_read_buffer_limits(high=AHEAD_READ_BYTES)  # of what TLS holds while nobody reads
        self._idle_since = self.front.loop.time()
        self._idle_timer = self.front.loop.call_later(KEEPALIVE_S, self._look_for_idleness)

    def connection_lost(self, error: Exception | None) -> None:
        self.front.connections.discard(self)
        self._transport = None
        for timer in (self._idle_timer, self._head_timer, self._write_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        payloads = [payload for _, payload in self._waiting]
        if self.current is not None:
            payloads.append(self.current.payload)
        for payload in payloads:
            payload.gone = True
            payload.wake()
        self._waiting.clear()
        self._unparsed = b""
        self.front.ahead_bytes -= self._ahead
        self._ahead = 0
        self.front.large_connections -= self._large
        self._large = False
        self.front.connection_ended()

    def eof_received(self) -> bool:
        """The client sends no more. Over TCP it may still read what it asked for; TLS ends both ways at once."""
        transport = self._transport
        plain = transport is not None and transport.get_extra_info("sslcontext") is None
        self._ended = True  # closed behind the last answer
        return plain and (self.current is not None or bool(self._waiting))

    def close(self) -> None:
        """Write what is left to write, then close; a client that does not read it is dropped after WRITE_TIMEOUT_S."""
        self._closing = True
        self._waiting.clear()
        self._unparsed = b""
        if self._transport is not None:
            self._transport.close()
            self._start_write_timer()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._start_write_timer()

    def resume_writing(self) -> None:
        if self._write_timer is not None and not self._closing:
            self._write_timer.cancel()
            self._write_timer = None
            self._step()

    def _start_write_timer(self) -> None:
        if self._write_timer is None:
            self._write_timer = self.front.loop.call_later(WRITE_TIMEOUT_S, self.abort)

    def _look_for_idleness(self) -> None:
        left = self._idle_since + KEEPALIVE_S - self.front.loop.time()
        if self.current is not None or self._lingering is not None:
            left = KEEPALIVE_S
        if left > 0:
            self._idle_timer = self.front.loop.call_later(left, self._look_for_idleness)
        else:
            self.close()

    # --- bytes in, requests in their order

    def get_buffer(self, sizehint: int) -> memoryview:
        """All of the buffer for what somebody waits for; little for what comes ahead of its turn."""
        if self.current is None:
            return self.front.inbox if self._write_timer is None else self.front.ahead_inbox
        return self.front.inbox if self.current.payload is self._arriving else self.front.ahead_inbox

    def buffer_updated(self, size: int) -> None:
        if size >= LARGE_READ_BYTES and not self._large:
            self._large = True
            self.front.large_connections += 1
        self.received(self.front.inbox[:size].tobytes())

    def received(self, data: bytes) -> None:
        """Take the next bytes of the client."""
        if self._closing:
            return
        self._unparsed = self._unparsed + data if self._unparsed else data
        self._step()

    def _step(self) -> None:
        """Parse as far as may be read ahead, and start the next request if none is current."""
        if self._stepping:
            return  # A request that was answered at once: the loop below goes on with the next.
        self._stepping = True
        try:
            self._parse()
            while self._waiting and self._free:
                head, payload = self._waiting.popleft()
                request = self.current = Request(head, payload, self)
                self.front.serve(request)
                if self._unparsed or self._parser.pending:
                    self._parse()
        finally:
            self._stepping = False
        if self._ended and self._free and not self._waiting:
            self.close()
            return
        self._regulate()
        if self._parser.head_incomplete and len(self._waiting) < PIPELINE_MAX:
            if self._parser.kept > AHEAD_HEAD_BYTES and self.front.ahead_bytes > AHEAD_MAX_BYTES:
                self._refuse(Reason.OVERLOADED, f"{AHEAD_MAX_BYTES} bytes of requests wait in this gateway")
            elif self._head_timer is None:
                self._head_timer = self.front.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)
        elif self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    @property
    def _free(self) -> bool:
        """The next request may be taken up."""
        return self.current is None and self._lingering is None and self._write_timer is None

    def _parse(self) -> None:
        parser, waiting = self._parser, self._waiting
        data, self._unparsed = self._unparsed, b""
        while len(waiting) < PIPELINE_MAX:
            request = parser.feed(data)
            data = b""
            if self._arriving is not None:
                self._more_arrived(self._arriving)
            if request is None:
                return
            head, body = request
            payload = Payload(body, self.front.clock.monotonic())
            if not body.complete:
                self._arriving = payload
            waiting.append((head, payload))
            if not parser.pending:
                return
        self._unparsed = data

    def _more_arrived(self, arriving: Payload) -> None:
        arriving.wake()
        if arriving.body.complete:
            self._arriving = None
            if self._lingering is not None and self._lingering[0] is arriving:
                self._end_lingering()

    def _regulate(self) -> None:
        """Read no further while enough waits: whole requests, or a body that nobody has asked for yet."""
        arriving, current = self._arriving, self.current
        ahead = len(self._unparsed) + self._parser.kept
        for _, payload in self._waiting:
            ahead += payload.body.kept
        if arriving is not None and not arriving.wanted and current is not None and arriving is current.payload:
            ahead += arriving.body.kept
        if ahead != self._ahead:
            self.front.ahead_bytes += ahead - self._ahead
            self._ahead = ahead
        full = False
        if (current is not None or self._waiting) and (arriving is None or not arriving.wanted):
            # What others need is not kept here either: the request that is being answered goes on without it.
            most = UNREAD_BODY_MAX_BYTES if self.front.ahead_bytes <= AHEAD_MAX_BYTES else 1
            full = ahead >= most or bool(self._unparsed)
        if full is not self.reading_paused and self._transport is not None:
            self.reading_paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _head_timed_out(self) -> None:
        self._head_timer = None
        self._refuse(Reason.REQUEST_TIMEOUT, f"the head did not arrive within {HEAD_TIMEOUT_S:g} s")

    def _refuse(self, reason: Reason, message: str) -> None:
        """The head that is arriving is given up: an answer for it, and the end."""
        self._parser.give_up()
        self._waiting.append((Malformed(reason, message), Payload(Body(complete=True), self.front.clock.monotonic())))
        self._step()

    # --- early answers

    def _linger(self, payload: Payload, keep_alive: bool) -> None:
        """Read on behind an early answer, so that the client can read it before a reset."""
        payload.drop()
        self._lingering = payload, keep_alive
        self._linger_timer = self.front.loop.call_later(LINGER_S, self.close)
        self._regulate()

    def _end_lingering(self) -> None:
        assert self._lingering is not None
        payload, keep_alive = self._lingering
        self._lingering = None
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if keep_alive and payload.body.failure is None:
            self._idle_since = self.front.loop.time()
        else:
            self.close()
