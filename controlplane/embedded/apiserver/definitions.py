"""Serves the stored CRDs: from their creation to the removal of their last object.

Lives here: keeping the registry in step with storage. May not live here: what a CRD means (`custom.py`).
It observes commits and adds chores.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver.chores import Chores
from controlplane.embedded.apiserver.custom import CLEANUP, STORAGE, resources_of
from controlplane.embedded.apiserver.hub import Hub, Shared
from controlplane.embedded.apiserver.kinds import STORED_VERBS
from controlplane.embedded.apiserver.objects import DeleteOptions, Objects, WriteOptions
from controlplane.embedded.apiserver.records import Change, Key
from controlplane.embedded.apiserver.registry import Registry
from controlplane.embedded.apiserver.store import Store

Object = dict[str, Any]

_OPTIONS: Final = WriteOptions(manager="kruntimes-apiserver")
_ALL_ROWS: Final = 10_000
_VERBS_WHILE_GOING: Final = tuple(verb for verb in STORED_VERBS if verb != "create")


class Definitions:
    """Stored CRDs as served resources."""

    def __init__(self, store: Store, objects: Objects, registry: Registry, hub: Hub, chores: Chores) -> None:
        self._store = store
        self._objects = objects
        self._registry = registry
        self._hub = hub
        self._chores = chores
        self._going: dict[str, str] = {}

    def load(self) -> None:
        """Serve every stored CRD."""
        for row in self._store.page(STORAGE, None, after=("", ""), limit=_ALL_ROWS):
            self._serve(msgspec.json.decode(row.value))

    def install(self, crd: Object, create: Callable[[Object], None], update: Callable[[Object], None]) -> None:
        """Store a packaged CRD where it is absent or different: the program and its kinds are one version."""
        row = self._store.get(Key(STORAGE, "", crd["metadata"]["name"]))
        if row is None:
            create(crd)
            return
        stored = msgspec.json.decode(row.value)
        wanted = {**stored, "spec": {**stored["spec"], **crd["spec"]}}
        if wanted["spec"] != stored["spec"]:
            update(wanted)

    def follow(self, shared: Shared) -> None:
        record = shared.record
        if record.key.resource != STORAGE:
            if record.change is Change.DELETED and record.key.resource in self._going:
                self._empty_later(record.key.resource)
            return
        if record.change is Change.DELETED:
            self._withdraw(shared.item)
            return
        before = shared.previous
        if before is None or _decides(before) != _decides(shared.item):
            self._serve(shared.item)

    def _serve(self, crd: Object) -> None:
        spec = crd["spec"]
        resources = resources_of(crd)
        if crd["metadata"].get("deletionTimestamp"):
            resources = [msgspec.structs.replace(resource, verbs=_VERBS_WHILE_GOING) for resource in resources]
            storage = f"{spec['group']}/{spec['names']['plural']}"
            self._going[storage] = crd["metadata"]["name"]
            self._empty_later(storage)
        self._registry.serve(spec["group"], spec["names"]["plural"], resources)

    def _withdraw(self, crd: Object) -> None:
        spec = crd["spec"]
        storage = f"{spec['group']}/{spec['names']['plural']}"
        self._going.pop(storage, None)
        self._registry.serve(spec["group"], spec["names"]["plural"], [])
        self._hub.end_resource(storage)

    def _empty_later(self, storage: str) -> None:
        self._chores.add(("definition", storage), lambda: self._empty(storage))

    def _empty(self, storage: str) -> None:
        """Ask every object of a going CRD to go; let the CRD go when none is left."""
        name, resource = self._going.get(storage), self._registry.stored_as(storage)
        definitions = self._registry.stored_as(STORAGE)
        if name is None or resource is None or definitions is None:
            return
        for row in self._store.page(storage, None, after=("", ""), limit=_ALL_ROWS):
            if not msgspec.json.decode(row.value)["metadata"].get("deletionTimestamp"):
                self._objects.delete(resource, row.key.namespace, row.key.name, DeleteOptions())
        if self._store.count(storage) == 0:
            self._objects.change(definitions, "", name, _without_cleanup, _OPTIONS)


def _decides(crd: Object) -> tuple[Object, bool]:
    """What of a CRD the registry depends on."""
    return crd["spec"], bool(crd["metadata"].get("deletionTimestamp"))


def _without_cleanup(crd: Object) -> Object:
    finalizers = crd["metadata"].get("finalizers") or []
    crd["metadata"]["finalizers"] = [finalizer for finalizer in finalizers if finalizer != CLEANUP]
    return crd
