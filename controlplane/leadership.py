"""Whether this process may decide. Correctness never rests on it (every write is conditional); it saves double work.

`main` waits for `acquired` before it starts the control plane, and ends when `lost` returns.
"""

import asyncio
from typing import Protocol


class Leadership(Protocol):
    """Tells when this process may start, and when it must stop."""

    async def acquired(self) -> None:
        """Return once this process leads."""
        ...

    async def lost(self) -> None:
        """Return once it leads no more."""
        ...


class Alone:
    """For an installation with one control plane: it leads from the start and for ever."""

    async def acquired(self) -> None:
        return

    async def lost(self) -> None:
        await asyncio.Event().wait()
