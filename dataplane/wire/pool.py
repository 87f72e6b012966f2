"""One warm, multiplexed connection per Pod, dialled at most once at a time.

Here: who is dialled (`Peer`), how a connection is had (`Pool.ready`, `Pool.connection`), when it is given up. Not here:
frames (`runtimes.contract.mux`), who to dial (routing), resending (never). Next: `gateway.forward`, runtimed's peers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from msgspec import Struct

from dataplane.wire.errors import ConnectFailed, ConnectTimedOut, DialError, PeerDraining, PoolClosed
from runtimes.contract.mux import Done, Reply

CONNECT_TIMEOUT_S = 3.0
"""TCP and TLS together; a Pod that cannot answer in this time is busy, and the caller is told so (503)."""

RETIRE_TIMEOUT_S = 310.0
"""The longest call and its answer: a connection that is given up stays open for its calls in flight."""


class Peer(Struct, frozen=True):
    """A runtimed to dial: by address, proved by the UID (and namespace and Runtime) in its certificate."""

    address: str
    port: int
    pod_uid: str
    namespace: str
    runtime: str


class Channel(Protocol):
    """What the pool needs of a `runtimes.contract.mux.Connection`."""

    @property
    def usable(self) -> bool:
        """May start new calls: neither lost nor told GOAWAY."""
        ...

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done when the connection is gone."""
        ...

    def start(self, method: str, head: object, body: bytes, done: Done, *, timeout: float) -> int: ...

    async def call(self, method: str, head: object, body: bytes | memoryview = b"", *, timeout: float) -> Reply: ...

    async def drain(self, *, timeout: float) -> bool: ...

    def close(self) -> None: ...


Dial = Callable[[Peer], Coroutine[None, None, Channel]]
"""Connects within CONNECT_TIMEOUT_S, authenticates both ends, checks the identity; raises a `DialError` subclass."""


class Pool:
    """Connections by Peer. Losing a connection costs the calls in flight on it and nothing else.

    `ready` is synchronous and costs a dict lookup: the hot path. `connection` dials when it must; concurrent callers
    share one dial, and a caller that gives up does not end it for the others. A failed dial is remembered by nobody.
    """

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._channels: dict[Peer, Channel] = {}
        self._dialling: dict[Peer, asyncio.Task[Channel]] = {}
        self._leaving: set[asyncio.Task[bool]] = set()
        self._closed = False

    def ready(self, peer: Peer) -> Channel | None:
        """A connection that may start a call now, or None: then await `connection`."""
        channel = self._channels.get(peer)
        return channel if channel is not None and channel.usable else None

    async def connection(self, peer: Peer, *, timeout: float = CONNECT_TIMEOUT_S) -> Channel:
        """The warm connection, or a new one within `timeout` seconds. Raises a `DialError` subclass."""
        channel = self._channels.get(peer)
        if channel is not None and channel.usable:
            return channel
        if self._closed:
            raise PoolClosed("the connection pool is closed")
        if channel is not None and not channel.closed.done():
            raise PeerDraining("the Pod is draining")
        dialling = self._dialling.get(peer)
        if dialling is None:
            dialling = self._start(peer)
        done, _ = await asyncio.wait((dialling,), timeout=timeout)
        if not done:
            raise ConnectTimedOut(f"no connection to {peer.address} within {timeout:g} s")
        if dialling.cancelled():
            raise ConnectFailed("the Pod left its Service while it was dialled")
        return dialling.result()

    def warm(self, peer: Peer) -> None:
        """Dial in the background so that the first call finds a connection; failures are the first call's to meet."""
        if self._closed or peer in self._dialling or self.ready(peer) is not None:
            return
        self._start(peer)

    def retire(self, peer: Peer) -> None:
        """The Pod left its Service: no new calls; those in flight may finish before the connection is closed."""
        dialling = self._dialling.pop(peer, None)
        if dialling is not None:
            dialling.cancel()
        channel = self._channels.pop(peer, None)
        if channel is not None and channel.usable:
            leaving = asyncio.create_task(channel.drain(timeout=RETIRE_TIMEOUT_S))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Close every connection and refuse new ones. Whoever wants calls to finish waits for them first."""
        self._closed = True
        for dialling in list(self._dialling.values()):
            dialling.cancel()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        for leaving in list(self._leaving):
            leaving.cancel()
        await asyncio.gather(*self._dialling.values(), *self._leaving, return_exceptions=True)

    def _start(self, peer: Peer) -> asyncio.Task[Channel]:
        dialling = asyncio.get_running_loop().create_task(self._dial(peer))
        self._dialling[peer] = dialling
        dialling.add_done_callback(lambda task: self._dialled(peer, task))
        return dialling

    def _dialled(self, peer: Peer, task: asyncio.Task[Channel]) -> None:
        if self._dialling.get(peer) is task:
            del self._dialling[peer]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._channels[peer] = task.result()
        elif not isinstance(error, DialError):
            raise error
