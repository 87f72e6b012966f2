"""The fields of Kubernetes' built-in kinds: names, numbers on the wire, types; and the checks that follow from them.

Lives here: reading `core_types.txt` (once, when first needed) and walking objects by it. May not live here: protobuf
(`protobuf.py`), values that types do not bound (`builtin_hooks.py`). `objects.py` uses `CoreSchema` as the schema of
built-in kinds: it cuts unknown fields and refuses values of another type, so the hooks may rely on both.
"""

import functools
from pathlib import Path
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors
from controlplane.embedded.apiserver.errors import Cause

Object = dict[str, Any]

_FILE: Final = Path(__file__).with_name("core_types.txt")
_PACKAGES: Final = {
    "": "core",
    "apps": "apps",
    "policy": "policy",
    "autoscaling": "autoscaling",
    "meta.k8s.io": "meta",
    "apiextensions.k8s.io": "apiextensions",
    "authentication.k8s.io": "authentication",
    "authorization.k8s.io": "authorization",
    "coordination.k8s.io": "coordination",
    "discovery.k8s.io": "discovery",
    "events.k8s.io": "events",
    "networking.k8s.io": "networking",
    "rbac.authorization.k8s.io": "rbac",
}
_STRINGS: Final = frozenset({"string", "bytes", "Time", "MicroTime"})
_ANYTHING: Final = frozenset(
    {"FieldsV1", "JSON", "JSONSchemaPropsOrArray", "JSONSchemaPropsOrBool", "JSONSchemaPropsOrStringArray"}
)


class Field(msgspec.Struct, frozen=True):
    """A field of a message. `type` is a scalar's name or a message's; `inlined` fields have no name of their own.

    `optional` fields tell zero from absent; of others a zero on the wire means absent.
    """

    name: str
    number: int
    type: str
    repeated: bool = False
    mapped: bool = False
    optional: bool = False

    @property
    def inlined(self) -> bool:
        return not self.name


class Message(msgspec.Struct, frozen=True):
    """A message by names (inlined ones opened) and by numbers (as on the wire)."""

    named: dict[str, Field]
    numbered: dict[int, Field]


@functools.cache
def _lines() -> dict[str, str]:
    lines = (line for line in _FILE.read_text().splitlines() if not line.startswith("#"))
    return {name: fields for name, _, fields in (line.partition(" ") for line in lines)}


@functools.cache
def message(name: str) -> Message | None:
    """A message by its name, such as `core.PodSpec`; None for what is none."""
    line = _lines().get(name)
    if line is None:
        return None
    named: dict[str, Field] = {}
    numbered: dict[int, Field] = {}
    for word in line.split():
        field = _field(word)
        numbered[field.number] = field
        inner = message(field.type) if field.inlined else None
        if inner is not None:
            named |= inner.named
        else:
            named[field.name] = field
    return Message(named, numbered)


def _field(word: str) -> Field:
    name, number, text = word.split(":")
    optional, text = text.startswith("*"), text.removeprefix("*")
    repeated, mapped = text.startswith("[]"), text.startswith("{}")
    return Field(name, int(number), text[2:] if repeated or mapped else text, repeated, mapped, optional)


def message_of(group: str, kind: str) -> str:
    """The name of a kind's message."""
    return f"{_PACKAGES.get(group, group)}.{kind}"


class CoreSchema:
    """The schema of a built-in kind: structure and types, nothing that depends on values."""

    def __init__(self, group: str, kind: str) -> None:
        self._name = message_of(group, kind)
        self._kind = kind

    def prune_and_default(self, obj: Object) -> tuple[Object, list[str]]:
        """Cut unknown fields and nulls in place. Raises 400 for a value that does not decode, as Kubernetes does."""
        unknown: list[str] = []
        known = message(self._name)
        if known is None:
            raise LookupError(f"{self._name} has no types")
        for name in [name for name in obj if name not in {"apiVersion", "kind", "metadata"}]:
            field = known.named.get(name)
            if field is None:
                unknown.append(name)
                del obj[name]
            elif obj[name] is None:
                del obj[name]
            else:
                obj[name] = self._walked(field, obj[name], name, unknown)
        return obj, unknown

    def validate(self, obj: Object, old: Object | None) -> list[Cause]:
        return []

    def _walked(self, field: Field, value: Any, path: str, unknown: list[str]) -> Any:
        if field.repeated:
            if not isinstance(value, list):
                raise self._refused(path, "an array", value)
            return [self._one(field.type, each, f"{path}[{index}]", unknown) for index, each in enumerate(value)]
        if field.mapped:
            if not isinstance(value, dict):
                raise self._refused(path, "an object", value)
            return {key: self._one(field.type, each, f"{path}.{key}", unknown) for key, each in value.items()}
        return self._one(field.type, value, path, unknown)

    def _one(self, type_name: str, value: Any, path: str, unknown: list[str]) -> Any:
        inner = message(type_name)
        if inner is not None:
            return self._object(inner, value, path, unknown)
        if type_name in _ANYTHING:
            return value
        expected, fits = _fits(type_name, value)
        if not fits:
            raise self._refused(path, expected, value)
        if type_name == "Quantity":
            return str(value)
        return int(value) if type_name == "int" else value

    def _object(self, known: Message, value: Any, path: str, unknown: list[str]) -> Object:
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._refused(path, "an object", value)
        kept: Object = {}
        for name, member in value.items():
            field = known.named.get(name)
            if field is None:
                unknown.append(f"{path}.{name}")
            elif member is not None:
                kept[name] = self._walked(field, member, f"{path}.{name}", unknown)
        return kept

    def _refused(self, path: str, expected: str, value: Any) -> errors.ApiError:
        return errors.bad_request(
            f"{self._kind} cannot be handled: {path}: expected {expected}, got {errors.shown(value)}"
        )


def typed(group: str, kind: str, body: Any) -> Object:
    """A decoded body that is never stored (a review, a Scale, options) as an object of that kind; 400 if it is none."""
    if not isinstance(body, dict):
        raise errors.bad_request(f"{kind} cannot be handled: the body is not a JSON object")
    item, _ = CoreSchema(group, kind).prune_and_default(body)
    return item


def _fits(type_name: str, value: Any) -> tuple[str, bool]:
    """What a scalar must be, and whether it is."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if type_name in _STRINGS:
        return "a string", isinstance(value, str)
    match type_name:
        case "int":
            return "a whole number", number and float(value).is_integer() and -(2**63) <= value < 2**63
        case "bool":
            return "a boolean", isinstance(value, bool)
        case "double":
            return "a number", number
        case "ExtraValue":
            return "strings", isinstance(value, list) and all(isinstance(each, str) for each in value)
        case _:
            return "a string or a number", number or isinstance(value, str)
