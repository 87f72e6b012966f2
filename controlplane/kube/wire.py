"""Bytes of the API to structs and back: lists, watch lines, Status, request bodies. Pure; `client.py` calls it.

Objects decode straight from the bytes. One object that does not decode (another version wrote it) is left out of a list
with a log line, instead of hiding all others.
"""

import logging
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from controlplane.kube.api import WatchEvent, WatchType
from controlplane.kube.errors import KubeError, error_of, malformed
from controlplane.kube.meta import ApiStruct, ListMeta, ObjectMeta, Status
from controlplane.kube.resources import Kind

T = TypeVar("T")

ERROR_TEXT_MAX_CHARS: Final = 512  # of an answer that is no Status, quoted in our message

# Deep nesting is a RecursionError of the decoder, wherever it stands, even in a field that is ignored.
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError)

_log = logging.getLogger(__name__)


class Page(ApiStruct, Generic[T], frozen=True, kw_only=True):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] | None = None


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Head(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_LINE: Final = msgspec.json.Decoder(_Line)
_STATUS: Final = msgspec.json.Decoder(Status)
_HEAD: Final = msgspec.json.Decoder(_Head)
_RAW_PAGE: Final = msgspec.json.Decoder(Page[msgspec.Raw])


@lru_cache(maxsize=128)
def _decoder(type_: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cast(Any, type_))


def decode(type_: type[T], raw: bytes | msgspec.Raw) -> T:
    """One object. A body that is none of it is an answer of something other than the API."""
    try:
        return cast(T, _decoder(cast(Hashable, type_)).decode(raw))
    except UNREADABLE as error:
        raise malformed(f"the answer is no {type_.__name__}: {error}") from error


def decode_page(kind: Kind[T], raw: bytes) -> Page[T]:
    """One page; items that do not decode are logged and left out."""
    try:
        return cast(Page[T], _decoder(Page[kind.type]).decode(raw))  # type: ignore[name-defined]
    except UNREADABLE:
        pass
    try:
        page = _RAW_PAGE.decode(raw)
    except UNREADABLE as error:
        raise malformed(f"the answer is no list of {kind.plural}: {error}") from error
    return Page(metadata=page.metadata, items=tuple(_readable(kind, page.items or ())))


def _readable(kind: Kind[T], items: tuple[msgspec.Raw, ...]) -> list[T]:
    kept: list[T] = []
    decoder = _decoder(cast(Hashable, kind.type))
    for item in items:
        try:
            kept.append(decoder.decode(item))
        except UNREADABLE as error:
            _log.error("left out an object of %s that cannot be read: %s", kind.plural, error, extra=_who(item))
    return kept


def _who(raw: msgspec.Raw) -> dict[str, str]:
    try:
        metadata = _HEAD.decode(raw).metadata
    except UNREADABLE:
        return {}
    return {"namespace": metadata.namespace, "object": metadata.name, "uid": metadata.uid}


def decode_event(kind: Kind[T], line: bytes) -> WatchEvent[T]:
    """One line of a watch. An ERROR line raises what it says (Gone for 410); what is no event raises Unavailable."""
    try:
        event = _LINE.decode(line)
        match event.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                obj: Any = _decoder(cast(Hashable, kind.type)).decode(event.object)
                version = obj["metadata"]["resourceVersion"] if kind.type is dict else obj.metadata.resource_version
                return WatchEvent(WatchType(event.type), obj, version)
            case "BOOKMARK":
                return WatchEvent(WatchType.BOOKMARK, None, _HEAD.decode(event.object).metadata.resource_version)
            case "ERROR":
                status = _STATUS.decode(event.object)
            case _:
                raise malformed(f"the watch of {kind.plural} sent an event {event.type[:32]!r}")
    except (*UNREADABLE, KeyError, TypeError) as error:
        raise malformed(f"the watch of {kind.plural} sent what is no event: {error}") from error
    raise error_of(status if status.code else msgspec.structs.replace(status, code=500))


def encode(kind: Kind[Any], obj: Any) -> bytes:
    """The JSON of an object with apiVersion and kind in front, whatever it holds."""
    content = obj if isinstance(obj, Mapping) else msgspec.to_builtins(obj)
    return msgspec.json.encode({**content, "apiVersion": kind.api_version, "kind": kind.kind})


def error_from(code: int, raw: bytes, retry_after: str | None) -> KubeError:
    """The exception for an answer that is not 2xx, whether its body is a Status or a proxy's page."""
    status = Status()
    try:
        status = _STATUS.decode(raw)
    except UNREADABLE:
        text = raw[: ERROR_TEXT_MAX_CHARS * 4].decode("utf-8", "replace")[:ERROR_TEXT_MAX_CHARS].strip()
        status = Status(message=text or f"the server answered {code} without a body")
    if status.kind != "Status" or not status.message:
        status = Status(message=status.message or f"the server answered {code}", reason=status.reason)
    error = error_of(msgspec.structs.replace(status, code=code))
    if error.retry_after_seconds == 0 and retry_after and retry_after.isdigit():
        error.retry_after_header = min(int(retry_after), 3600)
    return error
