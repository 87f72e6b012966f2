"""Checks that several built-in kinds share: fields that must be there, that may not change, that are label selectors.

Lives here: functions from an object to causes. May not live here: what one kind asks for (`builtin_hooks.py`,
`pod_hooks.py` call these).
"""

from typing import Any

from controlplane.embedded.apiserver import errors
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.kinds import Object
from controlplane.embedded.apiserver.selectors import from_label_selector


def required(item: Object, *paths: str) -> list[Cause]:
    causes: list[Cause] = []
    for path in paths:
        value: Any = item
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value in (None, "", [], {}):
            causes.append(Cause("FieldValueRequired", "Required value", path))
    return causes


def immutable(item: Object, old: Object | None, *fields: str) -> list[Cause]:
    if old is None:
        return []
    changed = [field for field in fields if item.get(field) != old.get(field)]
    return [
        Cause("FieldValueInvalid", f"Invalid value: {errors.shown(item.get(field))}: field is immutable", field)
        for field in changed
    ]


def wrong_selector(selector: Object, path: str) -> list[Cause]:
    try:
        from_label_selector(selector)
    except ValueError as error:
        return [Cause("FieldValueInvalid", f"Invalid value: {error}", path)]
    return []
