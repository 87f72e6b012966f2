"""The writing verbs over stored objects: create, update, patch, delete, each one step between two events of the loop.

Lives here: the order of checks, optimistic concurrency, finalizers, graceful deletion. May not live here: HTTP, and
what makes one kind different (`kinds.Resource` has the hooks). `endpoints.py` calls it; `collector.py` deletes
through it. Nothing here awaits, so a read and the write that depends on it are never separated.
"""

import datetime
from collections.abc import Callable
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import checks, errors, limits, managed, meta, names
from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.records import Change, Key, Row, Write
from controlplane.embedded.apiserver.shapes import shape_of
from controlplane.embedded.apiserver.store import Store

Object = dict[str, Any]

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"
NAMESPACES: Final = "/namespaces"


class WriteOptions(msgspec.Struct, frozen=True):
    """Options of a writing request.

    `validation` is Strict, Warn or Ignore, and `doubled` are fields that stood twice in the body. `applied` says that
    the object already carries the managedFields to store. `guard(item, old)` is asked last and may refuse the writer.
    """

    dry_run: bool = False
    validation: str = "Warn"
    manager: str = "unknown"
    applied: bool = False
    doubled: tuple[str, ...] = ()
    guard: Callable[[Object, Object | None], None] | None = None


class DeleteOptions(msgspec.Struct, frozen=True):
    """metav1.DeleteOptions, with `propagation` one of Background, Foreground, Orphan or empty for the default."""

    grace_seconds: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    dry_run: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What a write left: the stored JSON. `removed` means that the object is gone from storage."""

    value: bytes
    warnings: tuple[str, ...] = ()
    created: bool = False
    removed: bool = False


class Objects:
    """Verbs on stored objects of any resource."""

    def __init__(self, store: Store, now: Callable[[], datetime.datetime]) -> None:
        self._store = store
        self._now = now

    def key(self, resource: Resource, namespace: str, name: str) -> Key:
        return Key(resource.stored_as, namespace if resource.namespaced else "", name)

    def get(self, resource: Resource, namespace: str, name: str) -> Row:
        row = self._store.get(self.key(resource, namespace, name))
        if row is None:
            raise errors.not_found(resource.plural, resource.group, name)
        return row

    def create(self, resource: Resource, namespace: str, item: Object, options: WriteOptions) -> Outcome:
        """Store a new object. Raises 400 for its shape, 404 or 403 for its namespace, 422 for values, 409 if there."""
        checks.shape(resource, item)
        metadata = item["metadata"] = dict(item["metadata"])
        checks.place(resource, namespace, metadata)
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        drawn = not metadata.get("name") and bool(metadata.get("generateName"))
        if drawn:
            metadata["name"] = names.generated(metadata["generateName"])
        if resource.namespaced:
            row = self._store.get(Key(NAMESPACES, "", namespace))
            checks.namespace_open(resource, namespace, row, metadata.get("name") or "")
        if resource.status:
            item.pop("status", None)
            if not resource.custom:
                item["status"] = {}
        owners = metadata.get("managedFields")
        meta.begin(item, now=self._now(), generation=resource.generation)
        if options.applied:
            metadata["managedFields"] = owners
        item, warnings = self._normalise(resource, item, None, options)
        checks.values(resource, item, None)
        if options.guard:
            options.guard(item, None)
        key = self.key(resource, namespace, metadata["name"])
        tries = limits.GENERATED_NAME_TRIES if drawn else 1
        while self._store.get(key) is not None:
            tries -= 1
            if tries <= 0:
                raise errors.already_exists(resource.plural, resource.group, key.name)
            metadata["name"] = names.generated(metadata["generateName"])
            key = self.key(resource, namespace, metadata["name"])
        value = self._write(key, Change.ADDED, item, resource, options.dry_run)
        return Outcome(value, warnings=warnings, created=True)

    def replace(
        self, resource: Resource, namespace: str, name: str, item: Object, options: WriteOptions, subresource: str = ""
    ) -> Outcome:
        """PUT. Raises 404, 409 when the version moved, 422."""
        checks.shape(resource, item)
        item["metadata"] = dict(item["metadata"])
        checks.place(resource, namespace, item["metadata"])
        uid = msgspec.json.decode(self.get(resource, namespace, name).value)["metadata"]["uid"]
        checks.replacement(resource, name, item["metadata"], uid)
        return self.change(resource, namespace, name, lambda base: item, options, subresource)

    def change(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        mutate: Callable[[Object], Object],
        options: WriteOptions,
        subresource: str = "",
    ) -> Outcome:
        """Read, let `mutate` make the new object of its own copy of the old one, check, write.

        An object that comes out as it was is not written. Taking the last finalizer off a deleting object removes it.
        """
        row = self.get(resource, namespace, name)
        old: Object = msgspec.json.decode(row.value)
        base: Object = msgspec.json.decode(row.value)
        if resource.encoded and resource.decoded:
            base = resource.decoded(base)
        item = mutate(base)
        checks.shape(resource, item)
        checks.identity(resource, row, old, item, subresource)
        owners = item["metadata"].get("managedFields", old["metadata"].get("managedFields"))
        item["metadata"] = dict(item["metadata"])
        meta.carry_over(item, old)
        item["metadata"]["resourceVersion"] = str(row.revision)
        if subresource == "status":
            item = _with_status_of(old, item)
        elif resource.status:
            item = _with_status_of(item, old)
        item["metadata"] = {**item["metadata"], "managedFields": owners}
        item, warnings = self._normalise(resource, item, old, options)
        checks.values(resource, item, old)
        if options.guard:
            options.guard(item, old)
        if resource.generation and _specified(item, resource) != _specified(old, resource):
            item["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        if owners and not options.applied:
            shape = shape_of(resource)
            managed.track(old, item, shape, manager=options.manager, subresource=subresource, now=self._now())
        if item == old:
            return Outcome(row.value, warnings=warnings)
        if _deletable(item):
            value = self._write(row.key, Change.DELETED, item, resource, options.dry_run)
            return Outcome(value, warnings=warnings, removed=True)
        return Outcome(self._write(row.key, Change.MODIFIED, item, resource, options.dry_run), warnings=warnings)

    def delete(self, resource: Resource, namespace: str, name: str, options: DeleteOptions) -> Outcome:
        """Start or finish a deletion: at once, after a grace period (Pods), or when the finalizers are off."""
        row = self.get(resource, namespace, name)
        item: Object = msgspec.json.decode(row.value)
        before: Object = msgspec.json.decode(row.value)
        metadata = item["metadata"]
        checks.preconditions(resource, name, metadata, uid=options.uid, version=options.resource_version)
        grace = self._grace(resource, item, options)
        self._set_propagation(metadata, options)
        if resource.stored_as == NAMESPACES:
            item.setdefault("status", {})["phase"] = "Terminating"
        if not metadata.get("finalizers") and grace == 0 and resource.stored_as != NAMESPACES:
            if resource.graceful:
                metadata["deletionTimestamp"] = meta.timestamp(self._now())
                metadata["deletionGracePeriodSeconds"] = 0
            return Outcome(self._write(row.key, Change.DELETED, item, resource, options.dry_run), removed=True)
        running = metadata.get("deletionTimestamp")
        if running is None or (resource.graceful and grace < metadata.get("deletionGracePeriodSeconds", 0)):
            at = self._now() + datetime.timedelta(seconds=grace)
            metadata["deletionTimestamp"] = meta.timestamp(at)
            metadata["deletionGracePeriodSeconds"] = grace
            if resource.generation:
                metadata["generation"] = metadata.get("generation", 0) + 1
        if item == before:
            return Outcome(row.value)
        return Outcome(self._write(row.key, Change.MODIFIED, item, resource, options.dry_run))

    def remove(self, resource: Resource, key: Key) -> None:
        """Take an object out of storage whatever it carries: the end of a namespace."""
        row = self._store.get(key)
        if row is not None:
            self._write(key, Change.DELETED, msgspec.json.decode(row.value), resource, False)

    def _normalise(
        self, resource: Resource, item: Object, old: Object | None, options: WriteOptions
    ) -> tuple[Object, tuple[str, ...]]:
        """Convert to the stored version, cut unknown fields, fill defaults; strict requests are refused by name."""
        unknown = meta.unknown_fields(item["metadata"])
        if resource.encoded:
            item = resource.encoded(item)
        if resource.schema is not None:
            item, more = resource.schema.prune_and_default(item)
            unknown += more
        meta.prune_unknown(item["metadata"])
        meta.tidy(item["metadata"])
        if resource.prepare:
            resource.prepare(item, old)
        texts = tuple(f'duplicate field "{path}"' for path in options.doubled)
        texts += tuple(f'unknown field "{path}"' for path in unknown)
        if not texts or options.validation == "Ignore":
            return item, ()
        if options.validation == "Strict":
            listed = ", ".join(texts)
            raise errors.bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}:'
                f" strict decoding error: {listed}"
            )
        return item, texts

    def _grace(self, resource: Resource, item: Object, options: DeleteOptions) -> int:
        """Seconds until the object may go. Only Pods that run somewhere have any."""
        if not resource.graceful:
            return 0
        status = item.get("status") or {}
        if not item["spec"].get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
            return 0
        asked = options.grace_seconds
        if asked is None:
            running = item["metadata"].get("deletionGracePeriodSeconds")
            asked = running if running is not None else item["spec"].get("terminationGracePeriodSeconds", 30)
        return min(max(int(asked), 0), limits.GRACE_MAX_SECONDS)

    def _set_propagation(self, metadata: Object, options: DeleteOptions) -> None:
        """Foreground and orphan deletion are finalizers, which the collector takes off."""
        if not options.propagation:
            return
        wanted = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(options.propagation)
        finalizers = [text for text in metadata.get("finalizers") or [] if text not in (FOREGROUND, ORPHAN)]
        if wanted:
            finalizers.append(wanted)
        metadata["finalizers"] = finalizers
        meta.tidy(metadata)

    def _write(self, key: Key, change: Change, item: Object, resource: Resource, dry_run: bool) -> bytes:
        if not dry_run:
            item["metadata"]["resourceVersion"] = str(self._store.next_revision)
        value = msgspec.json.encode(item)
        if len(value) > limits.OBJECT_MAX_BYTES and change is not Change.DELETED:
            raise errors.too_large(limits.OBJECT_MAX_BYTES)
        if not dry_run:
            metadata = item["metadata"]
            deleting = bool(metadata.get("deletionTimestamp"))
            self._store.commit(Write(key, change, metadata["uid"], value, meta.owner_uids(metadata), deleting))
        return value


def _with_status_of(item: Object, other: Object) -> Object:
    """`item` with the status of `other`."""
    mixed = {name: value for name, value in item.items() if name != "status"}
    if "status" in other:
        mixed["status"] = other["status"]
    return mixed


def _specified(item: Object, resource: Resource) -> Object:
    """What `metadata.generation` counts changes of."""
    ignored = {"metadata", "status"} if resource.status else {"metadata"}
    return {name: value for name, value in item.items() if name not in ignored}


def _deletable(item: Object) -> bool:
    metadata = item["metadata"]
    return bool(
        metadata.get("deletionTimestamp")
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and not (item.get("kind") == "Namespace" and (item.get("spec") or {}).get("finalizers"))
    )
