"""The ReplicaSet controller: makes and deletes Pods until there are as many as wanted.

Lives here: which Pods count, which go first, and the writes. May not live here: what a Pod runs (`pod`).
`main` runs it next.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from controlplane.embedded.node.limits import CREATE_SEEN_SECONDS
from controlplane.embedded.node.reconciler import Reconciler
from controlplane.embedded.node.rollout import wanted
from controlplane.embedded.node.state import ClusterView, Key, controller_of, controller_uid, key_of
from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import Conflict, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.meta import owner_of
from controlplane.kube.resources import PODS, REPLICASETS
from controlplane.kube.types import Pod, ReplicaSet, ReplicaSetStatus

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_CHARS: Final = 5


class ReplicaSetController:
    """Reconciles ReplicaSets. Pods that it made or deleted but has not seen in the watch yet count as if it had."""

    def __init__(self, kube: Kube, view: ClusterView, clock: Clock, node_name: str, rng: random.Random) -> None:
        self._kube = kube
        self._view = view
        self._clock = clock
        self._node_name = node_name
        self._rng = rng
        self._created: dict[str, dict[str, float]] = {}  # ReplicaSet UID -> Pod UID -> until when it counts unseen
        self._deleted: set[str] = set()
        self._queue: Reconciler[Key] = Reconciler("replicaset", self.reconcile)
        self.run = self._queue.run

    def on_replicaset(self, change: Change[ReplicaSet]) -> None:
        """A ReplicaSet came, changed or went."""
        if change.current is not None:
            self._queue.touch(key_of(change.current))
        elif change.previous is not None:
            self._created.pop(change.previous.metadata.uid, None)

    def on_pod(self, change: Change[Pod]) -> None:
        """A Pod came, changed or went: its ReplicaSet counts anew."""
        pod = change.current or change.previous
        assert pod is not None
        if change.current is None or pod.metadata.deleting:
            self._deleted.discard(pod.metadata.uid)
        if (uid := controller_uid(pod)) is not None:
            self._created.get(uid, {}).pop(pod.metadata.uid, None)
        if (owner := controller_of(pod, "ReplicaSet")) is not None:
            self._queue.touch(owner)

    async def reconcile(self, key: Key) -> None:
        """One look at one ReplicaSet. Raises KubeError; what was written before it stays and is met again."""
        rs = self._view.replicaset(key)
        if rs is None or rs.metadata.deleting:
            return
        pods = [pod for pod in self._view.pods_of(rs) if self._counts(pod)]
        missing = wanted(rs) - len(pods) - self._unseen(rs)
        for _ in range(missing):
            await self._create(rs)
        for pod in victims(pods, -missing):
            await self._delete(pod)
        await self._write_status(rs)

    def _counts(self, pod: Pod) -> bool:
        return not (
            pod.metadata.deleting or pod.metadata.uid in self._deleted or pod.status.phase in ("Succeeded", "Failed")
        )

    def _unseen(self, rs: ReplicaSet) -> int:
        now = self._clock.monotonic()
        unseen = {uid: until for uid, until in self._created.get(rs.metadata.uid, {}).items() if until > now}
        self._created[rs.metadata.uid] = unseen
        return len(unseen)

    async def _create(self, rs: ReplicaSet) -> None:
        name = f"{rs.metadata.name}-{''.join(self._rng.choices(_SUFFIX_ALPHABET, k=_SUFFIX_CHARS))}"
        pod = await self._kube.create(PODS, rs.metadata.namespace, pod_body(rs, name, self._node_name))
        if pod.metadata.uid not in {seen.metadata.uid for seen in self._view.pods_of(rs)}:
            until = self._clock.monotonic() + CREATE_SEEN_SECONDS
            self._created.setdefault(rs.metadata.uid, {})[pod.metadata.uid] = until

    async def _delete(self, pod: Pod) -> None:
        try:
            await self._kube.delete(PODS, pod.metadata.namespace, pod.metadata.name, uid=pod.metadata.uid)
        except (NotFound, Conflict):
            return  # gone already
        self._deleted.add(pod.metadata.uid)

    async def _write_status(self, rs: ReplicaSet) -> None:
        status = status_of(rs, [pod for pod in self._view.pods_of(rs) if self._counts(pod)])
        if status == rs.status:
            return
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": rs.metadata.uid},
            {"op": "add", "path": "/status", "value": msgspec.to_builtins(status)},
        ]
        try:
            await self._kube.json_patch(REPLICASETS, rs.metadata.namespace, rs.metadata.name, ops, subresource="status")
        except NotFound:
            pass  # deleted meanwhile


def victims(pods: Iterable[Pod], count: int) -> Sequence[Pod]:
    """Which `count` Pods go first: lowest deletion cost, then not ready ones, then the youngest."""

    def rank(pod: Pod) -> tuple[int, bool]:
        cost = pod.metadata.annotations.get(DELETION_COST, "0")
        return int(cost) if cost.lstrip("-").isdigit() else 0, pod.ready

    youngest_first = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    return sorted(youngest_first, key=rank)[: max(0, count)]


def status_of(rs: ReplicaSet, pods: Sequence[Pod]) -> ReplicaSetStatus:
    """Counts over the Pods that count; available is ready, since minReadySeconds is not served here."""
    ready = sum(pod.ready for pod in pods)
    return ReplicaSetStatus(
        observed_generation=rs.metadata.generation,
        replicas=len(pods),
        fully_labeled_replicas=len(pods),
        ready_replicas=ready,
        available_replicas=ready,
    )


def pod_body(rs: ReplicaSet, name: str, node_name: str) -> dict[str, Any]:
    """The Pod of a ReplicaSet's template, already on this node."""
    template = msgspec.to_builtins(rs.spec.template)
    metadata = template.get("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": rs.metadata.namespace,
            "labels": metadata.get("labels", {}),
            "annotations": metadata.get("annotations", {}),
            "ownerReferences": [msgspec.to_builtins(owner_of(rs))],
        },
        "spec": template["spec"] | {"nodeName": node_name},
    }
