"""The EndpointSlice controller: one slice per Service with a selector, listing the Pods behind it.

Lives here: what a slice says (pure) and writing it. May not live here: who dials it. `main` runs it next.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from controlplane.embedded.node.reconciler import Reconciler
from controlplane.embedded.node.state import ClusterView, Key, key_of
from controlplane.kube.api import Kube
from controlplane.kube.errors import AlreadyExists, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.meta import matches, owner_of
from controlplane.kube.resources import ENDPOINTSLICES
from controlplane.kube.types import (
    Endpoint,
    EndpointConditions,
    EndpointPort,
    EndpointSlice,
    ObjectMeta,
    ObjectReference,
    Pod,
    Service,
    ServicePort,
)

SERVICE_LABEL: Final = "kubernetes.io/service-name"
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"
MANAGED_BY: Final = "endpointslice-controller.k8s.io"


class EndpointController:
    """Reconciles Services. What it wrote last is kept, so that an unchanged slice is not written again."""

    def __init__(self, kube: Kube, view: ClusterView) -> None:
        self._kube = kube
        self._view = view
        self._written: dict[str, EndpointSlice] = {}
        self._queue: Reconciler[Key] = Reconciler("service", self.reconcile)
        self.run = self._queue.run

    def on_service(self, change: Change[Service]) -> None:
        """A Service came or changed; when it goes, its slice goes by garbage collection."""
        if change.current is not None:
            self._queue.touch(key_of(change.current))
        elif change.previous is not None:
            self._written.pop(change.previous.metadata.uid, None)

    def on_pod(self, change: Change[Pod]) -> None:
        """A Pod came, changed or went: the Services that select it may list it anew."""
        pod = change.current or change.previous
        assert pod is not None
        labels = (change.previous.metadata.labels if change.previous else {}) | pod.metadata.labels
        for service in self._view.services_in(pod.metadata.namespace):
            if service.spec.selector and matches(labels, service.spec.selector):
                self._queue.touch(key_of(service))

    async def reconcile(self, key: Key) -> None:
        """Write the slice of one Service if it changed. Raises KubeError."""
        service = self._view.service(key)
        if service is None or service.metadata.deleting or not service.spec.selector:
            return
        wanted = slice_of(service, self._view.pods_in(key[0]))
        if self._written.get(service.metadata.uid) == wanted:
            return
        if service.metadata.uid not in self._written:
            try:
                await self._kube.create(ENDPOINTSLICES, key[0], _body(wanted))
            except AlreadyExists:
                await self._replace(wanted)
        else:
            await self._replace(wanted)
        self._written[service.metadata.uid] = wanted

    async def _replace(self, wanted: EndpointSlice) -> None:
        body = _body(wanted)
        ops = [
            {"op": "add", "path": "/endpoints", "value": body["endpoints"]},
            {"op": "add", "path": "/ports", "value": body["ports"]},
            {"op": "add", "path": "/metadata/ownerReferences", "value": body["metadata"]["ownerReferences"]},
            {"op": "add", "path": "/metadata/labels", "value": body["metadata"]["labels"]},
        ]
        try:
            await self._kube.json_patch(ENDPOINTSLICES, wanted.metadata.namespace, wanted.metadata.name, ops)
        except NotFound:
            await self._kube.create(ENDPOINTSLICES, wanted.metadata.namespace, _body(wanted))


def slice_of(service: Service, pods: Iterable[Pod]) -> EndpointSlice:
    """The slice of `service`: every selected Pod that has an address and is not finished, by name."""
    chosen = sorted(
        (pod for pod in pods if _belongs(service, pod)),
        key=lambda pod: pod.metadata.name,
    )
    return EndpointSlice(
        metadata=ObjectMeta(
            name=f"{service.metadata.name}-{service.metadata.uid[:5]}",
            namespace=service.metadata.namespace,
            labels=service.metadata.labels | {SERVICE_LABEL: service.metadata.name, MANAGED_BY_LABEL: MANAGED_BY},
            owner_references=(owner_of(service),),
        ),
        endpoints=tuple(_endpoint(service, pod) for pod in chosen),
        ports=tuple(
            EndpointPort(
                name=port.name, port=_number(port, chosen), protocol=port.protocol, app_protocol=port.app_protocol
            )
            for port in service.spec.ports
        ),
    )


def _body(wanted: EndpointSlice) -> dict[str, Any]:
    """As it is written: `addressType` is required, and structs leave out what holds its default."""
    return {"addressType": wanted.address_type, "endpoints": [], "ports": [], **msgspec.to_builtins(wanted)}


def _belongs(service: Service, pod: Pod) -> bool:
    return (
        pod.metadata.namespace == service.metadata.namespace
        and matches(pod.metadata.labels, service.spec.selector)
        and bool(pod.status.pod_ip)
        and pod.status.phase not in ("Succeeded", "Failed")
    )


def _endpoint(service: Service, pod: Pod) -> Endpoint:
    serving = any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
    terminating = pod.metadata.deleting
    return Endpoint(
        addresses=(pod.status.pod_ip,),
        conditions=EndpointConditions(
            ready=(serving and not terminating) or service.spec.publish_not_ready_addresses,
            serving=serving,
            terminating=terminating,
        ),
        target_ref=ObjectReference(
            kind="Pod", namespace=pod.metadata.namespace, name=pod.metadata.name, uid=pod.metadata.uid
        ),
        node_name=pod.spec.node_name,
    )


def _number(port: ServicePort, pods: Iterable[Pod]) -> int:
    """The target port; a name is looked up in the containers of the first Pod that has it."""
    if isinstance(port.target_port, int):
        return port.target_port
    if port.target_port is not None:
        for pod in pods:
            for container in (*pod.spec.init_containers, *pod.spec.containers):
                for own in container.ports:
                    if own.name == port.target_port:
                        return own.container_port
    return port.port
