"""The gate of one registration: calls pass it as readers, whatever ends the registration passes it as the writer.

A read-write lock in its simplest form, since readers are turned away, never kept waiting: `shut` turns new calls away
at once; only then is it waited for the last one inside, or new calls would queue behind a drain of minutes. Readers are
no tasks: they come in with a frame and leave with another. How many may be in flight is the Runtime Server's to say.
Next: `serving.py` enters, `jobs.py` shuts.
"""

import asyncio


class Gate:
    """One per registration, for its life. Used on the loop's thread only."""

    __slots__ = ("_emptied", "closing", "in_flight")

    def __init__(self) -> None:
        self._emptied = asyncio.Event()
        self._emptied.set()
        self.closing = False
        self.in_flight = 0

    def enter(self) -> bool:
        """True: inside, and `leave` must follow once. False: closing, and nothing is held."""
        if self.closing:
            return False
        self.in_flight += 1
        return True

    def leave(self) -> None:
        """The call is over."""
        self.in_flight -= 1
        if self.closing and not self.in_flight:
            self._emptied.set()

    def shut(self) -> None:
        """Let nobody in any more."""
        self.closing = True
        if self.in_flight:
            self._emptied.clear()

    async def emptied(self, *, timeout: float | None) -> bool:
        """After `shut`: wait until the last call has left. False: `timeout` seconds passed first."""
        assert self.closing, "shut the gate before waiting for it"
        try:
            async with asyncio.timeout(timeout):
                await self._emptied.wait()
        except TimeoutError:
            return False
        return True
