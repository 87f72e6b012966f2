"""A CRD made ready to judge objects: unknown fields, defaults, types and bounds, list keys, rules.

Lives here: the order of these steps, which is Kubernetes' own. The steps are in `structural.py`, `schema_errors.py` and
`cel.py`. `custom.py` compiles, `objects.py` calls. Nothing here reads or stores objects.
"""

import base64
import binascii
import datetime
import re
from collections.abc import Mapping
from typing import Any, Final

import jsonschema_rs
import msgspec

from controlplane.embedded.apiserver import cel
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.schema_errors import (
    BLOCKING,
    DUPLICATE,
    INVALID,
    NOT_CHECKED,
    cause_of,
    quoted,
)
from controlplane.embedded.apiserver.structural import Node, fill, json_schema, prune

Object = dict[str, Any]

_SERVER_FIELDS: Final[Mapping[str, Any]] = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


class CompiledVersion:
    """One version of a CRD. Objects are plain JSON values; nothing but the object given is ever changed."""

    def __init__(self, version: Mapping[str, Any]) -> None:
        """Raises cel.RuleError for a rule that does not compile, ValueError for a schema that is none."""
        schema: Object = dict(version.get("schema", {}).get("openAPIV3Schema", {}))
        subresources = version.get("subresources") or {}
        self.name: str = version["name"]
        self.served: bool = version.get("served", True)
        self.schema = schema
        self.has_status = "status" in subresources
        self.scale: Mapping[str, str] | None = subresources.get("scale")
        self.printer_columns: tuple[Mapping[str, Any], ...] = tuple(version.get("additionalPrinterColumns", ()))
        self.selectable_fields: tuple[str, ...] = tuple(
            field["jsonPath"] for field in version.get("selectableFields", ())
        )
        self._node = Node.of(schema | {"properties": _with_server_fields(schema.get("properties", {}))})
        self._keyed = _has_keyed_lists(self._node)
        self._validator = jsonschema_rs.Draft202012Validator(
            json_schema(schema),
            formats=_FORMATS,
            validate_formats=True,
            pattern_options=jsonschema_rs.RegexOptions(),
        )
        self._checker = cel.Checker.of(Node.of(schema))

    def prune_and_default(self, obj: Object) -> tuple[Object, list[str]]:
        """The object without unknown fields and with its defaults, and the paths of what was cut. Works in place."""
        unknown: list[str] = []
        prune(self._node, obj, "", unknown)
        fill(self._node, obj)
        return obj, unknown

    def validate(self, obj: Object, old: Object | None = None) -> list[Cause]:
        """Everything that is wrong with a pruned and defaulted object, as Kubernetes would say it.

        `old` is the object before an update: transition rules see it, and what was wrong before and is unchanged is
        forgiven, so that tightened bounds do not lock what exists.
        """
        causes: list[Cause] = []
        if not self._validator.is_valid(obj):
            for error in self._validator.iter_errors(obj):
                if not _was_so(error.instance_path, error.instance, old):
                    causes.append(cause_of(error))
        if self._keyed:
            _check_keys(self._node, obj, "", causes)
        if any(cause.reason in BLOCKING for cause in causes):
            causes.append(NOT_CHECKED)
        elif self._checker is not None:
            causes += cel.check(self._checker, obj, old)
        return causes


class CompiledCRD(msgspec.Struct, frozen=True):
    """A CustomResourceDefinition whose versions are ready to judge objects."""

    versions: dict[str, CompiledVersion]

    @classmethod
    def compile(cls, crd: Mapping[str, Any]) -> "CompiledCRD":
        """Raises cel.RuleError or ValueError when the CRD cannot be served."""
        return cls({version["name"]: CompiledVersion(version) for version in crd["spec"]["versions"]})


def _with_server_fields(properties: Mapping[str, Any]) -> Object:
    """`metadata` is the API server's own: whatever a CRD says of it bounds it, but never cuts it."""
    merged = {name: dict(schema) | dict(properties.get(name, {})) for name, schema in _SERVER_FIELDS.items()}
    return dict(properties) | merged


def _was_so(path: list[str | int], value: Any, old: Any) -> bool:
    for step in path:
        try:
            old = old[step]
        except (LookupError, TypeError):
            return False
    return old is not None and old == value


def _has_keyed_lists(node: Node) -> bool:
    children = [*node.properties.values(), *(child for child in (node.values, node.items) if child)]
    return node.list_type in ("map", "set") or any(map(_has_keyed_lists, children))


def _check_keys(node: Node, value: Any, path: str, causes: list[Cause]) -> None:
    """Items of lists of type `map` and `set` are unique; every item that repeats an earlier one is named."""
    if isinstance(value, dict):
        for name, member in value.items():
            child = node.properties.get(name) or node.values
            if child is not None and isinstance(member, (dict, list)):
                _check_keys(child, member, f"{path}.{name}" if path else name, causes)
    elif isinstance(value, list) and node.items is not None:
        seen: set[str] = set()
        for index, item in enumerate(value):
            where = f"{path}[{index}]"
            if node.list_type == "map" and not isinstance(item, dict):
                if item is not None:
                    message = f"Invalid value: {quoted(item)}: must be an object for an array of list-type map"
                    causes.append(Cause(INVALID, message, where))
            elif node.list_type != "atomic":
                identity = quoted(_identity(node, item))
                if identity in seen:
                    causes.append(Cause(DUPLICATE, f"Duplicate value: {identity}", where))
                seen.add(identity)
            _check_keys(node.items, item, where, causes)


def _identity(node: Node, item: Any) -> Any:
    return {key: item[key] for key in node.list_keys if key in item} if node.list_type == "map" else item


def _is_date_time(text: str) -> bool:
    if not _DATE_TIME.fullmatch(text):
        return False
    try:
        datetime.date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return False
    return True


_FORMATS: Final = {"date-time": _is_date_time, "datetime": _is_date_time, "byte": _is_base64}
"""Where Kubernetes differs from JSON Schema; formats of neither (int32, int64) say nothing more than their bounds."""
