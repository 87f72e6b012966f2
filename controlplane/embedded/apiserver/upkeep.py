"""What keeps the store small: compaction of history, checkpoints of the write-ahead log, old Events.

Lives here: when. May not live here: how (`store.py`). It observes commits and adds chores, so an idle server does
nothing.
"""

import asyncio
import datetime
from collections.abc import Callable
from typing import Final

import msgspec

from controlplane.embedded.apiserver import limits, sqlitefile
from controlplane.embedded.apiserver.chores import Chores
from controlplane.embedded.apiserver.hub import Shared
from controlplane.embedded.apiserver.meta import parse_timestamp
from controlplane.embedded.apiserver.objects import DeleteOptions, Objects
from controlplane.embedded.apiserver.records import Change
from controlplane.embedded.apiserver.registry import Registry
from controlplane.embedded.apiserver.store import Store

_EVENTS: Final = "/events"


class Upkeep:
    """Follows commits; every duty is bounded by a named limit."""

    def __init__(
        self,
        data: Store,
        objects: Objects,
        registry: Registry,
        chores: Chores,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._store = data
        self._objects = objects
        self._registry = registry
        self._chores = chores
        self._now = now
        self._purged_at = datetime.datetime.min.replace(tzinfo=datetime.UTC)
        self._checkpoint: asyncio.Future[None] | None = None

    def follow(self, shared: Shared) -> None:
        if self._store.unchecked_bytes > limits.CHECKPOINT_AFTER_BYTES:
            self._start_checkpoint()
        if self._store.compaction_due() is not None:
            self._chores.add("compact", self._compact)
        record, now = shared.record, self._now()
        purged_long_ago = (now - self._purged_at).total_seconds() > limits.EVENT_PURGE_SECONDS
        if purged_long_ago and record.key.resource == _EVENTS and record.change is Change.ADDED:
            self._purged_at = now
            self._chores.add("events", self._purge_events)

    async def settle(self) -> None:
        """Wait for a checkpoint that is under way."""
        if self._checkpoint is not None:
            await self._checkpoint

    def _compact(self) -> None:
        upto = self._store.compaction_due()
        if upto is not None:
            self._store.compact(upto)
            self._chores.add("compact", self._compact)

    def _start_checkpoint(self) -> None:
        if self._checkpoint is None or self._checkpoint.done():
            self._store.unchecked_bytes = 0
            loop = asyncio.get_running_loop()
            self._checkpoint = loop.run_in_executor(None, sqlitefile.checkpoint, self._store.path)
            self._checkpoint.add_done_callback(self._after_checkpoint)

    def _after_checkpoint(self, done: asyncio.Future[None]) -> None:
        if not done.cancelled() and self._store.write_ahead_bytes > limits.WRITE_AHEAD_MAX_BYTES:
            self._chores.add("write-ahead", self._store.restart_write_ahead)

    def _purge_events(self) -> None:
        resource = self._registry.stored_as(_EVENTS)
        if resource is None:
            return
        for row in self._store.oldest(_EVENTS, limits.EVENT_PURGE_ROWS):
            item = msgspec.json.decode(row.value)
            text = item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp")
            at = parse_timestamp(str(text))
            if at is not None and (self._now() - at).total_seconds() > limits.EVENT_TTL_SECONDS:
                self._objects.delete(resource, row.key.namespace, row.key.name, DeleteOptions())
