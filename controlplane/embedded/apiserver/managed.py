"""Field ownership: `metadata.managedFields`, of objects that some manager applies.

Lives here: which manager owns which field, over applies and updates. May not live here: the algebra (`fieldsets.py`).
`applying.py` and `objects.py` call it. An object that nobody ever applied has no managedFields: its first apply finds
all of it owned by `before-first-apply`, as Kubernetes calls it, so a status patch of such an object pays nothing.
"""

import contextlib
import datetime
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors, fieldsets, meta
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.fieldsets import Fields, Shape

Object = dict[str, Any]

BEFORE_FIRST: Final = "before-first-apply"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_SERVER_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
    "selfLink",
    "managedFields",
)


class Owner(msgspec.Struct, frozen=True):
    """One entry of managedFields."""

    manager: str
    operation: str
    subresource: str
    api_version: str
    time: str
    fields: Fields

    def same_as(self, other: "Owner") -> bool:
        mine = (self.manager, self.operation, self.subresource)
        return mine == (other.manager, other.operation, other.subresource)


def read(entries: Any) -> list[Owner]:
    """Entries of an object; what is malformed is left out."""
    owners: list[Owner] = []
    for entry in entries or ():
        if isinstance(entry, dict) and fieldsets.is_fields(entry.get("fieldsV1")):
            owners.append(
                Owner(
                    str(entry.get("manager") or ""),
                    str(entry.get("operation") or ""),
                    str(entry.get("subresource") or ""),
                    str(entry.get("apiVersion") or ""),
                    str(entry.get("time") or ""),
                    entry["fieldsV1"],
                )
            )
    return owners


def written(owners: list[Owner]) -> list[Object]:
    entries: list[Object] = []
    for owner in owners:
        if not owner.fields:
            continue
        entry: Object = {
            "manager": owner.manager,
            "operation": owner.operation,
            "apiVersion": owner.api_version,
            "time": owner.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": owner.fields,
        }
        if owner.subresource:
            entry["subresource"] = owner.subresource
        entries.append(entry)
    return entries


def content(item: Object) -> Object:
    """What of an object can be owned."""
    kept = {name: value for name, value in item.items() if name not in {"apiVersion", "kind", "metadata"}}
    metadata = {k: v for k, v in (item.get("metadata") or {}).items() if k not in _SERVER_METADATA and v is not None}
    return {**kept, "metadata": metadata} if metadata else kept


def owners_before(live: Object, manager: str, shape: Shape) -> list[Owner]:
    """The owners of a live object; of one that was never applied, what its history tells.

    What kubectl applied on the client's side before is its own already, so that going over to the server's side finds
    no conflict and removes what the new configuration lacks.
    """
    entries = live["metadata"].get("managedFields")
    if entries:
        return read(entries)
    everything = fieldsets.of(content(live), shape)
    applied: Fields = {}
    last = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    if last and manager == "kubectl":
        with contextlib.suppress(msgspec.MsgspecError):
            decoded = msgspec.json.decode(last)
            if isinstance(decoded, dict):
                own: Fields = {"f:metadata": {"f:annotations": {f"f:{LAST_APPLIED}": {}}}}
                applied = fieldsets.union(fieldsets.of(content(decoded), shape), own)
    api_version, time = live["apiVersion"], live["metadata"].get("creationTimestamp", "")
    before = Owner(BEFORE_FIRST, "Update", "", api_version, time, fieldsets.difference(everything, applied))
    mine = Owner(manager, "Apply", "", api_version, time, applied)
    return [mine, before]


def conflicts(mine: Owner, others: list[Owner], live: Object, config: Object) -> list[Cause]:
    """Fields that others own and that the configuration sets to another value."""
    causes: list[Cause] = []
    for other in others:
        for path in fieldsets.leaves(fieldsets.intersection(mine.fields, other.fields)):
            if path[-1] != fieldsets.SELF and fieldsets.value_at(live, path) != fieldsets.value_at(config, path):
                how = f' with subresource "{other.subresource}"' if other.subresource else ""
                if other.operation == "Update":
                    how += f" using {other.api_version}"
                message = f'conflict with "{other.manager}"{how}'
                causes.append(Cause("FieldManagerConflict", message, fieldsets.shown(path)))
    return causes


def refuse(causes: list[Cause]) -> None:
    """409 in Kubernetes' words; kubectl explains what to do."""
    raise errors.apply_conflict(causes)


def settled(mine: Owner, before: Owner | None, others: list[Owner], live: Object, config: Object) -> list[Owner]:
    """The owners after an apply: shared where the value is the same, taken over where it was forced."""
    after: list[Owner] = []
    for other in others:
        taken: Fields = {}
        for path in fieldsets.leaves(fieldsets.intersection(mine.fields, other.fields)):
            if fieldsets.value_at(live, path) != fieldsets.value_at(config, path):
                taken = fieldsets.union(taken, _as_fields(path)) if taken else _as_fields(path)
        if taken:
            other = msgspec.structs.replace(other, fields=fieldsets.difference(other.fields, taken))
        after.append(other)
    if before is not None and before.fields == mine.fields:
        mine = before
    return [mine, *after]


def _as_fields(path: fieldsets.Path) -> Fields:
    fields: Fields = {}
    for step in reversed(path):
        fields = {step: fields}
    return fields


def track(old: Object, new: Object, shape: Shape, *, manager: str, subresource: str, now: datetime.datetime) -> None:
    """Note in `new` that a manager changed it by an update. Objects without managedFields stay without."""
    owners = read(new["metadata"].get("managedFields"))
    if not owners:
        new["metadata"].pop("managedFields", None)
        return
    set_now, removed = fieldsets.changed(content(old), content(new), shape)
    if not set_now and not removed:
        return
    gone = fieldsets.union(set_now, removed) if set_now and removed else set_now or removed
    mine = Owner(manager, "Update", subresource, new["apiVersion"], meta.timestamp(now), set_now)
    after: list[Owner] = []
    for owner in owners:
        left = fieldsets.difference(owner.fields, gone)
        if owner.same_as(mine):
            mine = msgspec.structs.replace(
                mine, fields=fieldsets.union(left, set_now) if left and set_now else left or set_now
            )
        else:
            after.append(msgspec.structs.replace(owner, fields=left))
    new["metadata"]["managedFields"] = written([*after, mine])
