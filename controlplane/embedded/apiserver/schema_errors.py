"""What a JSON Schema validator found wrong, in the words and with the field paths of Kubernetes.

Lives here: wording. May not live here: validation, which is `schema.py`. Clients match on `reason` and `field`.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from jsonschema_rs import ValidationError, ValidationErrorKind

from controlplane.embedded.apiserver.errors import Cause

INVALID: Final = "FieldValueInvalid"
TYPE_INVALID: Final = "FieldValueTypeInvalid"
REQUIRED: Final = "FieldValueRequired"
DUPLICATE: Final = "FieldValueDuplicate"
NOT_SUPPORTED: Final = "FieldValueNotSupported"
TOO_LONG: Final = "FieldValueTooLong"
TOO_MANY: Final = "FieldValueTooMany"
FORBIDDEN: Final = "FieldValueForbidden"

BLOCKING: Final = frozenset({NOT_SUPPORTED, REQUIRED, TOO_LONG, TOO_MANY, TYPE_INVALID})
"""After one of these the rules are not evaluated: they may rely on types and bounds."""

NOT_CHECKED: Final = Cause(
    INVALID,
    "Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation",
    "<nil>",
)


def quoted(value: Any) -> str:
    """A value as Kubernetes shows it in messages."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def type_name(value: Any) -> str:
    """The JSON type of a value."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    return names.get(type(value), "null")


def field_path(steps: Sequence[str | int]) -> str:
    """`spec.env[0].name`."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def cause_of(error: ValidationError) -> Cause:
    """One finding. Its value is shown, not the schema around it."""
    field = field_path(error.instance_path)
    kind, value = error.kind, cast(Any, error.instance)
    reason, message = INVALID, f"Invalid value: {quoted(value)}: {field} in body "
    match kind:
        case ValidationErrorKind.Required():
            field, reason, message = f"{field}.{kind.property}".lstrip("."), REQUIRED, "Required value"
        case ValidationErrorKind.Type():
            found = quoted(type_name(value))
            reason = TYPE_INVALID
            message = f"Invalid value: {found}: {field} in body must be of type {','.join(_named(kind.types))}: {found}"
        case ValidationErrorKind.Format():
            reason, message = TYPE_INVALID, message + f"must be of type {kind.format}: {quoted(value)}"
        case ValidationErrorKind.Enum():
            supported = ", ".join(quoted(option) for option in kind.options)
            reason, message = NOT_SUPPORTED, f"Unsupported value: {quoted(value)}: supported values: {supported}"
        case ValidationErrorKind.MaxLength():
            reason, message = TOO_LONG, f"Too long: may not be more than {kind.limit} bytes"
        case ValidationErrorKind.MaxItems() | ValidationErrorKind.MaxProperties():
            reason, message = TOO_MANY, f"Too many: {len(value)}: must have at most {kind.limit} items"
        case ValidationErrorKind.MinLength():
            message += f"should be at least {kind.limit} chars long"
        case ValidationErrorKind.MinItems():
            message = f"Invalid value: {len(value)}: {field} in body should have at least {kind.limit} items"
        case ValidationErrorKind.MinProperties():
            message = f"Invalid value: {len(value)}: {field} in body should have at least {kind.limit} properties"
        case ValidationErrorKind.Pattern():
            message += f"should match '{kind.pattern}'"
        case ValidationErrorKind.Minimum():
            message += f"should be greater than or equal to {kind.limit}"
        case ValidationErrorKind.ExclusiveMinimum():
            message += f"should be greater than {kind.limit}"
        case ValidationErrorKind.Maximum():
            message += f"should be less than or equal to {kind.limit}"
        case ValidationErrorKind.ExclusiveMaximum():
            message += f"should be less than {kind.limit}"
        case ValidationErrorKind.MultipleOf():
            message += f"should be a multiple of {kind.multiple_of}"
        case _:
            message = f"Invalid value: {quoted(value)}: {error.message}"
    return Cause(reason, message, field)


def _named(types: Sequence[str]) -> list[str]:
    return [name for name in types if name != "null"]
