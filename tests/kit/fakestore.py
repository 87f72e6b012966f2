"""Objects, revisions and history of the Kubernetes API in memory: what `FakeKube` keeps. Synchronous, one loop.

As the real one: one revision for all kinds, uid and generation, finalizers and graceful deletion of Pods, a watch
history that can be cut (410), garbage collection by ownerReferences.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.kube.codec import format_time_seconds
from controlplane.kube.errors import KubeError, error_of
from controlplane.kube.meta import Status
from controlplane.kube.resources import PODS, RUNS, RUNTIMES, Kind
from tests.kit.clock import ManualClock

Key = tuple[str, str, str]
Obj = dict[str, Any]
STATUS_SUBRESOURCE = {"runs", "runtimes", "pods", "deployments", "replicasets", "nodes", "namespaces"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the history: what the object was before and is after a revision."""

    revision: int
    plural: str
    before: Obj | None
    after: Obj | None


def refuse(code: int, reason: str, message: str) -> KubeError:
    """The error that a client raises for such an answer."""
    return error_of(Status(code=code, reason=reason, message=message))


class FakeStore:
    """See the file's docstring. `subscribe` is told of each new entry."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.revision = 100
        self.objects: dict[Key, Obj] = {}
        self.history: list[Entry] = []
        self.oldest = self.revision
        self.subscribers: list[Callable[[Entry], None]] = []
        self._uids = itertools.count(1)

    def find(self, kind: Kind[Any], namespace: str | None, name: str) -> Obj:
        found = self.objects.get((kind.plural, namespace or "", name))
        if found is None:
            raise refuse(404, "NotFound", f'{kind.plural} "{name}" not found')
        return found

    def of(self, kind: Kind[Any], namespace: str | None) -> Iterator[Obj]:
        for (plural, at, _), obj in sorted(self.objects.items()):
            if plural == kind.plural and namespace in (None, at):
                yield obj

    def insert(self, kind: Kind[Any], namespace: str | None, obj: Obj) -> Obj:
        metadata = obj.setdefault("metadata", {})
        if not metadata.get("name"):
            metadata["name"] = f"{metadata.get('generateName', '')}{next(self._uids):05d}"
        key = (kind.plural, namespace or "", metadata["name"])
        if key in self.objects:
            raise refuse(409, "AlreadyExists", f'{kind.plural} "{metadata["name"]}" already exists')
        if kind.namespaced:
            metadata["namespace"] = namespace
        metadata["uid"] = metadata.get("uid") or f"uid-{next(self._uids)}"
        metadata["creationTimestamp"] = format_time_seconds(self.clock.now_us())
        metadata["generation"] = 1
        metadata.pop("deletionTimestamp", None)
        if kind.plural == RUNS.plural:
            obj["status"] = {"phase": "Pending", "attempt": 0, "failures": 0} | (obj.get("status") or {})
        elif kind.plural == RUNTIMES.plural:
            obj.setdefault("status", {})
        return self.put(kind, key, None, obj)

    def change(self, kind: Kind[Any], namespace: str | None, name: str, new: Obj, subresource: str) -> Obj:
        """Store `new` in place of what is there, keeping what the API does not let a client change."""
        old = self.find(kind, namespace, name)
        key = (kind.plural, namespace or "", name)
        new = copy.deepcopy(new)
        split = kind.plural in STATUS_SUBRESOURCE
        if subresource == "status":
            new = {**copy.deepcopy(old), "status": new.get("status", {})}
        elif split and "status" in old:
            new["status"] = copy.deepcopy(old["status"])
        kept = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "namespace", "name")
        new["metadata"].update({field: old["metadata"][field] for field in kept if field in old["metadata"]})
        new["metadata"]["generation"] = old["metadata"]["generation"] + (new.get("spec") != old.get("spec"))
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        added = set(new["metadata"].get("finalizers", ())) - set(old["metadata"].get("finalizers", ()))
        if added and "deletionTimestamp" in old["metadata"]:
            raise refuse(422, "Invalid", "no new finalizers can be added if the object is being deleted")
        if not new["metadata"].get("finalizers"):
            new["metadata"].pop("finalizers", None)
        if new == old:
            return old
        if "deletionTimestamp" in old["metadata"] and self._may_go(new):
            return self.put(kind, key, old, None, last=new)
        return self.put(kind, key, old, new)

    def delete(self, kind: Kind[Any], namespace: str | None, name: str, uid: str | None, grace: int | None) -> None:
        old = self.find(kind, namespace, name)
        if uid is not None and old["metadata"]["uid"] != uid:
            raise refuse(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
        wait = 0
        if kind.plural == PODS.plural and old.get("spec", {}).get("nodeName"):
            wait = old["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
        new = copy.deepcopy(old)
        new["metadata"]["deletionTimestamp"] = format_time_seconds(self.clock.now_us() + wait * 1_000_000)
        new["metadata"]["deletionGracePeriodSeconds"] = wait
        key = (kind.plural, namespace or "", name)
        if self._may_go(new):
            self.put(kind, key, old, None, last=old)
        elif "deletionTimestamp" not in old["metadata"]:
            self.put(kind, key, old, new)

    def put(self, kind: Kind[Any], key: Key, before: Obj | None, after: Obj | None, *, last: Obj | None = None) -> Obj:
        """Write one revision. For a removal, `last` is the object's final state."""
        self.revision += 1
        final = after if after is not None else copy.deepcopy(last)
        assert final is not None
        final["metadata"]["resourceVersion"] = str(self.revision)
        final["apiVersion"], final["kind"] = kind.api_version, kind.kind
        if after is None:
            del self.objects[key]
        else:
            self.objects[key] = after
        entry = Entry(self.revision, kind.plural, before if after is not None else final, after)
        self.history.append(entry)
        for tell in list(self.subscribers):
            tell(entry)
        if after is None:
            self._collect(final["metadata"]["uid"])
        return final

    def forget_history(self) -> None:
        """Cut the history: watches from before now are 410."""
        self.history.clear()
        self.oldest = self.revision

    def _may_go(self, obj: Obj) -> bool:
        return not obj["metadata"].get("finalizers") and not obj["metadata"].get("deletionGracePeriodSeconds")

    def _collect(self, uid: str) -> None:
        """Background garbage collection of what only this owner kept."""
        for (plural, namespace, name), obj in list(self.objects.items()):
            owners = obj["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == uid for owner in owners) and (plural, namespace, name) in self.objects:
                alive = {found["metadata"]["uid"] for found in self.objects.values()}
                if not any(owner["uid"] in alive for owner in owners):
                    group, _, version = obj["apiVersion"].rpartition("/")
                    kind: Kind[Any] = Kind(group, version, plural, obj["kind"], dict, bool(namespace))
                    self.delete(kind, namespace, name, None, None)
