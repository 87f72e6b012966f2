"""What runs Pods and where: Deployments, ReplicaSets, Nodes, and the Lease of a leader.

`types.py` re-exports all of it.
"""

from typing import Any

import msgspec

from controlplane.kube.meta import ApiStruct, Condition, ObjectMeta


class LabelSelector(ApiStruct, frozen=True, kw_only=True):
    """An equality selector, the only sort that we write."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)


class PodTemplate(ApiStruct, frozen=True, kw_only=True):
    """metadata and spec of the Pods to make. `spec` stays as it came: it goes back to the API whole."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class DeploymentSpec(ApiStruct, frozen=True, kw_only=True):
    """How many Pods of which template, and how they are replaced."""

    replicas: int | None = None
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()
    strategy: dict[str, Any] = msgspec.field(default_factory=dict)
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None


class DeploymentStatus(ApiStruct, frozen=True, kw_only=True):
    """Counts of a Deployment's Pods; `observedGeneration` says which spec they are about."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(ApiStruct, frozen=True, kw_only=True):
    """apps/v1 Deployment."""

    api_version: str = "apps/v1"
    kind: str = "Deployment"
    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(ApiStruct, frozen=True, kw_only=True):
    """How many Pods of which template."""

    replicas: int | None = None
    selector: LabelSelector = LabelSelector()
    template: PodTemplate = PodTemplate()
    min_ready_seconds: int = 0


class ReplicaSetStatus(ApiStruct, frozen=True, kw_only=True):
    """Counts of a ReplicaSet's Pods."""

    observed_generation: int = 0
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0


class ReplicaSet(ApiStruct, frozen=True, kw_only=True):
    """apps/v1 ReplicaSet."""

    api_version: str = "apps/v1"
    kind: str = "ReplicaSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class NodeStatus(ApiStruct, frozen=True, kw_only=True):
    """What a node says about itself."""

    conditions: tuple[Condition, ...] = ()
    capacity: dict[str, str] = msgspec.field(default_factory=dict)
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    addresses: tuple[dict[str, str], ...] = ()
    node_info: dict[str, Any] = msgspec.field(default_factory=dict)


class Node(ApiStruct, frozen=True, kw_only=True):
    """core/v1 Node."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: NodeStatus = NodeStatus()


class LeaseSpec(ApiStruct, frozen=True, kw_only=True):
    """Who leads, since when, and for how long without a renewal."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(ApiStruct, frozen=True, kw_only=True):
    """coordination.k8s.io/v1 Lease."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()
