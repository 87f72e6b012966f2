"""The gateway's port: its connections, the handler that answers their requests, and its end.

Here: tasks for requests that must wait, an answer's bytes, shutdown. Not here: one connection (`connection`), what an
answer says (`site`). Next: `process` listens with a `Front`.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any

from controlplane.kube.clock import Clock
from dataplane.gateway.answer import Answer, encode_response
from dataplane.gateway.connection import Connection
from dataplane.gateway.exchange import ClientGone, Request
from dataplane.gateway.http1 import Head
from dataplane.gateway.limits import AHEAD_READ_BYTES, EVICTED_AT_ONCE, READ_BYTES

Handler = Callable[[Request], Coroutine[Any, Any, Answer] | None]
"""Answers a request. A coroutine runs as a task and returns the answer; it raises nothing but ClientGone. None: it has
been answered, or will be, by `request.answer`."""


class Front:
    """Answers HTTP with what `handler` returns. `on_answer(request, answer)` hears of each answer as it is written."""

    def __init__(
        self,
        handler: Handler,
        clock: Clock,
        *,
        on_answer: Callable[[Request, Answer], None] = lambda request, answer: None,
    ) -> None:
        self._handler = handler
        self.answered = on_answer
        self.clock = clock
        self.loop = asyncio.get_running_loop()
        self.inbox = memoryview(bytearray(READ_BYTES))
        """Where every connection's bytes arrive: they are taken out before the loop does anything else."""
        self.ahead_inbox = self.inbox[:AHEAD_READ_BYTES]
        self.ahead_bytes = 0
        """Heads and bodies in memory that nobody has asked for yet."""
        self.large_connections = 0
        """Those for which TLS keeps large buffers."""
        self.draining = False
        """Every answer says Connection: close."""
        self.connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    def __call__(self) -> Connection:
        """The protocol of a new connection, for `loop.create_server`."""
        return Connection(self)

    def serve(self, request: Request) -> None:
        """Have a request answered."""
        coroutine = self._handler(request)
        if coroutine is not None:
            task = self.loop.create_task(self._wait(request, coroutine))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @staticmethod
    async def _wait(request: Request, coroutine: Coroutine[Any, Any, Answer]) -> None:
        try:
            request.answer(await coroutine)
        except ClientGone:
            return

    def encode(self, request: Request, answer: Answer) -> tuple[bytes, bool]:
        """The bytes of an answer, and whether the connection takes another request behind it."""
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

    def make_room(self) -> bool:
        """Close those connections that have been idle for longest: who holds many open keeps nobody out. False: none is
        idle."""
        idle = [(since, id(one), one) for one in self.connections if (since := one.idle_since) is not None]
        for _, _, connection in heapq.nsmallest(EVICTED_AT_ONCE, idle):
            connection.abort()
            self.connections.discard(connection)
        return bool(idle)

    def connection_ended(self) -> None:
        """One connection less."""
        if not self.connections:
            self._ended.set()

    async def shutdown(self, timeout: float) -> None:
        """Let the requests in flight finish for `timeout` seconds, then close every connection."""
        self.draining = True
        for connection in list(self.connections):
            if connection.current is None:
                connection.close()
        self._ended.clear()
        if self.connections:
            try:
                async with asyncio.timeout(timeout):
                    await self._ended.wait()
            except TimeoutError:
                pass
        for connection in list(self.connections):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
