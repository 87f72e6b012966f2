"""One call on its way through this Pod: its head and body, when it came and how long it may take.

Deadlines are loop time, as the timers that keep them; durations for `Server-Timing` are read from a finer counter: a
loop's time may stand still for a millisecond. Next: `serving.py` and `peerhop.py`.
"""

import asyncio
from time import perf_counter

from dataplane.wire.messages import InvokeRequest


class Call:
    """Made when the request arrives."""

    __slots__ = ("_came", "body", "deadline", "head")

    def __init__(self, head: InvokeRequest, body: bytes) -> None:
        self.head = head
        self.body = body
        self.deadline = asyncio.get_running_loop().time() + head.deadline_ms / 1000
        self._came = perf_counter()

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - asyncio.get_running_loop().time()

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since it came."""
        return (perf_counter() - self._came) * 1000
