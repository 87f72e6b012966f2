"""Kubernetes Events: what `kubectl describe` shows below an object. Recorded beside the work, never in its way.

`emit` puts a line in a bounded queue and returns; one task writes them. What happens again within some minutes becomes
a count on the Event that is there. A lost Event is counted and nothing else: no decision rests on Events.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from typing import Any, Final, NoReturn

import msgspec

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.codec import format_time_seconds
from controlplane.kube.errors import KubeError, NotFound
from controlplane.kube.resources import EVENTS
from controlplane.kube.types import EventSource, KubeEvent, ObjectMeta, ObjectReference
from statemachine.text import cut_bytes

QUEUE_MAX: Final = 1000  # a burst of hundreds of Runs; beyond it the newest are dropped
REMEMBERED_MAX: Final = 1024  # Events whose repetition is counted instead of written anew; 0.6 KiB each
REPEAT_WINDOW_US: Final = 10 * 60 * 1_000_000
NAME_MAX_BYTES: Final = 253
MESSAGE_MAX_BYTES: Final = 1024  # Kubernetes' own bound of an Event's note

SETTLE_S: Final = 0.1  # an Event can wait; the write that it tells of should not queue behind it

_log = logging.getLogger(__name__)


class _Line(msgspec.Struct, frozen=True):
    reference: ObjectReference
    type: str
    reason: str
    message: str
    at_us: int


class _Known(msgspec.Struct):
    name: str
    count: int
    last_us: int


class EventRecorder:
    """Writes Events as `component`. Run `run` as a task; `emit` works before that too."""

    def __init__(self, kube: Kube, component: str, clock: Clock, *, instance: str = "") -> None:
        self.dropped = 0
        self._kube = kube
        self._component = component
        self._instance = instance or component
        self._clock = clock
        self._queue: deque[_Line] = deque()
        self._arrived = asyncio.Event()
        self._known: OrderedDict[tuple[str, str, str, str], _Known] = OrderedDict()
        self._serial = 0

    def emit(self, about: Any, type_: str, reason: str, message: str) -> None:
        """Record one Event about an object (anything with apiVersion, kind and metadata) or an `ObjectReference`.

        `type_` is "Normal" or "Warning". Never blocks, never raises for a full queue.
        """
        if len(self._queue) >= QUEUE_MAX:
            self.dropped += 1
            return
        reference = about if isinstance(about, ObjectReference) else reference_to(about)
        self._queue.append(_Line(reference, type_, reason, cut_bytes(message, MESSAGE_MAX_BYTES), self._clock.now_us()))
        self._arrived.set()

    async def run(self) -> NoReturn:
        """Write what was emitted, for ever."""
        while True:
            await self._arrived.wait()
            await asyncio.sleep(SETTLE_S)
            await self.flush()

    async def flush(self) -> None:
        """Write all that is queued; what the API refuses is dropped and counted."""
        self._arrived.clear()
        while self._queue:
            line = self._queue.popleft()
            try:
                await self._write(line)
            except KubeError as error:
                self.dropped += 1
                _log.debug("an Event was not recorded: %s", error, extra={"reason": line.reason})

    async def _write(self, line: _Line) -> None:
        key = (line.reference.uid, line.type, line.reason, line.message)
        known = self._known.get(key)
        if known is not None and line.at_us - known.last_us < REPEAT_WINDOW_US:
            patch = {"count": known.count + 1, "lastTimestamp": format_time_seconds(line.at_us)}
            try:
                await self._kube.merge_patch(EVENTS, _namespace(line.reference), known.name, patch)
            except NotFound:
                del self._known[key]  # the API forgets Events after an hour
            else:
                known.count, known.last_us = known.count + 1, line.at_us
                self._known.move_to_end(key)
                return
        event = self._event(line)
        await self._kube.create(EVENTS, event.metadata.namespace, event)
        self._known[key] = _Known(event.metadata.name, 1, line.at_us)
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def _event(self, line: _Line) -> KubeEvent:
        self._serial += 1
        suffix = f".{line.at_us:x}{self._serial & 0xFFFF:04x}"
        name = line.reference.name[: NAME_MAX_BYTES - len(suffix)].rstrip("-.") + suffix
        at = format_time_seconds(line.at_us)
        return KubeEvent(
            metadata=ObjectMeta(name=name, namespace=_namespace(line.reference)),
            involved_object=line.reference,
            type=line.type,
            reason=line.reason,
            message=line.message,
            source=EventSource(component=self._component),
            reporting_component=self._component,
            reporting_instance=self._instance,
            first_timestamp=at,
            last_timestamp=at,
            count=1,
        )


def reference_to(obj: Any) -> ObjectReference:
    """The reference that an Event about `obj` carries."""
    metadata = obj.metadata
    return ObjectReference(
        api_version=obj.api_version,
        kind=obj.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
    )


def _namespace(reference: ObjectReference) -> str:
    return reference.namespace or "default"
