"""From msgspec Structs to structural schemas: types, bounds, documentation, rules and defaults.

Pure; `crd` renders our kinds with it. A default other than None or an empty value is a default of the API.
"""

from typing import Any, Final

import msgspec
from msgspec import inspect

Schema = dict[str, Any]

_KEYWORDS: Final = (
    "description",
    "type",
    "format",
    "default",
    "enum",
    "required",
    "x-kubernetes-int-or-string",
)  # what a reader wants to see first; the others follow in the order in which the types give them
_SCALARS: Final[dict[type, str]] = {
    inspect.StrType: "string",
    inspect.BoolType: "boolean",
    inspect.IntType: "integer",
}


def struct_schema(struct: type) -> Schema:
    """The schema of a Struct. Its docstring is the description, its class variable `rules` the rules."""
    info = struct_info(struct)
    schema: Schema = {"type": "object", "description": " ".join((struct.__doc__ or "").split())}
    required = [field.encode_name for field in info.fields if field.required]
    if required:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _field_schema(field) for field in info.fields}
    rules = getattr(struct, "rules", ())
    if rules:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    return schema


def struct_info(struct: type) -> inspect.StructType:
    """The fields of a Struct as msgspec sees them."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info


def _field_schema(field: inspect.Field) -> Schema:
    schema = _type_schema(field.type)
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(default, msgspec.Struct):
        default = msgspec.to_builtins(default)  # {} makes the defaults inside it appear
    elif default is msgspec.NODEFAULT or default in (None, "", (), {}):
        return schema
    return _in_order(schema | {"default": default})


def _type_schema(of: inspect.Type) -> Schema:
    match of:
        case inspect.Metadata(type=inner, extra_json_schema=extra):
            return _in_order(_type_schema(inner) | (extra or {}))
        case inspect.UnionType(types=types):
            members = [member for member in types if not isinstance(member, inspect.NoneType)]
            # The one other union is int or string, and its own keyword stands for the types.
            return _type_schema(members[0]) if len(members) == 1 else {}
        case inspect.StructType(cls=struct):
            return struct_schema(struct)
        case inspect.LiteralType(values=values):
            return {"type": "string", "enum": list(values)}
        case inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": _type_schema(item)}
        case inspect.DictType(value_type=inspect.AnyType()):
            return {"type": "object"}
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": _type_schema(value)}
    return {"type": _SCALARS[type(of)]}


def _in_order(schema: Schema) -> Schema:
    first = {key: schema[key] for key in _KEYWORDS if key in schema}
    return first | schema
