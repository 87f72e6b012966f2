"""What the node's controllers look at: the informers' copies of Deployments, ReplicaSets, Pods and Services.

Lives here: lookups. May not live here: decisions and writes. `deployments`, `replicasets` and `endpoints` call it next.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from controlplane.kube.types import Deployment, ObjectMeta, Pod, ReplicaSet, Service

Key = tuple[str, str]
"""(namespace, name)."""


class Stored(Protocol):
    """Any API object."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=Stored)


class ClusterView:
    """A live view of the informers' stores (by UID)."""

    def __init__(
        self,
        deployments: Mapping[str, Deployment],
        replicasets: Mapping[str, ReplicaSet],
        pods: Mapping[str, Pod],
        services: Mapping[str, Service],
    ) -> None:
        self._deployments = deployments
        self._replicasets = replicasets
        self._pods = pods
        self._services = services

    def deployment(self, key: Key) -> Deployment | None:
        """The Deployment of that name."""
        return _named(self._deployments.values(), key)

    def replicaset(self, key: Key) -> ReplicaSet | None:
        """The ReplicaSet of that name."""
        return _named(self._replicasets.values(), key)

    def service(self, key: Key) -> Service | None:
        """The Service of that name."""
        return _named(self._services.values(), key)

    def replicasets_of(self, owner: Deployment) -> list[ReplicaSet]:
        """The ReplicaSets that `owner` controls."""
        return [rs for rs in self._replicasets.values() if controller_uid(rs) == owner.metadata.uid]

    def pods_of(self, owner: ReplicaSet) -> list[Pod]:
        """The Pods that `owner` controls, whatever their state."""
        return [pod for pod in self._pods.values() if controller_uid(pod) == owner.metadata.uid]

    def pods_in(self, namespace: str) -> Iterator[Pod]:
        """The Pods of a namespace."""
        return (pod for pod in self._pods.values() if pod.metadata.namespace == namespace)

    def services_in(self, namespace: str) -> Iterator[Service]:
        """The Services of a namespace."""
        return (service for service in self._services.values() if service.metadata.namespace == namespace)


def key_of(obj: Stored) -> Key:
    """(namespace, name) of an object."""
    return obj.metadata.namespace, obj.metadata.name


def controller_of(obj: Stored, kind: str) -> Key | None:
    """The name of the controller of `obj`, if it is of that kind."""
    for owner in obj.metadata.owner_references:
        if owner.controller and owner.kind == kind:
            return obj.metadata.namespace, owner.name
    return None


def controller_uid(obj: Stored) -> str | None:
    """The UID of the controller of `obj`."""
    return next((owner.uid for owner in obj.metadata.owner_references if owner.controller), None)


def _named(objects: Iterable[T], key: Key) -> T | None:
    return next((obj for obj in objects if key_of(obj) == key), None)
