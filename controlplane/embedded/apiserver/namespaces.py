"""Namespaces: what each one holds from its beginning, and its end.

Lives here: the default ServiceAccount, the CA ConfigMap, emptying a namespace in two waves. May not live here:
deletion of single objects (`objects.py`). It observes commits and adds chores.
"""

import contextlib
import datetime
from collections.abc import Callable
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors, meta
from controlplane.embedded.apiserver.chores import Chores
from controlplane.embedded.apiserver.hub import Hub, Shared
from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.objects import NAMESPACES, DeleteOptions, Objects, WriteOptions
from controlplane.embedded.apiserver.records import Change, Key
from controlplane.embedded.apiserver.registry import Registry
from controlplane.embedded.apiserver.store import Store

Object = dict[str, Any]

ROOT_CA: Final = "kube-root-ca.crt"
_ACCOUNTS: Final = "/serviceaccounts"
_CONFIG_MAPS: Final = "/configmaps"
_LAST_WAVE: Final = frozenset(
    {
        _ACCOUNTS,
        _CONFIG_MAPS,
        "/secrets",
        "rbac.authorization.k8s.io/roles",
        "rbac.authorization.k8s.io/rolebindings",
    }
)
"""What Pods live by goes after them, so that a draining Pod may still read and write what it must."""

_OPTIONS: Final = WriteOptions(manager="kruntimes-apiserver")
_ALL_ROWS: Final = 100_000


class Namespaces:
    """Fills new namespaces and empties terminating ones."""

    def __init__(
        self,
        store: Store,
        objects: Objects,
        registry: Registry,
        chores: Chores,
        *,
        root_ca: str,
        now: Callable[[], datetime.datetime],
    ) -> None:
        self._store = store
        self._objects = objects
        self._registry = registry
        self._chores = chores
        self._root_ca = root_ca
        self._now = now
        self._terminating: set[str] = set()

    def start(self, hub: Hub) -> None:
        """Complete what is there, then follow commits."""
        for row in self._store.page(NAMESPACES, None, after=("", ""), limit=_ALL_ROWS):
            self._visit(row.key.name, msgspec.json.decode(row.value))
        hub.observe(self.follow)

    def follow(self, shared: Shared) -> None:
        key, change = shared.record.key, shared.record.change
        if key.resource == NAMESPACES:
            if change is Change.DELETED:
                self._terminating.discard(key.name)
            else:
                self._visit(key.name, shared.item)
        elif change is Change.DELETED and key.namespace in self._terminating:
            self._empty_later(key.namespace)
        elif change is Change.DELETED and (key.resource, key.name) in {(_ACCOUNTS, "default"), (_CONFIG_MAPS, ROOT_CA)}:
            self._fill_later(key.namespace)

    def _visit(self, name: str, item: Object) -> None:
        if item["metadata"].get("deletionTimestamp"):
            self._terminating.add(name)
            self._empty_later(name)
        else:
            self._fill_later(name)

    def _fill_later(self, name: str) -> None:
        self._chores.add(("fill", name), lambda: self.fill(name))

    def _empty_later(self, name: str) -> None:
        self._chores.add(("empty", name), lambda: self._empty(name))

    def fill(self, name: str) -> None:
        """Create what every namespace has, unless it is there or the namespace is going."""
        ca = {"data": {"ca.crt": self._root_ca}}
        for storage, wanted, more in ((_ACCOUNTS, "default", {}), (_CONFIG_MAPS, ROOT_CA, ca)):
            row = self._store.get(Key(storage, name, wanted))
            resource = self._resource(storage)
            if row is None:
                with contextlib.suppress(errors.ApiError):
                    self._objects.create(resource, name, {"metadata": {"name": wanted}, **more}, _OPTIONS)
            elif more and msgspec.json.decode(row.value).get("data") != more["data"]:
                self._objects.change(resource, name, wanted, lambda base: {**base, **ca}, _OPTIONS)

    def _resource(self, storage: str) -> Resource:
        resource = self._registry.stored_as(storage)
        if resource is None:
            raise LookupError(f"{storage} is not served")
        return resource

    def _empty(self, name: str) -> None:
        """Ask everything in the namespace to go; take the namespace away once nothing is left."""
        contents = self._store.namespace_contents(name)
        first = [key for key in contents if key.resource not in _LAST_WAVE]
        for key in first or contents:
            self._delete(key)
        left = self._store.namespace_contents(name)
        if not left:
            self._finish(name)
        elif not first or len(left) == len(contents):
            self._tell(name, left)
        else:
            self._empty_later(name)

    def _delete(self, key: Key) -> None:
        resource = self._registry.stored_as(key.resource)
        row = self._store.get(key)
        if row is None or resource is None:
            return
        if not msgspec.json.decode(row.value)["metadata"].get("deletionTimestamp"):
            with contextlib.suppress(errors.ApiError):
                self._objects.delete(resource, key.namespace, key.name, DeleteOptions(propagation="Background"))

    def _finish(self, name: str) -> None:
        resource = self._resource(NAMESPACES)
        row = self._store.get(Key(NAMESPACES, "", name))
        if row is not None and not msgspec.json.decode(row.value)["metadata"].get("finalizers"):
            self._objects.remove(resource, row.key)

    def _tell(self, name: str, left: list[Key]) -> None:
        """Say in the namespace's conditions what it waits for."""
        counts: dict[str, int] = {}
        finalizers: dict[str, int] = {}
        for key in left:
            group, _, plural = key.resource.rpartition("/")
            counts[errors.qualified(plural, group)] = counts.get(errors.qualified(plural, group), 0) + 1
            row = self._store.get(key)
            for text in (msgspec.json.decode(row.value)["metadata"].get("finalizers") or ()) if row else ():
                finalizers[text] = finalizers.get(text, 0) + 1
        remaining = ", ".join(f"{what} has {count} resource instances" for what, count in sorted(counts.items()))
        held = ", ".join(f"{what} in {count} resource instances" for what, count in sorted(finalizers.items()))
        conditions = [
            ("NamespaceContentRemaining", "SomeResourcesRemain", f"Some resources are remaining: {remaining}"),
        ]
        if held:
            message = f"Some content in the namespace has finalizers remaining: {held}"
            conditions.append(("NamespaceFinalizersRemaining", "SomeFinalizersRemain", message))
        self._objects.change(
            self._resource(NAMESPACES),
            "",
            name,
            lambda base: self._with_conditions(base, conditions),
            _OPTIONS,
            "status",
        )

    def _with_conditions(self, item: Object, conditions: list[tuple[str, str, str]]) -> Object:
        status = item.setdefault("status", {})
        before = {condition["type"]: condition for condition in status.get("conditions") or ()}
        status["conditions"] = []
        for kind, reason, message in conditions:
            known = before.get(kind)
            since = known["lastTransitionTime"] if known else meta.timestamp(self._now())
            status["conditions"].append(
                {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}
            )
        return item
