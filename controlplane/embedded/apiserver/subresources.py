"""Subresources that are more than an object's status: scale, a Pod's log and eviction, a ServiceAccount's token.

Lives here: their verbs. May not live here: what they stand on (`podlogs.py`, `reviews.py`, `objects.py`).
`server.py` asks it before the plain verbs of `endpoints.py`.
"""

from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors, jsonpath, meta, patching, podlogs, representation
from controlplane.embedded.apiserver.core_types import typed
from controlplane.embedded.apiserver.endpoints import Endpoints, Reply, delete_options
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.kinds import Object, Resource
from controlplane.embedded.apiserver.objects import Objects, WriteOptions
from controlplane.embedded.apiserver.podlogs import PodLogs
from controlplane.embedded.apiserver.requests import Call
from controlplane.embedded.apiserver.reviews import Reviews

_REFUSED: Final = frozenset({"exec", "attach", "portforward", "proxy", "binding", "ephemeralcontainers", "resize"})


class Subresources:
    """Answers calls whose subresource is not `status`."""

    def __init__(self, objects: Objects, endpoints: Endpoints, reviews: Reviews, logs: PodLogs) -> None:
        self._objects = objects
        self._endpoints = endpoints
        self._reviews = reviews
        self._logs = logs

    def serve(self, resource: Resource, call: Call) -> Reply | None:
        """A reply, or None when `endpoints.py` is to answer. Raises ApiError."""
        match (resource.stored_as, call.target.subresource):
            case (_, "scale") if resource.scale is not None:
                return self._scale(resource, call)
            case ("/pods", "log"):
                return self._log(resource, call)
            case ("/pods", "eviction"):
                return self._evict(resource, call)
            case ("/serviceaccounts", "token"):
                _only(call, "create")
                return Reply(self._reviews.issue_token(call), 201)
            case ("/namespaces", "finalize"):
                _only(call, "update")
                return self._finalize(resource, call)
            case ("/pods", name) if name in _REFUSED:
                raise errors.not_implemented(f"pods/{name}")
            case _:
                return None

    def _log(self, resource: Resource, call: Call) -> Reply:
        _only(call, "get")
        row = self._objects.get(resource, call.target.namespace, call.target.name)
        stream = self._logs.stream(msgspec.json.decode(row.value), podlogs.parse_options(call))
        return Reply(content_type="text/plain; charset=utf-8", stream=stream)

    def _evict(self, resource: Resource, call: Call) -> Reply:
        """Delete a Pod by its grace. Disruption budgets are stored and bound nothing here."""
        _only(call, "create")
        body = representation.decode_body(call.body, call.headers.get("Content-Type", ""))
        asked = typed("policy", "Eviction", body).get("deleteOptions") or {}
        options = delete_options(msgspec.json.encode(asked), call.query)
        self._objects.delete(resource, call.target.namespace, call.target.name, options)
        return Reply(b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}', 201)

    def _finalize(self, resource: Resource, call: Call) -> Reply:
        """Namespaces are emptied by this server alone: their finalizers are not for others to take."""
        row = self._objects.get(resource, "", call.target.name)
        return Reply(row.value)

    def _scale(self, resource: Resource, call: Call) -> Reply:
        target = call.target
        if call.verb == "get":
            row = self._objects.get(resource, target.namespace, target.name)
            return Reply(msgspec.json.encode(_scale_of(resource, msgspec.json.decode(row.value))))
        if call.verb not in {"update", "patch"}:
            raise errors.method_not_allowed(call.method, "GET, PUT, PATCH")
        options = WriteOptions(dry_run=call.dry_run, validation=call.validation, manager=call.manager)
        content_type = call.headers.get("Content-Type", "")

        def mutate(base: Object) -> Object:
            before = _scale_of(resource, base)
            if call.verb == "update":
                after = representation.decode_body(call.body, content_type)
            else:
                media = patching.media_type(content_type, custom=resource.custom)
                if media == patching.APPLY_PATCH:
                    media = patching.MERGE_PATCH
                after = patching.mutation(media, call.body)(before)
            return _scaled(resource, base, after)

        outcome = self._objects.change(resource, target.namespace, target.name, mutate, options)
        return Reply(msgspec.json.encode(_scale_of(resource, msgspec.json.decode(outcome.value))))


def _only(call: Call, verb: str) -> None:
    if call.verb != verb:
        raise errors.method_not_allowed(call.method)


def _scale_of(resource: Resource, item: Object) -> Object:
    """An object as autoscaling/v1 Scale."""
    if resource.scale is None:
        raise errors.no_such_resource()
    metadata = item["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = jsonpath.first(resource.scale.selector, item) if resource.scale.selector else None
    if selector is None:
        labels = jsonpath.first(".spec.selector.matchLabels", item) or {}
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": jsonpath.first(resource.scale.spec_replicas, item) or 0},
        "status": {
            "replicas": jsonpath.first(resource.scale.status_replicas, item) or 0,
            **({"selector": selector} if selector else {}),
        },
    }


def _scaled(resource: Resource, item: Object, scale: Any) -> Object:
    """The object with the replicas of a Scale. Its version, where given, is checked as that of the object."""
    metadata = (scale.get("metadata") or {}) if isinstance(scale, dict) else {}
    wrong = meta.shape_error(metadata)
    if wrong:
        raise errors.bad_request(f"Scale cannot be handled: {wrong}")
    replicas = (typed("autoscaling", "Scale", scale).get("spec") or {}).get("replicas", 0)
    if replicas < 0:
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = Cause("FieldValueInvalid", message, "spec.replicas")
        raise errors.invalid("Scale", "autoscaling", item["metadata"]["name"], [cause])
    if resource.scale is None:
        raise errors.no_such_resource()
    *parents, last = resource.scale.spec_replicas.strip(".").split(".")
    place = item
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = replicas
    for name in ("resourceVersion", "uid"):
        if metadata.get(name):
            item["metadata"][name] = metadata[name]
    return item
