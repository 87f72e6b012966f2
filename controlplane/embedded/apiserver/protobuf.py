"""Request bodies in Kubernetes' protobuf: newer kubectl sends built-in kinds so.

Lives here: decoding to the same objects as JSON. May not live here: encoding, since every client takes JSON back.
`representation.py` calls it for `application/vnd.kubernetes.protobuf`.
"""

import base64
import datetime
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import core_types, errors
from controlplane.embedded.apiserver.core_types import Message

Object = dict[str, Any]

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
_DEPTH_MAX: Final = 64
"""Messages nest far less; a body that nests deeper is malformed."""


class Malformed(ValueError):
    """The bytes are no message of the expected type."""


def decode(body: bytes) -> Object:
    """The object of an enveloped body. Raises 400 when it is malformed, 415 for a kind without known types."""
    try:
        if not body.startswith(_MAGIC):
            raise Malformed("the magic number is absent")
        envelope = dict(_values(body[len(_MAGIC) :]))
        kinds = dict(_values(_bytes(envelope.get(1, b""))))
        api_version, kind = _bytes(kinds.get(1, b"")).decode(), _bytes(kinds.get(2, b"")).decode()
        group = api_version.rpartition("/")[0]
        known = core_types.message(core_types.message_of(group, kind))
        if known is None:
            raise errors.unsupported_media_type(f"{MEDIA_TYPE} is not taken for {kind} of {api_version}: send JSON")
        return {"apiVersion": api_version, "kind": kind, **_message(known, _bytes(envelope.get(2, b"")), 0)}
    except (Malformed, UnicodeDecodeError, OverflowError) as error:
        raise errors.bad_request(f"the object provided is not a protobuf message: {error}") from error


def _values(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and raw value of each field in turn."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, position = _varint(data, position)
        elif wire == 2:
            length, position = _varint(data, position)
            value, position = data[position : position + length], position + length
        elif wire in {1, 5}:
            width = 8 if wire == 1 else 4
            value, position = data[position : position + width], position + width
        else:
            raise Malformed(f"wire type {wire} is not used")
        if position > len(data):
            raise Malformed("it ends in the middle of a field")
        yield number, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise Malformed("it ends in the middle of a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise Malformed("a number is too long")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise Malformed("a number stands where bytes belong")
    return value


def _message(known: Message, data: bytes, depth: int) -> Object:
    if depth > _DEPTH_MAX:
        raise Malformed("it nests too deep")
    item: Object = {}
    for number, value in _values(data):
        field = known.numbered.get(number)
        if field is None:
            continue
        if field.inlined:
            inner = core_types.message(field.type)
            item |= _message(inner, _bytes(value), depth + 1) if inner else {}
        elif field.repeated:
            item.setdefault(field.name, []).append(_one(field.type, value, depth))
        elif field.mapped:
            entry = dict(_values(_bytes(value)))
            key = _bytes(entry.get(1, b"")).decode()
            item.setdefault(field.name, {})[key] = _one(field.type, entry.get(2, b""), depth)
        elif field.optional or value not in (0, b""):
            item[field.name] = _one(field.type, value, depth)
    return item


def _one(type_name: str, value: int | bytes, depth: int) -> Any:
    inner = core_types.message(type_name)
    if inner is not None:
        return _message(inner, _bytes(value), depth + 1)
    match type_name:
        case "string":
            return _bytes(value).decode()
        case "bool":
            return bool(value)
        case "int":
            if isinstance(value, bytes):
                raise Malformed("bytes stand where a number belongs")
            return value - (1 << 64) if value >= 1 << 63 else value
        case "bytes":
            return base64.b64encode(_bytes(value)).decode()
        case "Time" | "MicroTime":
            return _time(_bytes(value), micro=type_name == "MicroTime")
        case "Quantity":
            return _bytes(_parts(value).get(1, b"")).decode()
        case "IntOrString":
            parts = _parts(value)
            return _bytes(parts.get(3, b"")).decode() if parts.get(1) else parts.get(2, 0)
        case "ExtraValue":
            return [_bytes(each).decode() for _, each in _values(_bytes(value))]
        case "FieldsV1" | "JSON":
            return _embedded(_bytes(_parts(value).get(1, b"")))
        case _:
            raise Malformed(f"{type_name} is not taken in this form")


def _parts(value: int | bytes) -> dict[int, int | bytes]:
    return dict(_values(_bytes(value)))


def _embedded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data) if data else None
    except msgspec.MsgspecError as error:
        raise Malformed(f"embedded JSON: {error}") from error


def _time(data: bytes, *, micro: bool) -> str:
    parts = _parts(data)
    seconds, nanos = parts.get(1, 0), parts.get(2, 0)
    if isinstance(seconds, bytes) or isinstance(nanos, bytes):
        raise Malformed("a time is no number")
    if seconds >= 1 << 63:
        seconds -= 1 << 64
    at = _EPOCH + datetime.timedelta(seconds=seconds, microseconds=nanos // 1000)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")
