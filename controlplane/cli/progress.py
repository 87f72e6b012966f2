"""Following one Run: its objects as they change, from a list and a watch, with a deadline.

An API server that goes away meanwhile is waited for, a while. `krt run --wait`, `krt wait` and `krt delete` build on
it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from controlplane.cli.failure import TIMED_OUT, Failure
from controlplane.cli.output import say
from controlplane.kube.errors import Gone, Unavailable
from controlplane.kube.resources import RUNS
from controlplane.kube.types_kruntimes import RunObject
from statemachine.run import Phase

if TYPE_CHECKING:
    from controlplane.kube.client import KubeClient

AWAY_MAX_S: Final = 20.0  # how long an API server may be away: twice what one takes to be started again
AWAY_RETRY_S: Final = 0.25


class Deadline:
    """A moment by which something has to be so; without a number there is none."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds until then, never negative; None without an end."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def passed(self, what: str, why: str = "") -> Failure:
        """The failure of what did not come in time."""
        return Failure("TimedOut", f"{what} within {self.seconds:g} s{why}", TIMED_OUT)


class Patience:
    """Bears an API server that does not answer for a while, with one note about it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def answered(self) -> None:
        """It is there (again)."""
        self._since = None

    async def bear(self, error: Unavailable) -> None:
        """Pause before another try; raises the error when it has been away for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            say("note: the Kubernetes API does not answer; trying again")
        elif now - self._since > AWAY_MAX_S:
            raise error
        await asyncio.sleep(AWAY_RETRY_S)


async def changes(
    client: "KubeClient", namespace: str, name: str, since: RunObject | None = None
) -> AsyncIterator[RunObject | None]:
    """The Run now (or `since`, how it was made), then every change; None when it is gone or another has its name.

    It ends after None. KubeError when the first look fails, or when the API stays away."""
    fields = f"metadata.name={name}"
    known = since
    patience = Patience()
    if since is not None:
        yield since
        try:
            async for now in _watched(client, namespace, fields, since.metadata.resource_version):
                known = now or known
                yield now
                if now is None:
                    return
        except (Gone, Unavailable):
            pass  # the list below tells, and waits for an API that is away
    while True:
        try:
            listed = await client.list(RUNS, namespace, fields=fields)
        except Unavailable as error:
            if known is None:
                raise
            await patience.bear(error)
            continue
        patience.answered()
        found = listed.items[0] if listed.items else None
        if found is None or (known is not None and found.metadata.uid != known.metadata.uid):
            yield None
            return
        if known is None or found.metadata.resource_version != known.metadata.resource_version:
            yield found
        known = found
        try:
            async for now in _watched(client, namespace, fields, listed.resource_version):
                known = now or known
                yield now
                if now is None:
                    return
        except Gone:
            continue
        except Unavailable as error:
            await patience.bear(error)


async def _watched(client: "KubeClient", namespace: str, fields: str, version: str) -> AsyncIterator[RunObject | None]:
    """One watch: the objects that it brings, None for the deletion."""
    watch = client.watch(RUNS, namespace, resource_version=version, fields=fields)
    async with aclosing(watch) as events:  # type: ignore[type-var]
        async for event in events:
            if event.type == "DELETED":
                yield None
                return
            if event.object is not None:
                yield event.object


async def follow(
    client: "KubeClient", namespace: str, name: str, deadline: Deadline, since: RunObject | None = None
) -> AsyncIterator[RunObject | None]:
    """As `changes`; Failure with exit code 8 when the time is over, NotFound when there is no such Run at first."""
    run: RunObject | None = None
    stream = changes(client, namespace, name, since)
    async with aclosing(stream):  # type: ignore[type-var]
        while True:
            try:
                # The first look is taken also when no time is left: `--timeout 0` asks how it is now.
                async with asyncio.timeout(None if run is None else deadline.left()):
                    found = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                why = f"; it is {run.status.phase}{why_waiting(run)}" if run is not None else ""
                raise deadline.passed(f"Run {name} did not get there", why) from None
            if run is None and found is None:
                await client.get(RUNS, namespace, name)  # the API's own words for what is not there
            run = found
            yield run


async def gone(client: "KubeClient", namespace: str, name: str, uid: str, deadline: Deadline) -> None:
    """Return when the Run of this UID is gone; Failure, exit code 8, when that takes too long."""
    stream = changes(client, namespace, name)
    async with aclosing(stream):  # type: ignore[type-var]
        run: RunObject | None = None
        while True:
            try:
                async with asyncio.timeout(None if run is None else deadline.left()):
                    run = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise deadline.passed(f"Run {name} is not gone", _held(run)) from None
            if run is None or (uid and run.metadata.uid != uid):
                return


def why_waiting(run: RunObject) -> str:
    """` (NoCapacity: …)` for a Run that is Pending, and says why; empty otherwise."""
    if Phase(run.status.phase) is not Phase.PENDING:
        return ""
    for condition in run.status.conditions:
        if condition.type == "Scheduled" and condition.status == "False":
            return f" ({condition.reason}: {condition.message})"
    return ""


def _held(run: RunObject | None) -> str:
    """Who keeps a deleted Run, as far as the object says."""
    if run is None or not run.metadata.finalizers:
        return ""
    return f" (phase {run.status.phase}, finalizers {', '.join(run.metadata.finalizers)})"
