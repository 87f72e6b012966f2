"""The life of `metadata`: what the server sets, what it keeps, what it refuses.

Lives here: pure functions over decoded objects. May not live here: storage. `objects.py` calls them before a write.
"""

import datetime
import uuid
from collections.abc import Callable
from typing import Any

from controlplane.embedded.apiserver import limits, names
from controlplane.embedded.apiserver.errors import Cause

Object = dict[str, Any]


def timestamp(now: datetime.datetime) -> str:
    """Kubernetes' metav1.Time: RFC 3339 in whole seconds, UTC."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_timestamp(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        return None


def begin(item: Object, *, now: datetime.datetime, generation: bool) -> None:
    """Set what the server alone decides about a new object. The name must be there."""
    metadata = item["metadata"]
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "managedFields"):
        metadata.pop(name, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = timestamp(now)
    if generation:
        metadata["generation"] = 1
    else:
        metadata.pop("generation", None)


def carry_over(item: Object, old: Object) -> None:
    """Keep what an update may not set: identity, times and the deletion that is under way."""
    metadata, before = item["metadata"], old["metadata"]
    for name in (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "generation",
        "generateName",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ):
        if name in before:
            metadata[name] = before[name]
        else:
            metadata.pop(name, None)
    metadata.pop("selfLink", None)


def tidy(metadata: Object) -> None:
    """Drop empty maps and lists and null values, as a decoded and encoded ObjectMeta would."""
    for name in [name for name, value in metadata.items() if value in (None, "", [], {})]:
        del metadata[name]


def owner_uids(metadata: Object) -> tuple[str, ...]:
    return tuple(reference["uid"] for reference in metadata.get("ownerReferences") or ())


def wrong_metadata(metadata: Object, *, name_rule: Callable[[str], list[str]], old: Object | None) -> list[Cause]:
    """Everything that Kubernetes checks of metadata, in its order. `old` is the metadata before an update."""
    causes: list[Cause] = []
    if old is None:
        causes += _wrong_name(metadata, name_rule)
    if old is None or metadata.get("labels") != old.get("labels"):
        causes += wrong_labels(metadata.get("labels") or {}, "metadata.labels")
    if old is None or metadata.get("annotations") != old.get("annotations"):
        causes += _wrong_annotations(metadata.get("annotations") or {})
    if old is None or metadata.get("finalizers") != old.get("finalizers"):
        causes += _wrong_finalizers(metadata, old)
    if old is None or metadata.get("ownerReferences") != old.get("ownerReferences"):
        causes += _wrong_owners(metadata.get("ownerReferences") or [])
    return causes


def _wrong_name(metadata: Object, rule: Callable[[str], list[str]]) -> list[Cause]:
    causes: list[Cause] = []
    prefix = metadata.get("generateName")
    if prefix:
        for message in rule(prefix.rstrip("-.") or prefix):
            causes.append(Cause("FieldValueInvalid", f'Invalid value: "{prefix}": {message}', "metadata.generateName"))
    name = metadata.get("name") or ""
    if not name:
        causes.append(Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name"))
        return causes
    for message in rule(name):
        causes.append(Cause("FieldValueInvalid", f'Invalid value: "{name}": {message}', "metadata.name"))
    return causes


def wrong_labels(labels: Object, path: str) -> list[Cause]:
    causes: list[Cause] = []
    for key, value in labels.items():
        for message in names.wrong_qualified(key):
            causes.append(Cause("FieldValueInvalid", f'Invalid value: "{key}": {message}', path))
        for message in names.wrong_label_value(value):
            causes.append(Cause("FieldValueInvalid", f'Invalid value: "{value}": {message}', path))
    return causes


def _wrong_annotations(annotations: Object) -> list[Cause]:
    causes: list[Cause] = []
    total = 0
    for key, value in annotations.items():
        total += len(key.encode()) + len(value.encode())
        for message in names.wrong_qualified(key.lower()):
            causes.append(Cause("FieldValueInvalid", f'Invalid value: "{key}": {message}', "metadata.annotations"))
    if total > limits.ANNOTATIONS_MAX_BYTES:
        message = f"Too long: may not be more than {limits.ANNOTATIONS_MAX_BYTES} bytes"
        causes.append(Cause("FieldValueTooLong", message, "metadata.annotations"))
    return causes


def _wrong_finalizers(metadata: Object, old: Object | None) -> list[Cause]:
    causes: list[Cause] = []
    finalizers: list[str] = metadata.get("finalizers") or []
    for finalizer in finalizers:
        for message in names.wrong_qualified(finalizer):
            field = "metadata.finalizers"
            causes.append(Cause("FieldValueInvalid", f'Invalid value: "{finalizer}": {message}', field))
    if old is not None and old.get("deletionTimestamp"):
        added = [finalizer for finalizer in finalizers if finalizer not in (old.get("finalizers") or [])]
        if added:
            listed = ", ".join(f'"{finalizer}"' for finalizer in added)
            message = (
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
                f"[]string{{{listed}}}"
            )
            causes.append(Cause("FieldValueForbidden", message, "metadata.finalizers"))
    return causes


def _wrong_owners(owners: list[Object]) -> list[Cause]:
    causes: list[Cause] = []
    controllers = 0
    for index, owner in enumerate(owners):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                path = f"metadata.ownerReferences[{index}].{field}"
                causes.append(Cause("FieldValueInvalid", 'Invalid value: "": must not be empty', path))
        controllers += bool(owner.get("controller"))
    if controllers > 1:
        message = "Only one reference can have Controller set to true"
        causes.append(Cause("FieldValueInvalid", message, "metadata.ownerReferences"))
    return causes


_METADATA_TYPES = {
    "name": str,
    "generateName": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "selfLink": str,
    "creationTimestamp": str,
    "deletionTimestamp": str,
    "generation": int,
    "deletionGracePeriodSeconds": int,
    "labels": dict,
    "annotations": dict,
    "finalizers": list,
    "ownerReferences": list,
    "managedFields": list,
}
_OWNER_FIELDS = {
    "apiVersion": str,
    "kind": str,
    "name": str,
    "uid": str,
    "controller": bool,
    "blockOwnerDeletion": bool,
}


def shape_error(metadata: Any) -> str | None:
    """The first value in metadata that does not decode as an ObjectMeta, in a sentence; None when all do."""
    if not isinstance(metadata, dict):
        return f"metadata: expected an object, got {_json_type(metadata)}"
    value: Any
    for name, value in metadata.items():
        expected: Any = _METADATA_TYPES.get(name)
        if expected is None or value is None:
            continue
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            return f"metadata.{name}: expected {_json_type(expected())}, got {_json_type(value)}"
        if name in {"labels", "annotations"}:
            for key, text in value.items():
                if not isinstance(text, str):
                    return f"metadata.{name}.{key}: expected string, got {_json_type(text)}"
        elif name == "finalizers" and not all(isinstance(text, str) for text in value):
            return "metadata.finalizers: expected strings"
        elif name == "ownerReferences" and not all(map(_is_owner, value)):
            return "metadata.ownerReferences: expected objects with strings and booleans"
    return None


def _is_owner(owner: Any) -> bool:
    if not isinstance(owner, dict):
        return False
    known = ((owner[name], kind) for name, kind in _OWNER_FIELDS.items() if owner.get(name) is not None)
    return all(isinstance(value, kind) for value, kind in known)


def unknown_fields(metadata: Object) -> list[str]:
    """Fields that ObjectMeta does not have; they are pruned and reported."""
    found = [f"metadata.{name}" for name in metadata if name not in _METADATA_TYPES]
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        found += [f"metadata.ownerReferences[{index}].{name}" for name in owner if name not in _OWNER_FIELDS]
    return found


def prune_unknown(metadata: Object) -> None:
    for name in [name for name in metadata if name not in _METADATA_TYPES]:
        del metadata[name]
    for owner in metadata.get("ownerReferences") or ():
        for name in [name for name in owner if name not in _OWNER_FIELDS]:
            del owner[name]


def _json_type(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case dict():
            return "object"
        case list():
            return "array"
        case _:
            return "null"
