"""What all connections of a port have in common, as each sees it; nothing else lives here. `front.Front` is it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from controlplane.kube.clock import Clock
from dataplane.gateway.answer import Answer
from dataplane.gateway.exchange import Request

if TYPE_CHECKING:
    from dataplane.gateway.connection import Connection


class Shared(Protocol):
    """What all connections of a port have in common: `front.Front`."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    inbox: memoryview
    ahead_inbox: memoryview
    ahead_bytes: int
    large_connections: int
    draining: bool
    connections: "set[Connection]"

    answered: Callable[[Request, Answer], None]

    def serve(self, request: Request) -> None: ...
    def encode(self, request: Request, answer: Answer) -> tuple[bytes, bool]: ...
    def make_room(self) -> bool: ...
    def connection_ended(self) -> None: ...
