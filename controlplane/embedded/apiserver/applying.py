"""Server-side apply: a manager's configuration against the object, with field ownership.

Lives here: create or merge, conflicts, removal of what a manager no longer names. May not live here: the bookkeeping
(`managed.py`), storage rules (`objects.py`). `endpoints.py` calls it.
"""

import datetime
from typing import Any

import msgspec

from controlplane.embedded.apiserver import errors, fieldsets, managed, meta, representation
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.kinds import Object, Resource
from controlplane.embedded.apiserver.managed import Owner
from controlplane.embedded.apiserver.objects import Objects, Outcome, WriteOptions
from controlplane.embedded.apiserver.requests import Call
from controlplane.embedded.apiserver.shapes import shape_of


def apply(objects: Objects, resource: Resource, call: Call, options: WriteOptions, now: datetime.datetime) -> Outcome:
    """Create or merge. Raises 422 without a field manager, 409 with one cause for each field of another manager."""
    target = call.target
    config = _configuration(resource, call)
    shape = shape_of(resource)
    mine = Owner(
        call.query["fieldManager"],
        "Apply",
        target.subresource,
        resource.api_version,
        meta.timestamp(now),
        fieldsets.of(_owned(config, target.subresource), shape),
    )
    options = msgspec.structs.replace(options, applied=True)

    def mutate(live: Object) -> Object:
        known = managed.owners_before(live, mine.manager, shape)
        before = next((owner for owner in known if owner.same_as(mine)), None)
        others = [owner for owner in known if not owner.same_as(mine)]
        causes = managed.conflicts(mine, others, live, config)
        if causes and not call.flag("force"):
            managed.refuse(causes)
        owners = managed.settled(mine, before, others, live, config)
        result = fieldsets.merged(live, _with_owned(config, target.subresource), shape)
        dropped = fieldsets.difference(before.fields, mine.fields) if before else {}
        for owner in owners[1:]:
            dropped = fieldsets.difference(dropped, owner.fields)
        if dropped:
            result = fieldsets.without(result, dropped)
        result["metadata"] = {**result["metadata"], "managedFields": managed.written(owners)}
        return dict(result)

    try:
        return objects.change(resource, target.namespace, target.name, mutate, options, target.subresource)
    except errors.ApiError as error:
        absent = error.code == 404 and error.details.get("name") == target.name
        if not absent or target.subresource:
            raise
    config["metadata"]["managedFields"] = managed.written([mine])
    return objects.create(resource, target.namespace, config, options)


def _configuration(resource: Resource, call: Call) -> Object:
    """The decoded body, with its name; 400 and 422 as Kubernetes gives them."""
    if not call.query.get("fieldManager"):
        cause = Cause("FieldValueRequired", "Required value: is required for apply patch", "fieldManager")
        raise errors.invalid("PatchOptions", "meta.k8s.io", "", [cause])
    config: Any = representation.decode_yaml(call.body)
    if not isinstance(config, dict):
        raise errors.bad_request("the configuration to apply is not an object")
    for field, expected in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if config.get(field) != expected:
            raise errors.bad_request(
                f"{field} of the configuration is {config.get(field)!r}, the request says {expected!r}"
            )
    metadata = config.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise errors.bad_request("metadata of the configuration is not an object")
    if metadata.get("managedFields"):
        raise errors.bad_request("metadata.managedFields must be nil")
    if metadata.setdefault("name", call.target.name) != call.target.name:
        raise errors.other_name(metadata["name"], call.target.name)
    metadata.pop("creationTimestamp", None)
    return config


def _owned(config: Object, subresource: str) -> Object:
    """What the configuration may own: all but status, or status alone."""
    content = managed.content(config)
    if subresource == "status":
        return {"status": content["status"]} if "status" in content else {}
    return content


def _with_owned(config: Object, subresource: str) -> Object:
    identity = {"metadata": {k: config["metadata"][k] for k in ("resourceVersion", "uid") if config["metadata"].get(k)}}
    if subresource == "status":
        return {**identity, **_owned(config, subresource)}
    owned = _owned(config, subresource)
    return {**owned, "metadata": {**(owned.get("metadata") or {}), **identity["metadata"]}}
