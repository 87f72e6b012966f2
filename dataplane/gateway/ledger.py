"""How many bytes of request bodies are in memory: one sum, its limit, and what is done when a flood of them has gone.

Nothing else lives here. Next: `arrivals` takes from it as a body arrives, `invoke` for one that is here, and gives back
when the call is over.
"""

import asyncio
from collections.abc import Callable

from dataplane.gateway.limits import BODIES_FLOOD_BYTES, BODIES_SETTLE_S, INFLIGHT_BODY_MAX_BYTES
from runtimes.contract.memory import give_back


class BodyLedger:
    """`give_back` returns free memory to the kernel."""

    __slots__ = ("_give_back", "_most", "_timer", "bytes")

    def __init__(self, give_back: Callable[[], None] = give_back) -> None:
        self.bytes = 0
        self._most = 0
        self._timer: asyncio.TimerHandle | None = None
        self._give_back = give_back

    def take(self, size: int) -> bool:
        """Room for so many bytes; False when there is none, and then nothing is taken."""
        if self.bytes + size > INFLIGHT_BODY_MAX_BYTES:
            return False
        self.bytes += size
        if self.bytes > self._most:
            self._most = self.bytes
        return True

    def give(self, size: int) -> None:
        """Give back what `take` gave."""
        self.bytes -= size
        if not self.bytes and self._most >= BODIES_FLOOD_BYTES and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BODIES_SETTLE_S, self._settled)

    def _settled(self) -> None:
        self._timer = None
        if not self.bytes:
            self._most = 0
            self._give_back()
