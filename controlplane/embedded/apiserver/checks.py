"""What a write is refused for before and after its values are filled in.

Lives here: shape, identity, namespaces, preconditions, values: functions that return or raise. May not live here:
reading and writing (`objects.py` calls these in Kubernetes' order).
"""

from typing import Any

import msgspec

from controlplane.embedded.apiserver import errors, meta
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.kinds import Object, Resource
from controlplane.embedded.apiserver.records import Row


def shape(resource: Resource, item: Any) -> None:
    """400 unless it is an object of this kind and version; built-in kinds may leave both out."""
    if not isinstance(item, dict):
        raise errors.bad_request("the body is not a JSON object")
    for field, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        given = item.get(field)
        if not given and resource.custom:
            raise errors.bad_request(f"Object '{field.capitalize()}' is missing in the body")
        if given and not isinstance(given, str):
            raise errors.bad_request(f"{field}: expected string")
        if given and given != expected:
            raise errors.bad_request(f"{field} in the body ({given}) does not match the request ({expected})")
        item[field] = expected
    item["metadata"] = item.get("metadata") or {}
    wrong = meta.shape_error(item["metadata"])
    if wrong:
        raise errors.bad_request(f'{resource.kind} in version "{resource.version}" cannot be handled: {wrong}')


def place(resource: Resource, namespace: str, metadata: Object) -> None:
    """Put the request's namespace into the object; 400 when it names another."""
    if not resource.namespaced:
        metadata.pop("namespace", None)
    elif (metadata.get("namespace") or namespace) != namespace:
        raise errors.other_namespace()
    else:
        metadata["namespace"] = namespace


def namespace_open(resource: Resource, namespace: str, row: Row | None, name: str) -> None:
    """404 for a namespace that is not there, 403 for one that is going."""
    if row is None:
        raise errors.not_found("namespaces", "", namespace)
    if b'"deletionTimestamp"' in row.value and msgspec.json.decode(row.value)["metadata"].get("deletionTimestamp"):
        cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        raise errors.forbidden(resource.plural, resource.group, name, why, [cause])


def replacement(resource: Resource, name: str, metadata: Object, uid: str) -> None:
    """A whole object that is to stand for another: its name, its version for custom kinds, its UID where it has one."""
    if metadata.get("name", name) != name:
        raise errors.other_name(metadata["name"], name)
    if resource.custom and not metadata.get("resourceVersion"):
        message = "Invalid value: 0: must be specified for an update"
        cause = Cause("FieldValueInvalid", message, "metadata.resourceVersion")
        raise errors.invalid(resource.plural, resource.group, name, [cause])
    if (metadata.get("uid") or uid) != uid:
        why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {uid}"
        raise errors.conflict(resource.plural, resource.group, name, why)


def identity(resource: Resource, row: Row, old: Object, item: Object, subresource: str) -> None:
    """A change names the object that it changes, where it names one. Through `status` a UID counts for nothing."""
    metadata, name = item["metadata"], row.key.name
    if metadata.get("name", name) != name:
        raise errors.other_name(metadata["name"], name)
    if resource.namespaced and metadata.get("namespace", row.key.namespace) != row.key.namespace:
        raise errors.other_namespace()
    version = metadata.get("resourceVersion")
    if version and version != str(row.revision):
        raise errors.modified(resource.plural, resource.group, name)
    uid = metadata.get("uid")
    if uid and uid != old["metadata"]["uid"] and not subresource:
        cause = Cause("FieldValueInvalid", f"Invalid value: {errors.shown(uid)}: field is immutable", "metadata.uid")
        raise errors.invalid(resource.kind, resource.group, name, [cause])


def values(resource: Resource, item: Object, old: Object | None) -> None:
    """422 with every cause: metadata, then the kind's own check, then its schema and rules."""
    before = None if old is None else old["metadata"]
    causes = meta.wrong_metadata(item["metadata"], name_rule=resource.name_rule, old=before)
    if resource.check:
        causes += resource.check(item, old)
    if resource.schema is not None:
        causes += resource.schema.validate(item, old)
    if causes:
        raise errors.invalid(resource.kind, resource.group, item["metadata"].get("name", ""), causes)


def preconditions(resource: Resource, name: str, metadata: Object, *, uid: str, version: str) -> None:
    """409 when a deletion names another UID or version than the object has; empty ones are not asked for."""
    for what, wanted, found, then in (
        ("UID", uid, metadata["uid"], "deleted and then recreated"),
        ("ResourceVersion", version, metadata["resourceVersion"], "modified"),
    ):
        if wanted and wanted != found:
            why = (
                f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found})."
                f" The object might have been {then}"
            )
            raise errors.conflict(resource.kind, resource.group, name, why)
