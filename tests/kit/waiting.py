"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import asyncio
from collections.abc import Callable

from controlplane.cli.session import LAST_TURNS


async def eventually(condition: Callable[[], object], *, within: float = 15.0) -> None:
    """Return once `condition()` is true; fail the test if it is not within that many seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        if loop.time() > deadline:
            raise AssertionError(f"not true within {within} s: {getattr(condition, '__name__', condition)}")
        await asyncio.sleep(0.005)


async def last_turns() -> None:
    """What a closed connection still has to do in its loop."""
    for _ in range(LAST_TURNS):
        await asyncio.sleep(0)
