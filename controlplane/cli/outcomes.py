"""Several Runs at once: each succeeds or fails for itself, and the command ends with the first failure."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from controlplane.cli.failure import Failure
from controlplane.cli.output import say


async def failures_of(each: Iterable[Awaitable[Any]]) -> list[Failure]:
    """Do all of it at once; the failures, in order. Anything else that is raised goes on."""
    outcomes = await asyncio.gather(*each, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, Failure):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Failure)]


def report(failures: list[Failure]) -> None:
    """End with the first failure; the others are told before it."""
    for failure in failures[1:]:
        say(failure.line())
    if failures:
        raise failures[0]
