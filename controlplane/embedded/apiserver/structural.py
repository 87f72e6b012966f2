"""Structural schemas: what an API server does to an object before it judges it.

Lives here: cutting unknown fields and nulls, filling in defaults, and the same schema in the words of JSON Schema.
May not live here: judgement, which is `schema.py` and `cel.py`. A `Node` is compiled once for each CRD version.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

import msgspec

Schema = Mapping[str, Any]

NO_DEFAULT: Final = msgspec.UNSET
_INT64_LIMIT: Final = 2**63
_PASSED_ON: Final = (
    "enum",
    "format",
    "maxItems",
    "maxLength",
    "maxProperties",
    "minItems",
    "minLength",
    "minProperties",
    "multipleOf",
    "pattern",
    "required",
)
_JUNCTORS: Final = ("allOf", "anyOf", "oneOf")


class Node(msgspec.Struct, frozen=True, gc=False):
    """One value's place in a structural schema, with what is done to it before validation."""

    type: str
    properties: dict[str, "Node"]
    values: "Node | None"
    items: "Node | None"
    keeps_unknown: bool
    nullable: bool
    default: Any
    defaulted: tuple[str, ...]
    rules: tuple[Schema, ...]
    list_type: str
    list_keys: tuple[str, ...]
    format: str

    @classmethod
    def of(cls, schema: Schema) -> "Node":
        """Compile a structural schema; raises ValueError when an array has no items or a value no type."""
        properties = {name: cls.of(child) for name, child in schema.get("properties", {}).items()}
        values, items = schema.get("additionalProperties"), schema.get("items")
        return cls(
            type=schema.get("type", ""),
            properties=properties,
            values=cls.of(values) if isinstance(values, Mapping) else None,
            items=cls.of(items) if items is not None else None,
            keeps_unknown=bool(schema.get("x-kubernetes-preserve-unknown-fields")) or values is True,
            nullable=bool(schema.get("nullable")),
            default=schema.get("default", NO_DEFAULT),
            defaulted=tuple(name for name, child in properties.items() if child.default is not NO_DEFAULT),
            rules=tuple(schema.get("x-kubernetes-validations", ())),
            list_type=schema.get("x-kubernetes-list-type", "atomic"),
            list_keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
            format=schema.get("format", ""),
        )


def prune(node: Node, value: Any, path: str, unknown: list[str]) -> Any:
    """`value` without the fields that `node` does not know; their paths are added to `unknown`. Changes it in place.

    A number such as 2.0 becomes 2 where a whole one is expected, as it does in Kubernetes.
    """
    if isinstance(value, dict):
        if node.type == "object":
            _prune_members(node, value, path, unknown)
    elif isinstance(value, list):
        if node.items is not None:
            for index, item in enumerate(value):
                value[index] = prune(node.items, item, f"{path}[{index}]", unknown)
    elif isinstance(value, float) and node.type in ("integer", "") and value.is_integer():
        return int(value)
    return value


def _prune_members(node: Node, value: dict[str, Any], path: str, unknown: list[str]) -> None:
    for name in list(value):
        child = node.properties.get(name) or node.values
        where = f"{path}.{name}" if path else name
        if child is not None:
            value[name] = prune(child, value[name], where, unknown)
        elif not node.keeps_unknown:
            unknown.append(where)
            del value[name]


def fill(node: Node, value: Any) -> None:
    """Drop nulls that may not be, then put in what is absent and has a default. Changes `value` in place."""
    if isinstance(value, dict):
        for name in [name for name, member in value.items() if member is None]:
            child = node.properties.get(name) or node.values
            if child is not None and not child.nullable:
                del value[name]
        for name in node.defaulted:
            if name not in value:
                value[name] = copy.deepcopy(node.properties[name].default)
        for name, member in value.items():
            child = node.properties.get(name) or node.values
            if child is not None and isinstance(member, (dict, list)):
                fill(child, member)
    elif isinstance(value, list) and node.items is not None:
        for item in value:
            fill(node.items, item)


def json_schema(schema: Schema) -> dict[str, Any]:
    """The same bounds in JSON Schema (draft 2020-12), which knows neither `nullable` nor int-or-string."""
    bounds: dict[str, Any] = {key: schema[key] for key in _PASSED_ON if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        bounds["type"] = ["integer", "string"]
    elif "type" in schema:
        bounds["type"] = [schema["type"]]
    if schema.get("nullable") and "type" in bounds:
        bounds["type"].append("null")
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if limit in schema:
            bounds[exclusive if schema.get(exclusive) else limit] = schema[limit]
    if "integer" in bounds.get("type", ()):
        bounds.setdefault("maximum", _INT64_LIMIT - 1)
        bounds.setdefault("minimum", -_INT64_LIMIT)
    if "properties" in schema:
        bounds["properties"] = {name: json_schema(child) for name, child in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), Mapping):
        bounds["additionalProperties"] = json_schema(schema["additionalProperties"])
    if "items" in schema:
        bounds["items"] = json_schema(schema["items"])
    if "not" in schema:
        bounds["not"] = json_schema(schema["not"])
    return bounds | {key: [json_schema(part) for part in schema[key]] for key in _JUNCTORS if key in schema}
