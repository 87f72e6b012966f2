"""One call on its way through this Pod: its head and body, when it came and how long it may take.

Deadlines are loop time, as the timers that keep them; durations for `Server-Timing` are read from a finer counter: a
loop's time may stand still for a millisecond. Next: `serving.py` and `peerhop.py`.
"""

from time import perf_counter

from dataplane.wire.messages import InvokeRequest
from runtimes.contract.mux import Request


class Call:
    """Made when the request arrives."""

    __slots__ = ("_came", "_loop", "deadline", "head", "request")

    def __init__(self, head: InvokeRequest, request: Request) -> None:
        self.head = head
        self.request = request
        self._loop = request.connection.loop
        self.deadline = self._loop.time() + head.deadline_ms / 1000
        self._came = perf_counter()

    @property
    def body(self) -> bytes:
        """The caller's JSON as sent."""
        return self.request.body

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - self._loop.time()

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since it came."""
        return (perf_counter() - self._came) * 1000
