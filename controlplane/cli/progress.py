"""Following one Run: its objects as they change, from a list and a watch, with a deadline.

`krt run --wait`, `krt wait` and `krt delete` build on it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from controlplane.cli.failure import TIMED_OUT, Failure
from controlplane.kube.errors import Gone, Unavailable
from controlplane.kube.resources import RUNS
from controlplane.kube.types_kruntimes import RunObject

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient


async def changes(client: "KubeClient", namespace: str, name: str) -> AsyncIterator[RunObject | None]:
    """The Run now, and then every change; None when it is gone. It ends after None."""
    fields = f"metadata.name={name}"
    known: RunObject | None = None
    while True:
        listed = await client.list(RUNS, namespace, fields=fields)
        found = listed.items[0] if listed.items else None
        if found is None or known is None or found.metadata.resource_version != known.metadata.resource_version:
            yield found
        if found is None:
            return
        known = found
        try:
            async with aclosing(
                client.watch(RUNS, namespace, resource_version=listed.resource_version, fields=fields)  # type: ignore[type-var]
            ) as events:
                async for event in events:
                    if event.object is None:
                        continue
                    if event.type == "DELETED":
                        yield None
                        return
                    known = event.object
                    yield known
        except (Gone, Unavailable):
            continue


async def follow(
    client: "KubeClient", namespace: str, name: str, timeout_s: float | None
) -> AsyncIterator[RunObject | None]:
    """As `changes`; Failure with exit code 8 when the time is over, 3 when there is no such Run at first."""
    first = True
    loop = asyncio.get_running_loop()
    deadline = None if timeout_s is None else loop.time() + timeout_s
    stream = changes(client, namespace, name)
    async with aclosing(stream):  # type: ignore[type-var]
        while True:
            left = None if deadline is None else max(0.0, deadline - loop.time())
            try:
                run = await asyncio.wait_for(anext(stream), left)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise Failure("TimedOut", f"Run {name} did not get there within {timeout_s:g} s", TIMED_OUT) from None
            if first and run is None:
                await client.get(RUNS, namespace, name)  # the API's own words for what is not there
            first = False
            yield run
