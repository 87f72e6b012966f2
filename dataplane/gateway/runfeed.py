"""Follows the Runs of one namespace into the projection: list as a Table, watch as Tables, list again when behind.

Here: one list-and-watch loop. Not here: what rows mean (`tables`), which namespaces (`feed`).
Next: `feed.Feed` runs one for each namespace that has a Runtime.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, NoReturn, cast

from controlplane.kube.api import Kube
from controlplane.kube.backoff import Backoff
from controlplane.kube.clock import Clock
from controlplane.kube.errors import Gone, KubeError, error_of
from controlplane.kube.meta import Status
from controlplane.kube.resources import RUNS
from dataplane.gateway.holding import Changes
from dataplane.gateway.tables import ACCEPT, BadTable, Table, columns_of, decode_line, decode_table, facts
from statemachine.ownership import Projection
from statemachine.run import RunUID

RETRY_FIRST_S: Final = 0.05  # a restarted API server is met again at once
RETRY_MAX_S: Final = 5.0  # well below the 10 s in which a killed process must heal
WATCH_S: Final = 60  # asked of the server, so that an idle watch is renewed each minute
WATCH_SILENCE_S: Final = 70.0  # longer silence is a half-open connection
PAGE_ROWS: Final = 500  # kubectl's and client-go's page

log = logging.getLogger(__name__)


class RunFeed:
    """The Runs of one namespace. `synced` is set after the first complete list."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        projection: Projection,
        changes: Changes,
        clock: Clock,
        rng: random.Random,
        *,
        on_fewer: Callable[[], None],
    ) -> None:
        """`on_fewer` is called after Runs have gone, and after each list."""
        self.synced = asyncio.Event()
        self.count = 0
        """Runs in the namespace."""
        self._kube = kube
        self._namespace = namespace
        self._projection = projection
        self._changes = changes
        self._clock = clock
        self._on_fewer = on_fewer
        self._path = RUNS.path(namespace)
        self._columns: tuple[int, ...] | None = None
        self._revision: str | None = None
        self._live = False
        self._heard_at = clock.monotonic()
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, rng)

    def stale_since(self) -> float | None:
        """None while a watch is open; else the monotonic second at which the API was last heard."""
        return None if self._live else self._heard_at

    async def run(self) -> NoReturn:
        """Follow for ever; ends by cancellation only. Facts are kept and used while the API is away (O4)."""
        while True:
            try:
                if self._revision is None:
                    await self._list()
                await self._follow()
            except Gone:
                self._revision = None
                log.info("the watch of runs is behind, listing again", extra={"namespace": self._namespace})
                await self._backoff.pause_after_first()
            except (KubeError, BadTable) as error:
                if isinstance(error, BadTable) or not error.retryable:
                    self._revision = None
                delay = self._backoff.next_delay()
                log.warning(
                    "lost contact to runs, trying again: %s",
                    error,
                    extra={"namespace": self._namespace, "retrySeconds": round(delay, 3)},
                )
                await asyncio.sleep(delay)
            finally:
                self._live = False

    async def _list(self) -> None:
        present: set[RunUID] = set()
        query = {"includeObject": "None", "limit": str(PAGE_ROWS)}
        while True:
            raw = await self._kube.raw("GET", self._path, query=query, headers={"Accept": ACCEPT})
            page = decode_table(raw)
            columns = columns_of(page)
            if columns is None:
                raise BadTable("the Table of Runs names no columns")
            self._columns = columns
            for fact in facts(page, columns, self._namespace):
                present.add(fact.uid)
                self._projection.run_seen(fact)
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self._heard_at = self._clock.monotonic()
        self._projection.listed(self._namespace, None, present)
        self._changes.all_changed()
        self._revision = page.metadata.resource_version
        self.count = len(present)
        self.synced.set()
        self._on_fewer()

    async def _follow(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "includeObject": "None",
            "resourceVersion": cast(str, self._revision),
            "timeoutSeconds": str(WATCH_S),
        }
        lines = self._kube.stream(
            self._path, query=query, headers={"Accept": ACCEPT}, idle_seconds=WATCH_SILENCE_S, on_open=self._opened
        )
        async with aclosing(cast(Any, lines)):
            async for line in lines:
                self._heard_at = self._clock.monotonic()
                self._backoff.reset()
                self._adopt(*decode_line(line))

    def _opened(self) -> None:
        self._live = True
        self._heard_at = self._clock.monotonic()

    def _adopt(self, kind: str, content: Table | Status) -> None:
        if isinstance(content, Status):
            raise error_of(content if content.code else Status(message=content.message, code=500))
        self._columns = columns_of(content) or self._columns
        assert self._columns is not None, "a watch follows a list"
        if kind != "BOOKMARK":
            for fact in facts(content, self._columns, self._namespace):
                known = self._projection.run(fact.uid) is not None
                if kind == "DELETED":
                    self._projection.run_gone(fact.uid)
                    self.count -= known
                else:
                    self._projection.run_seen(fact)
                    self.count += not known
                self._changes.changed(fact.uid)
        self._revision = content.metadata.resource_version or self._revision
        if kind == "DELETED":
            self._on_fewer()
