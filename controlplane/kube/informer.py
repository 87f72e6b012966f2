"""A local copy of one kind that follows the API: list, LISTED, stream; on 410 list again and report what went.

Events of a watch are hints: whoever gets a `Change` decides from objects, not from the order of lines. Nothing here
knows what the objects mean. Control plane, gateway and runtimed each run some.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final, Generic, NoReturn, TypeVar, cast

import msgspec

from controlplane.kube.api import Kube, WatchType
from controlplane.kube.backoff import Backoff
from controlplane.kube.clock import Clock
from controlplane.kube.errors import Gone, KubeError, Malformed
from controlplane.kube.resources import Kind

T = TypeVar("T")

RETRY_FIRST_S: Final = 0.05  # a restarted API server is met again at once
RETRY_MAX_S: Final = 5.0  # well below the 10 s in which a killed process must heal
RETRY_AFTER_MAX_S: Final = 30.0  # a server that is busy may ask for more patience, but not for ever
WATCH_MIN_S: Final = 1.0  # a watch that ends sooner and said nothing is not the normal end
CHANGES_PER_TURN: Final = 256  # of a list: then other tasks of the loop get their turn

_log = logging.getLogger(__name__)


class Change(msgspec.Struct, Generic[T], frozen=True):
    """What one object was and is. `previous` None: new here. `current` None: gone. Never both."""

    previous: T | None
    current: T | None


class Informer(Generic[T]):
    """Follows one kind (in one namespace, or all; narrowed by selectors) and keeps `store`, by UID.

    `on_change` is called on the loop, in the order of the API per object, and must be quick and not await; what it
    raises ends `run`. `on_listed` is called after each complete list, when `store` shows exactly what the API held.
    """

    def __init__(
        self,
        kube: Kube,
        kind: Kind[T],
        *,
        on_change: Callable[[Change[T]], None],
        clock: Clock,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        on_listed: Callable[[], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.synced = asyncio.Event()
        self.relists = 0
        self.interruptions = 0
        self._kube = kube
        self._kind = kind
        self._namespace = namespace
        self._labels = labels
        self._fields = fields
        self._on_change = on_change
        self._on_listed = on_listed
        self._clock = clock
        self._objects: dict[str, T] = {}
        self._revision: str | None = None
        self._heard_at = clock.monotonic()
        self._opened_at = self._heard_at
        self._live = False
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, rng or random.Random())

    @property
    def store(self) -> Mapping[str, T]:
        """The objects by UID, as last heard. A live view: do not hold it over an await and expect it unchanged."""
        return MappingProxyType(self._objects)

    def stale_since(self) -> float | None:
        """None while a watch is open; else the monotonic second at which the API was last heard."""
        return None if self._live else self._heard_at

    async def run(self) -> NoReturn:
        """Follow for ever; ends only by cancellation or by what `on_change` raises."""
        while True:
            try:
                if self._revision is None:
                    await self._list()
                if await self._follow(cast(str, self._revision)):
                    self._backoff.reset()
                else:
                    await self._backoff.pause_after_first()
            except Gone:
                self._lost()
                self._revision = None
                self.relists += 1
                _log.info("watch of %s is behind, listing again", self._kind.plural)
                await self._backoff.pause_after_first()
            except KubeError as error:
                self._lost()
                self.interruptions += 1
                delay = max(self._backoff.next_delay(), min(error.retry_after_seconds, RETRY_AFTER_MAX_S))
                _log.warning(
                    "lost contact to %s, trying again: %s",
                    self._kind.plural,
                    error,
                    extra={"retrySeconds": round(delay, 3), "code": error.status.code},
                )
                if not error.retryable or isinstance(error, Malformed):
                    self._revision = None
                await asyncio.sleep(delay)

    def _lost(self) -> None:
        if self._live and self._lasted():
            self._backoff.reset()  # a new trouble, not the last one again
        self._live = False

    def _opened(self) -> None:
        self._opened_at = self._clock.monotonic()
        self._heard()

    def _heard(self) -> None:
        self._heard_at = self._clock.monotonic()
        self._live = True

    def _lasted(self) -> bool:
        return self._clock.monotonic() - self._opened_at >= WATCH_MIN_S

    async def _list(self) -> None:
        answer = await self._kube.list(self._kind, self._namespace, labels=self._labels, fields=self._fields)
        self._heard_at = self._clock.monotonic()
        self._revision = answer.resource_version
        present = {_metadata(obj).uid: obj for obj in answer.items}
        changes = 0
        for uid in [uid for uid in self._objects if uid not in present]:
            self._on_change(Change(self._objects.pop(uid), None))
            changes += 1
        for uid, obj in present.items():
            changes += self._put(uid, obj)
            if changes >= CHANGES_PER_TURN:
                changes = 0
                await asyncio.sleep(0)
        if self._on_listed is not None:
            self._on_listed()
        self.synced.set()

    async def _follow(self, revision: str) -> bool:
        """One watch, to its normal end. False if that came at once and without a word, as no healthy server does."""
        said = False
        events = self._kube.watch(
            self._kind,
            self._namespace,
            resource_version=revision,
            labels=self._labels,
            fields=self._fields,
            on_open=self._opened,
        )
        async with aclosing(cast(Any, events)):
            async for event in events:
                self._heard()
                self._backoff.reset()
                said = True
                if event.type is WatchType.BOOKMARK:
                    pass
                elif event.type is WatchType.DELETED:
                    self._drop(cast(T, event.object))
                else:
                    obj = cast(T, event.object)
                    self._put(_metadata(obj).uid, obj)
                self._revision = event.resource_version
        return said or self._lasted()

    def _put(self, uid: str, obj: T) -> bool:
        """Keep an object and tell, if it is not the one that is there."""
        previous = self._objects.get(uid)
        if previous is not None and _metadata(previous).resource_version == _metadata(obj).resource_version:
            return False
        self._objects[uid] = obj
        self._on_change(Change(previous, obj))
        return True

    def _drop(self, obj: T) -> None:
        previous = self._objects.pop(_metadata(obj).uid, None)
        if previous is not None:
            self._on_change(Change(previous, None))


def _metadata(obj: Any) -> Any:
    return obj.metadata
