"""One request as a handler sees it: its head, its body as it arrives, and whether its connection can go on behind it.

Here: waiting for a body, asking for it, giving up on it. Not here: sockets and their order (`connection`), what a
request means (`request`). Next: `site` and `invoke` take a `Request`; `connection.Connection` makes it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from dataplane.gateway.answer import Answer
from dataplane.gateway.bodies import Body, Malformed
from dataplane.gateway.credentials import ClientCertificate
from dataplane.gateway.http1 import Head
from dataplane.gateway.limits import BODY_TIMEOUT_S, UNREAD_BODY_MAX_BYTES
from dataplane.gateway.request import Ask
from runtimes.contract.limits import INVOKE_BODY_MAX_BYTES
from statemachine.reasons import Reason

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Carrier(Protocol):
    """What a request needs of its connection."""

    @property
    def certificate(self) -> ClientCertificate | None: ...
    @property
    def draining(self) -> bool: ...
    def ask_of(self, head: Head) -> Ask: ...
    def write(self, data: bytes) -> None: ...
    def read_on(self) -> None: ...
    def finish(self, request: "Request", answer: Answer) -> None: ...


Arrived = Callable[[int], None]
"""Hears how many bytes of a body are in memory, whenever more came; it may raise, and the body is not waited for."""


class ClientGone(Exception):
    """The client went before its request was whole: there is nobody to answer."""


class Payload:
    """A body as the handler waits for it."""

    __slots__ = ("_waiter", "body", "gone", "since_s", "wanted")

    def __init__(self, body: Body, since_s: float) -> None:
        self.body = body
        self.since_s = since_s
        """Clock.monotonic at which the head was complete: the call's deadline counts from here."""
        self.gone = False
        self.wanted = False
        """Somebody takes it, or drops it. Before that only UNREAD_BODY_MAX_BYTES of it are read from the socket."""
        self._waiter: asyncio.Future[None] | None = None

    def is_eof(self) -> bool:
        """Nothing more will come."""
        return self.body.complete or self.gone

    def drop(self) -> None:
        """Nobody will take the rest: it is read and not kept."""
        self.wanted = True
        self.body.drop()

    def give_up(self) -> None:
        """Its room is needed: whoever waits for it is woken, and is told so by `arrived`."""
        self.drop()
        self.wake()

    async def settled(self, arrived: Arrived) -> None:
        """Until the body is complete or cannot become an acceptable one. Raises ClientGone, or what `arrived` does."""
        arrived(self.body.kept)
        while not (self.body.complete or self.body.too_large):
            if self.gone:
                raise ClientGone
            await self._next()
            arrived(self.body.kept)

    def wake(self) -> None:
        """More arrived, or nothing more will."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _next(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Request:
    """One request with its connection, as handlers see it."""

    __slots__ = ("_connection", "head", "payload")

    def __init__(self, head: Head | Malformed, payload: Payload, connection: Carrier) -> None:
        self.head = head
        self.payload = payload
        self._connection = connection

    @property
    def certificate(self) -> ClientCertificate | None:
        """The client certificate of the connection, if it has one that TLS verified."""
        return self._connection.certificate

    @property
    def ask(self) -> Ask:
        """What the head says. Of a request that is not Malformed."""
        return self._connection.ask_of(cast(Head, self.head))

    @property
    def since_s(self) -> float:
        """Clock.monotonic at which the head was complete."""
        return self.payload.since_s

    async def read(self, arrived: Arrived) -> bytes:
        """The whole body, asking for it if the client waits to be asked. Raises Malformed, ClientGone, or what
        `arrived` does, which is called only while the body is awaited."""
        head, payload = self.head, self.payload
        assert isinstance(head, Head)
        if head.length is not None and head.length > INVOKE_BODY_MAX_BYTES:
            raise _too_large(f"the body has {head.length} bytes")
        if not payload.body.complete:
            payload.wanted = True
            self._connection.read_on()
            if head.expects_continue and not payload.body.size:
                self._connection.write(CONTINUE)
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    await payload.settled(arrived)
            except TimeoutError as error:
                message = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
                raise Malformed(Reason.REQUEST_TIMEOUT, message) from error
        if payload.body.failure is not None:
            raise payload.body.failure
        if payload.body.too_large:
            raise _too_large("the body is larger")
        return payload.body.take()

    @property
    def whole_bytes(self) -> int | None:
        """The size of the body if it is all here and acceptable."""
        body = self.payload.body
        return body.size if body.complete and body.failure is None and not body.too_large else None

    def keeps_alive(self, answer: Answer) -> bool:
        """Whether the connection can take another request behind this answer."""
        head, body = self.head, self.payload.body
        if answer.close or not isinstance(head, Head) or not head.keep_alive or self._connection.draining:
            return False
        if body.complete:
            return body.failure is None
        return not head.expects_continue and head.length is not None and head.length <= UNREAD_BODY_MAX_BYTES

    def answer(self, answer: Answer) -> None:
        """Write the one answer; a second one is dropped. A client that is gone costs nothing."""
        self._connection.finish(self, answer)


def _too_large(what: str) -> Malformed:
    return Malformed(Reason.REQUEST_TOO_LARGE, f"{what}, the limit is {INVOKE_BODY_MAX_BYTES} bytes")
