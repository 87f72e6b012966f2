"""Garbage collection by ownerReferences: background, foreground and orphan.

Lives here: which object goes because of another. May not live here: how an object is deleted (`objects.py`).
It observes commits and adds chores; a restarted server begins from what the store says is unfinished.
"""

from typing import Any

import msgspec

from controlplane.embedded.apiserver import errors
from controlplane.embedded.apiserver.chores import Chores
from controlplane.embedded.apiserver.hub import Hub, Shared
from controlplane.embedded.apiserver.objects import FOREGROUND, ORPHAN, DeleteOptions, Objects, WriteOptions
from controlplane.embedded.apiserver.records import Change, Key
from controlplane.embedded.apiserver.registry import Registry
from controlplane.embedded.apiserver.store import Store

Object = dict[str, Any]

_OPTIONS = WriteOptions(manager="garbage-collector")


class Collector:
    """Deletes what has no owner left, and finishes foreground and orphan deletions."""

    def __init__(self, store: Store, objects: Objects, registry: Registry, chores: Chores) -> None:
        self._store = store
        self._objects = objects
        self._registry = registry
        self._chores = chores

    def start(self, hub: Hub) -> None:
        """Go on where a stopped server left off, then follow commits."""
        for owner in self._store.absent_owners():
            self._chores.add(("orphaned", owner), lambda uid=owner: self._owner_gone(uid))  # type: ignore[misc]
        for key in self._store.deleting():
            self._visit_later(key)
        hub.observe(self.follow)

    def follow(self, shared: Shared) -> None:
        record = shared.record
        if record.change is Change.DELETED:
            uid = shared.item["metadata"]["uid"]
            self._chores.add(("orphaned", uid), lambda: self._owner_gone(uid))
            for owner in _owner_uids(shared.item):
                self._chores.add(("owner", owner), lambda owner=owner: self._visit_owner(owner))  # type: ignore[misc]
        elif (
            b'"ownerReferences"' in record.value and self._owners_changed(shared)
        ) or b'"deletionTimestamp"' in record.value:
            self._visit_later(record.key)

    def _owners_changed(self, shared: Shared) -> bool:
        before = shared.previous
        return before is None or _owner_uids(before) != _owner_uids(shared.item)

    def _visit_later(self, key: Key) -> None:
        self._chores.add(("visit", key), lambda: self._visit(key))

    def _visit_owner(self, uid: str) -> None:
        key = self._store.find_uid(uid)
        if key is not None:
            self._visit(key)

    def _owner_gone(self, uid: str) -> None:
        for key in self._store.dependents(uid):
            self._visit_later(key)

    def _visit(self, key: Key) -> None:
        """Look at one object: finish its own deletion, or begin it when nobody owns it any more."""
        row = self._store.get(key)
        if row is None:
            return
        item: Object = msgspec.json.decode(row.value)
        metadata = item["metadata"]
        finalizers = metadata.get("finalizers") or ()
        if metadata.get("deletionTimestamp"):
            if ORPHAN in finalizers:
                self._orphan_dependents(key, metadata)
            elif FOREGROUND in finalizers:
                self._delete_dependents(key, metadata)
        elif metadata.get("ownerReferences"):
            self._check_owners(key, metadata)

    def _check_owners(self, key: Key, metadata: Object) -> None:
        references = metadata["ownerReferences"]
        absent = [reference["uid"] for reference in references if not self._owner_exists(key, reference["uid"])]
        if len(absent) == len(references):
            self._delete(key, metadata["uid"], "Background")
        elif absent:
            self._disown(key, set(absent))

    def _owner_exists(self, key: Key, uid: str) -> bool:
        owner = self._store.find_uid(uid)
        return owner is not None and owner.namespace in {"", key.namespace}

    def _orphan_dependents(self, key: Key, metadata: Object) -> None:
        for dependent in self._store.dependents(metadata["uid"]):
            self._disown(dependent, {metadata["uid"]})
        self._drop_finalizer(key, ORPHAN)

    def _delete_dependents(self, key: Key, metadata: Object) -> None:
        blocking = 0
        for dependent in self._store.dependents(metadata["uid"]):
            row = self._store.get(dependent)
            if row is None:
                continue
            below = msgspec.json.decode(row.value)["metadata"]
            if not below.get("deletionTimestamp"):
                deeper = bool(self._store.dependents(below["uid"]))
                self._delete(dependent, below["uid"], "Foreground" if deeper else "Background")
            if self._store.get(dependent) is not None:
                blocking += any(
                    reference["uid"] == metadata["uid"] and reference.get("blockOwnerDeletion")
                    for reference in below.get("ownerReferences") or ()
                )
        if not blocking:
            self._drop_finalizer(key, FOREGROUND)

    def _disown(self, key: Key, uids: set[str]) -> None:
        def mutate(base: Object) -> Object:
            references = base["metadata"].get("ownerReferences") or []
            base["metadata"]["ownerReferences"] = [each for each in references if each["uid"] not in uids]
            return base

        self._change(key, mutate)

    def _drop_finalizer(self, key: Key, finalizer: str) -> None:
        def mutate(base: Object) -> Object:
            finalizers = base["metadata"].get("finalizers") or []
            base["metadata"]["finalizers"] = [each for each in finalizers if each != finalizer]
            return base

        self._change(key, mutate)

    def _change(self, key: Key, mutate: Any) -> None:
        resource = self._registry.stored_as(key.resource)
        if resource is not None:
            try:
                self._objects.change(resource, key.namespace, key.name, mutate, _OPTIONS)
            except errors.ApiError as error:
                if error.code != 404:
                    raise

    def _delete(self, key: Key, uid: str, propagation: str) -> None:
        resource = self._registry.stored_as(key.resource)
        if resource is not None:
            options = DeleteOptions(uid=uid, propagation=propagation)
            try:
                self._objects.delete(resource, key.namespace, key.name, options)
            except errors.ApiError as error:
                if error.code not in {404, 409}:
                    raise


def _owner_uids(item: Object) -> list[str]:
    return [reference["uid"] for reference in item["metadata"].get("ownerReferences") or ()]
