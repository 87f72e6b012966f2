"""The calls of one connection that wait for their answer: who is told, by when, and how each can end.

Here: that each ends once. Not here: frames and sockets (`mux`), what an outcome means to its caller. Next:
`mux.Connection` owns one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from typing import Final

import msgspec

from runtimes.contract import frames
from runtimes.contract.calls import UNDECODABLE, CallError, CallTimeout, ConnectionLost, Done, Outcome, Refused, Reply
from runtimes.contract.deadlines import Deadlines
from runtimes.contract.frames import ProtocolError
from runtimes.contract.messages import ErrorHead

logger = logging.getLogger(__name__)

_decode_error: Final = msgspec.msgpack.Decoder(ErrorHead).decode


class PendingCalls:
    """`give_up(stream)` is called when the time of one has passed: it drops the call and tells the peer."""

    __slots__ = ("_calls", "_deadlines", "_give_up", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, give_up: Callable[[int], None]) -> None:
        self._loop = loop
        self._give_up = give_up
        self._calls: dict[int, tuple[Done, str, float]] = {}
        self._deadlines: Deadlines[int] = Deadlines(loop, self._expire)

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, stream: int) -> bool:
        return stream in self._calls

    def add(self, stream: int, done: Done, method: str, seconds: float) -> None:
        """`done` gets the outcome, CallTimeout after so many seconds."""
        self._calls[stream] = done, method, seconds
        self._deadlines.set(stream, self._loop.time() + seconds)

    def drop(self, stream: int) -> bool:
        """Nobody waits any more; False when there is no such call."""
        self._deadlines.drop(stream)
        return self._calls.pop(stream, None) is not None

    def answered(self, kind: int, stream: int, head: bytes, body: bytes) -> None:
        """RESPONSE, ERROR or REFUSED has come. An answer that nobody waits for is dropped.

        Raises ProtocolError, and keeps the call, when the head of an error is none.
        """
        waiting = self._calls.get(stream)
        if waiting is None:
            return
        outcome: Outcome = Reply(head, body) if kind == frames.RESPONSE else _error(kind, head)
        del self._calls[stream]
        self._deadlines.drop(stream)
        _tell(waiting[0], outcome)

    def refuse_above(self, highest: int) -> list[int]:
        """The peer takes none above that stream: they were not started. Returns their streams."""
        refused = [stream for stream in self._calls if stream > highest]
        for stream in refused:
            done, _, _ = self._calls[stream]
            self.drop(stream)
            _tell(done, Refused(ErrorHead(reason="Draining", message="the peer said GOAWAY")))
        return refused

    def lose(self, reason: str, unwritten: Set[int]) -> None:
        """The connection is gone; of the requests in `unwritten` nothing was written."""
        calls, self._calls = self._calls, {}
        self._deadlines.close()
        for stream, (done, _, _) in calls.items():
            _tell(done, ConnectionLost(reason, dispatched=stream not in unwritten))

    def _expire(self, stream: int) -> None:
        waiting = self._calls.get(stream)
        if waiting is not None:
            done, method, seconds = waiting
            self._give_up(stream)
            _tell(done, CallTimeout(f"no answer to {method} within {seconds:g} s"))


def _error(kind: int, head: bytes) -> CallError | Refused:
    try:
        error = _decode_error(head)
    except UNDECODABLE as cause:
        raise ProtocolError(f"head of an error: {cause}") from cause
    return Refused(error) if kind == frames.REFUSED else CallError(error)


def _tell(done: Done, outcome: Outcome) -> None:
    try:
        done(outcome)
    except Exception:
        logger.exception("whoever waited for a call failed to take its outcome")
