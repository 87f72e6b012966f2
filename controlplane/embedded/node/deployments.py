"""The Deployment controller: keeps one ReplicaSet for the current template and scales the others away.

Lives here: reading the view, asking `rollout` what to do, writing it. `main` runs it next.
"""

from typing import Any

import msgspec

from controlplane.embedded.node import rollout
from controlplane.embedded.node.limits import REVISION_HISTORY_DEFAULT
from controlplane.embedded.node.reconciler import Reconciler
from controlplane.embedded.node.state import ClusterView, Key, controller_of, key_of
from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.codec import format_time
from controlplane.kube.errors import AlreadyExists, Conflict, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.meta import owner_of
from controlplane.kube.resources import DEPLOYMENTS, REPLICASETS
from controlplane.kube.types import Deployment, LabelSelector, ReplicaSet


class DeploymentController:
    """Reconciles Deployments. Touch it through `on_deployment` and `on_replicaset`."""

    def __init__(self, kube: Kube, view: ClusterView, clock: Clock) -> None:
        self._kube = kube
        self._view = view
        self._clock = clock
        self._queue: Reconciler[Key] = Reconciler("deployment", self.reconcile)
        self.run = self._queue.run

    def on_deployment(self, change: Change[Deployment]) -> None:
        """A Deployment came, changed or went."""
        if change.current is not None:
            self._queue.touch(key_of(change.current))

    def on_replicaset(self, change: Change[ReplicaSet]) -> None:
        """A ReplicaSet came, changed or went: its Deployment may have to act."""
        for rs in (change.previous, change.current):
            if rs is not None and (owner := controller_of(rs, "Deployment")) is not None:
                self._queue.touch(owner)

    async def reconcile(self, key: Key) -> None:
        """One look at one Deployment. Raises KubeError; what was written before it stays and is met again."""
        deployment = self._view.deployment(key)
        if deployment is None or deployment.metadata.deleting:
            return
        hash_ = rollout.template_hash(deployment.spec.template)
        sets = self._view.replicasets_of(deployment)
        new = next((rs for rs in sets if rs.metadata.labels.get(rollout.HASH_LABEL) == hash_), None)
        old = [rs for rs in sets if rs is not new]
        target, changes = rollout.scales(deployment, new, old)
        if new is None:
            await self._create(deployment, hash_, target, old)
        else:
            await self._renew(new, target, old)
        for rs in old:
            if rs.metadata.name in changes and not rs.metadata.deleting:
                await self._scale(rs, changes[rs.metadata.name])
        await self._forget_history(deployment, old)
        await self._write_status(deployment, new, old)

    async def _create(self, deployment: Deployment, hash_: str, replicas: int, old: list[ReplicaSet]) -> None:
        revision = 1 + max((_revision(rs) for rs in old), default=0)
        template = msgspec.to_builtins(deployment.spec.template)
        labels = deployment.spec.template.metadata.labels | {rollout.HASH_LABEL: hash_}
        template["metadata"] = template.get("metadata", {}) | {"labels": labels}
        selector = deployment.spec.selector.match_labels | {rollout.HASH_LABEL: hash_}
        body = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{deployment.metadata.name}-{hash_}",
                "namespace": deployment.metadata.namespace,
                "labels": labels,
                "annotations": {rollout.REVISION_ANNOTATION: str(revision)},
                "ownerReferences": [msgspec.to_builtins(owner_of(deployment))],
            },
            "spec": {
                "replicas": replicas,
                "selector": msgspec.to_builtins(LabelSelector(match_labels=selector)),
                "template": template,
            },
        }
        try:
            await self._kube.create(REPLICASETS, deployment.metadata.namespace, body)
        except AlreadyExists:
            pass  # made by an earlier look whose event is still on its way; it touches this Deployment again

    async def _renew(self, new: ReplicaSet, replicas: int, old: list[ReplicaSet]) -> None:
        """The current ReplicaSet has the replicas it should have, and after a rollback again the highest revision."""
        revision = max((_revision(rs) for rs in old), default=0)
        if _revision(new) < revision:
            patch = {"metadata": {"annotations": {rollout.REVISION_ANNOTATION: str(revision + 1)}}}
            await self._kube.merge_patch(REPLICASETS, new.metadata.namespace, new.metadata.name, patch)
        if rollout.wanted(new) != replicas:
            await self._scale(new, replicas)

    async def _scale(self, rs: ReplicaSet, replicas: int) -> None:
        ops: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": rs.metadata.uid},
            {"op": "replace", "path": "/spec/replicas", "value": replicas},
        ]
        await self._kube.json_patch(REPLICASETS, rs.metadata.namespace, rs.metadata.name, ops)

    async def _forget_history(self, deployment: Deployment, old: list[ReplicaSet]) -> None:
        limit = deployment.spec.revision_history_limit
        empty = sorted(
            (rs for rs in old if rollout.wanted(rs) == 0 == rs.status.replicas and not rs.metadata.deleting),
            key=_revision,
        )
        for rs in empty[: max(0, len(empty) - (REVISION_HISTORY_DEFAULT if limit is None else limit))]:
            try:
                await self._kube.delete(
                    REPLICASETS, rs.metadata.namespace, rs.metadata.name, uid=rs.metadata.uid, propagation="Background"
                )
            except (NotFound, Conflict):
                pass  # gone already

    async def _write_status(self, deployment: Deployment, new: ReplicaSet | None, old: list[ReplicaSet]) -> None:
        status = rollout.status(deployment, new, old, format_time(self._clock.now_us()))
        if status == deployment.status:
            return
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": deployment.metadata.uid},
            {"op": "add", "path": "/status", "value": msgspec.to_builtins(status)},
        ]
        try:
            await self._kube.json_patch(
                DEPLOYMENTS, deployment.metadata.namespace, deployment.metadata.name, ops, subresource="status"
            )
        except NotFound:
            pass  # deleted meanwhile


def _revision(rs: ReplicaSet) -> int:
    text = rs.metadata.annotations.get(rollout.REVISION_ANNOTATION, "0")
    return int(text) if text.isdigit() else 0
