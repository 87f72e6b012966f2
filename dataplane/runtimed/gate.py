"""The gate of one registration: calls pass it as readers, whatever ends the registration passes it as the writer.

Refuse first: `shut` turns new calls away at once; only then is the lock waited for, or new calls would queue behind a
drain of minutes. How many calls may be in flight is the Runtime Server's to say.
Next: `serving.py` enters, `jobs.py` shuts.
"""

import asyncio

from aiorwlock import RWLock


class Gate:
    """One per registration, for its life."""

    __slots__ = ("_lock", "closing", "in_flight")

    def __init__(self) -> None:
        self._lock = RWLock(fast=True)
        self.closing = False
        self.in_flight = 0

    async def enter(self) -> bool:
        """True: inside, and `leave` must follow in the same task. False: closing, and nothing is held."""
        if self.closing:
            return False
        await self._lock.reader_lock.acquire()
        if self._shut_meanwhile():
            self._lock.reader_lock.release()
            return False
        self.in_flight += 1
        return True

    def _shut_meanwhile(self) -> bool:
        return self.closing

    def leave(self) -> None:
        """The call is over."""
        self.in_flight -= 1
        self._lock.reader_lock.release()

    def shut(self) -> None:
        """Let nobody in any more."""
        self.closing = True

    async def emptied(self, *, timeout: float | None) -> bool:
        """After `shut`: wait until the last call has left. False: `timeout` seconds passed first."""
        assert self.closing, "shut the gate before waiting for it"
        try:
            async with asyncio.timeout(timeout), self._lock.writer_lock:
                return True
        except TimeoutError:
            return False
