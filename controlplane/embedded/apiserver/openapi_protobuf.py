"""The protobuf form of an OpenAPI 2 document, as kubectl reads it.

Lives here: field numbers of the messages of package `openapi.v2`, as far as `openapi.py` fills them, and their
encoding. The wire format is protobuf's: a key (number and type), then a varint or a length and bytes. Maps are lists of
name and value; what has no message of its own travels as YAML text, and JSON is YAML.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

Object = Mapping[str, Any]

_VARINT: Final = 0
_BYTES: Final = 2


def encode(document: Object) -> bytes:
    """The bytes of message `Document`."""
    return b"".join(
        [
            _text(1, document["swagger"]),
            _message(2, _text(1, document["info"]["title"]) + _text(2, document["info"]["version"])),
            _message(8, _named(2, document["paths"], _path_item)),
            _message(9, _named(1, document["definitions"], _schema)),
        ]
    )


def _path_item(item: Object) -> bytes:
    numbers = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
    operations = [_message(number, _operation(item[method])) for method, number in numbers.items() if method in item]
    return b"".join([*operations, *(_message(9, _parameter(each)) for each in item["parameters"])])


def _operation(operation: Object) -> bytes:
    return b"".join(
        [
            _text(3, operation["description"]),
            _text(5, operation["operationId"]),
            _texts(6, operation["produces"]),
            _texts(7, operation["consumes"]),
            *(_message(8, _parameter(each)) for each in operation["parameters"]),
            _message(9, _named(1, operation["responses"], _response_value)),
            _extensions(13, operation),
        ]
    )


def _parameter(parameter: Object) -> bytes:
    """A `ParametersItem`: one of several messages, by where the parameter is."""
    name, place = parameter["name"], parameter["in"]
    description, required = parameter.get("description", ""), parameter.get("required", False)
    if place == "body":
        body = _text(2, name) + _text(3, place) + _flag(4, required) + _message(5, _schema(parameter["schema"]))
        return _message(1, _message(1, body))
    kind_number, number = (6, 3) if place == "query" else (5, 4)
    plain = _flag(1, required) + _text(2, place) + _text(3, description) + _text(4, name)
    plain += _text(kind_number, parameter["type"])
    return _message(1, _message(2, _message(number, plain)))


def _response_value(response: Object) -> bytes:
    schema = _message(2, _message(1, _schema(response["schema"])))
    return _message(1, _text(1, response["description"]) + schema)


def _schema(schema: Object) -> bytes:
    parts = [
        _text(1, schema.get("$ref", "")),
        _text(2, schema.get("format", "")),
        _text(4, schema.get("description", "")),
        _texts(19, schema.get("required", ())),
    ]
    if "additionalProperties" in schema:
        parts.append(_message(21, _message(1, _schema(schema["additionalProperties"]))))
    if "type" in schema:
        parts.append(_message(22, _text(1, schema["type"])))
    if "items" in schema:
        parts.append(_message(23, _message(1, _schema(schema["items"]))))
    if "properties" in schema:
        parts.append(_message(25, _named(1, schema["properties"], _schema)))
    return b"".join([*parts, _extensions(31, schema)])


def _extensions(number: int, holder: Object) -> bytes:
    return _named(number, {name: value for name, value in holder.items() if name.startswith("x-")}, _yaml)


def _yaml(value: Any) -> bytes:
    return _text(2, msgspec.json.encode(value).decode())


def _named(number: int, members: Object, value_of: Callable[[Any], bytes]) -> bytes:
    """A map, as repeated messages of name (1) and value (2)."""
    return b"".join(_message(number, _text(1, name) + _message(2, value_of(value))) for name, value in members.items())


def _texts(number: int, values: Iterable[str]) -> bytes:
    return b"".join(_text(number, value) for value in values)


def _text(number: int, value: str) -> bytes:
    return _message(number, value.encode()) if value else b""


def _flag(number: int, value: bool) -> bytes:
    return _varint(number << 3 | _VARINT) + b"\x01" if value else b""


def _message(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
