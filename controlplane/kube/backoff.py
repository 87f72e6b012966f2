"""Waiting longer after each failure, with jitter, so that many clients do not come back at the same moment."""

import asyncio
import random


class Backoff:
    """Delays of `first`, doubled up to `maximum` seconds, each between half and all of that at random."""

    def __init__(self, first: float, maximum: float, rng: random.Random) -> None:
        self._first = first
        self._maximum = maximum
        self._rng = rng
        self._failures = 0

    def next_delay(self) -> float:
        """Count a failure and return the seconds to wait."""
        full = min(self._maximum, self._first * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return full * (0.5 + self._rng.random() / 2)

    def reset(self) -> None:
        """Something worked: start from `first` again."""
        self._failures = 0

    async def pause(self) -> None:
        """Count a failure and wait."""
        await asyncio.sleep(self.next_delay())

    async def pause_after_first(self) -> None:
        """As `pause`, but the first failure in a row costs nothing."""
        if self._failures:
            await self.pause()
        else:
            self._failures = 1
