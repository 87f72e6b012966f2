"""A watch request as a stream of frames: initial state, history, then what is committed, until its time is up.

Lives here: where a watch starts, bookmarks, the end. May not live here: matching (`hub.py`), encoding (`tables.py`),
HTTP: `server.py` writes the frames.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from controlplane.embedded.apiserver import errors, limits
from controlplane.embedded.apiserver.hub import Delivery, Hub, Watcher
from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.requests import Call
from controlplane.embedded.apiserver.selectors import Selector
from controlplane.embedded.apiserver.store import Store
from controlplane.embedded.apiserver.tables import Presenter


class Start(msgspec.Struct, frozen=True):
    """Where a watch begins: `after` a revision, or with the whole present state (`initial`), marked by a bookmark."""

    after: int = 0
    initial: bool = False
    mark_initial_end: bool = False
    bookmarks: bool = False
    timeout_seconds: int = limits.WATCH_DEFAULT_TIMEOUT_SECONDS


def parse_start(call: Call) -> Start:
    """Raises 400 or 422 for options that contradict each other."""
    version = call.query.get("resourceVersion", "")
    if version and not version.isdigit():
        raise errors.bad_request(f'resourceVersion: Invalid value: "{version}": must be a number')
    bookmarks = call.flag("allowWatchBookmarks")
    match = call.query.get("resourceVersionMatch", "")
    asked = call.query.get("sendInitialEvents", "")
    if asked:
        if match != "NotOlderThan":
            why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise _invalid_options(why, "resourceVersionMatch")
    elif match:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise _invalid_options(why, "resourceVersionMatch")
    initial = call.flag("sendInitialEvents") if asked else version in {"", "0"}
    return Start(
        after=int(version or 0),
        initial=initial,
        mark_initial_end=bool(asked) and initial and bookmarks,
        bookmarks=bookmarks,
        timeout_seconds=min(
            call.number("timeoutSeconds", 0) or limits.WATCH_DEFAULT_TIMEOUT_SECONDS, limits.WATCH_MAX_TIMEOUT_SECONDS
        ),
    )


def _invalid_options(why: str, field: str) -> errors.ApiError:
    cause = errors.Cause("FieldValueForbidden", f"Forbidden: {why}", field)
    return errors.invalid("ListOptions", "meta.k8s.io", "", [cause])


class WatchStream:
    """The frames of one watch. `frames()` yields chunks to write and returns when the watch is over."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        resource: Resource,
        namespace: str | None,
        selector: Selector,
        presenter: Presenter,
        start: Start,
        view_key: Any,
    ) -> None:
        self._store = store
        self._hub = hub
        self._resource = resource
        self._namespace = namespace
        self._selector = selector
        self._presenter = presenter
        self._start = start
        self._view_key = (resource.group, resource.version, view_key)
        self._first = True
        self._told = 0

    async def frames(self) -> AsyncIterator[bytes]:
        watcher = Watcher(self._resource.stored_as, self._namespace, self._selector)
        after = self._store.revision if self._start.initial else self._start.after
        if not self._start.initial and not self._store.compacted <= after <= self._store.revision:
            yield self._too_old(after)
            return
        self._hub.join(watcher, after)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._start.timeout_seconds, watcher.end)
        try:
            if self._start.initial:
                async for chunk in self._initial(after):
                    yield chunk
            self._told = after
            while not watcher.overflowed:
                deliveries = watcher.take()
                if deliveries:
                    yield b"".join(self._encoded(deliveries))
                    self._told = deliveries[-1].record.record.revision
                elif self._bookmark_due(ending=watcher.ended):
                    self._told = self._store.revision
                    yield self._presenter.bookmark(self._told, initial_end=False, first=self._first)
                elif watcher.ended:
                    return
                else:
                    await watcher.wait()
        finally:
            timer.cancel()
            self._hub.leave(watcher)

    def _bookmark_due(self, *, ending: bool) -> bool:
        behind = self._store.revision - self._told
        return self._start.bookmarks and behind >= (1 if ending else limits.WATCH_BOOKMARK_EVERY_REVISIONS)

    async def _initial(self, revision: int) -> AsyncIterator[bytes]:
        """The whole state at a revision, as ADDED."""
        place = ("", "")
        while True:
            rows = self._store.page_at(
                self._resource.stored_as, self._namespace, after=place, limit=limits.LIST_PAGE_ROWS, revision=revision
            )
            frames: list[bytes] = []
            for row in rows:
                if self._selector.everything or self._selector.matches(msgspec.json.decode(row.value)):
                    frames.append(self._presenter.frame("ADDED", row.value, first=self._first))
                    self._first = False
            if frames:
                yield b"".join(frames)
            if len(rows) < limits.LIST_PAGE_ROWS:
                break
            place = (rows[-1].key.namespace, rows[-1].key.name)
            await asyncio.sleep(0)
        if self._start.mark_initial_end:
            yield self._presenter.bookmark(revision, initial_end=True, first=self._first)
            self._first = False

    def _encoded(self, deliveries: list[Delivery]) -> Iterator[bytes]:
        for delivery in deliveries:
            key = (self._view_key, delivery.change, self._first)
            frame = delivery.record.frames.get(key)
            if frame is None:
                record = delivery.record.record
                frame = self._presenter.frame(delivery.change.name, record.value, first=self._first)
                delivery.record.frames[key] = frame
            self._first = False
            yield frame

    def _too_old(self, after: int) -> bytes:
        """A version that is compacted, or that this log never reached: the client lists again."""
        error = errors.gone(f"too old resource version: {after} ({self._store.compacted})")
        return b'{"type":"ERROR","object":' + msgspec.json.encode(error.status()) + b"}\n"
