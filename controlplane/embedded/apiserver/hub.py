"""Who is told of a commit: the watchers of each resource, with one encoding shared by all of them.

Lives here: matching commits to watchers, catching up from history, bounded buffers. May not live here: HTTP.
`watching.py` writes the frames to a client next.
"""

import asyncio
import collections
from collections.abc import Callable
from typing import Any

import msgspec

from controlplane.embedded.apiserver import limits
from controlplane.embedded.apiserver.records import Change, Record
from controlplane.embedded.apiserver.selectors import Selector
from controlplane.embedded.apiserver.store import Store

Object = dict[str, Any]


class Delivery(msgspec.Struct, frozen=True):
    """A change as one watcher sees it: `change` is relative to its selector."""

    change: Change
    record: "Shared"


class Shared:
    """A record with what was decoded or encoded of it so far, shared by all watchers of that commit."""

    __slots__ = ("_item", "_previous", "_store", "frames", "record")

    def __init__(self, record: Record, store: Store) -> None:
        self.record = record
        self.frames: dict[Any, bytes] = {}
        self._store = store
        self._item: Object | None = None
        self._previous: Object | None = None

    @property
    def item(self) -> Object:
        if self._item is None:
            self._item = msgspec.json.decode(self.record.value)
        return self._item

    @property
    def previous(self) -> Object | None:
        """The object before the change; None on creation."""
        if self._previous is None and self.record.previous:
            value = self._store.value_at(self.record.previous)
            self._previous = None if value is None else msgspec.json.decode(value)
        return self._previous


class Watcher:
    """One watch: what it selects, and the deliveries that wait for it. `overflowed` ends it."""

    def __init__(self, resource: str, namespace: str | None, selector: Selector) -> None:
        self.resource = resource
        self.namespace = namespace
        self.selector = selector
        self.pending: collections.deque[Delivery] = collections.deque()
        self.pending_bytes = 0
        self.overflowed = False
        self.ended = False
        self._wake: asyncio.Future[None] | None = None

    def see(self, shared: Shared) -> Delivery | None:
        """The change as this watcher's selector sees it, or None."""
        record = shared.record
        if self.namespace is not None and record.key.namespace != self.namespace:
            return None
        if self.selector.everything:
            return Delivery(record.change, shared)
        name = self.selector.only_name()
        if name is not None and name != record.key.name:
            return None
        before = shared.previous
        was = before is not None and self.selector.matches(before)
        if record.change is Change.DELETED:
            return Delivery(Change.DELETED, shared) if was or self.selector.matches(shared.item) else None
        match (was, self.selector.matches(shared.item)):
            case (True, True):
                return Delivery(Change.MODIFIED, shared)
            case (False, True):
                return Delivery(Change.ADDED, shared)
            case (True, False):
                return Delivery(Change.DELETED, shared)
            case _:
                return None

    def offer(self, shared: Shared) -> None:
        delivery = self.see(shared)
        if delivery is None or self.overflowed:
            return
        self.pending.append(delivery)
        self.pending_bytes += len(shared.record.value)
        if len(self.pending) > limits.WATCH_BUFFER_MAX_EVENTS or self.pending_bytes > limits.WATCH_BUFFER_MAX_BYTES:
            self.overflowed = True
            self.pending.clear()
        self.wake()

    def wake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def end(self) -> None:
        self.ended = True
        self.wake()

    def take(self) -> list[Delivery]:
        taken = list(self.pending)
        self.pending.clear()
        self.pending_bytes = 0
        return taken

    async def wait(self) -> None:
        """Returns when something is pending, a bookmark is due, or the watch ended."""
        if self.pending or self.ended or self.overflowed:
            return
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None


class Hub:
    """All watchers, by resource. `publish` is the store's `on_commit`."""

    def __init__(self, store: Store) -> None:
        self.ended = False
        self._store = store
        self._watchers: dict[str, set[Watcher]] = {}
        self._observers: list[Callable[[Shared], None]] = []
        self._last_bookmarks = store.revision

    def observe(self, observer: Callable[[Shared], None]) -> None:
        """Call `observer` for every commit, on the loop, in order: garbage collection, namespaces, caches."""
        self._observers.append(observer)

    def publish(self, record: Record) -> None:
        shared = Shared(record, self._store)
        for watcher in self._watchers.get(record.key.resource, ()):
            watcher.offer(shared)
        for observer in self._observers:
            observer(shared)
        if record.revision - self._last_bookmarks >= limits.WATCH_BOOKMARK_EVERY_REVISIONS:
            self._last_bookmarks = record.revision
            for watchers in self._watchers.values():
                for watcher in watchers:
                    watcher.wake()

    def join(self, watcher: Watcher, after: int) -> None:
        """Fill the watcher with the history behind a revision, which is not compacted, and keep it told from here."""
        for record in self._store.history(watcher.resource, after):
            watcher.offer(Shared(record, self._store))
        self._watchers.setdefault(watcher.resource, set()).add(watcher)

    def leave(self, watcher: Watcher) -> None:
        watchers = self._watchers.get(watcher.resource)
        if watchers is not None:
            watchers.discard(watcher)
            if not watchers:
                del self._watchers[watcher.resource]

    def watching(self, resource: str) -> int:
        """How many watch a resource now."""
        return len(self._watchers.get(resource, ()))

    def end_all(self) -> None:
        """The server stops: every watch ends cleanly, and so does whoever follows a log."""
        self.ended = True
        for watchers in list(self._watchers.values()):
            for watcher in list(watchers):
                watcher.end()

    def end_resource(self, resource: str) -> None:
        for watcher in list(self._watchers.get(resource, ())):
            watcher.end()
