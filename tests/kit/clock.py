"""A clock that stands still until a test moves it."""


class ManualClock:
    """Wall and monotonic time, moved together by `advance`, or the wall alone by `jump`."""

    def __init__(self, now_us: int = 1_767_225_600_000_000, monotonic: float = 1000.0) -> None:
        self._now_us = now_us
        self._monotonic = monotonic

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_us += round(seconds * 1_000_000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock by this much, as an operator or NTP does."""
        self._now_us += round(seconds * 1_000_000)
