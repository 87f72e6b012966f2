"""The node as a whole: informers feed three controllers and the Pods; the supervisor's reports go to the Pods.

Lives here: which part hears of what. May not live here: decisions, sockets, configuration. `main` runs it next; tests
run it on an API in memory and a spawner without processes.
"""

import asyncio
import random
from typing import Any

from controlplane.embedded import spawning
from controlplane.embedded.node.context import NodeContext
from controlplane.embedded.node.deployments import DeploymentController
from controlplane.embedded.node.endpoints import EndpointController
from controlplane.embedded.node.pods import PodManager
from controlplane.embedded.node.replicasets import ReplicaSetController
from controlplane.embedded.node.state import ClusterView
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import DEPLOYMENTS, PODS, REPLICASETS, SERVICES
from controlplane.kube.types import Deployment, Pod, ReplicaSet, Service


class Node:
    """Give it reports through `on_report`, and run it. `over` is set when a Shutdown has been carried out."""

    def __init__(self, context: NodeContext, rng: random.Random | None = None) -> None:
        self.over = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._pods = PodManager(context)
        kube, clock = context.kube, context.clock
        self._follow_deployments = Informer(kube, DEPLOYMENTS, on_change=self._on_deployment, clock=clock)
        self._follow_replicasets = Informer(kube, REPLICASETS, on_change=self._on_replicaset, clock=clock)
        self._follow_pods = Informer(kube, PODS, on_change=self._on_pod, clock=clock)
        self._follow_services = Informer(kube, SERVICES, on_change=self._on_service, clock=clock)
        view = ClusterView(
            self._follow_deployments.store,
            self._follow_replicasets.store,
            self._follow_pods.store,
            self._follow_services.store,
        )
        self._deployments = DeploymentController(kube, view, clock)
        self._replicasets = ReplicaSetController(kube, view, clock, context.node_name, rng or random.Random())
        self._endpoints = EndpointController(kube, view)

    def on_report(self, report: spawning.Report) -> None:
        """What the supervisor says."""
        if not isinstance(report, spawning.Shutdown):
            self._pods.on_report(report)
        elif self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._shut_down(report.grace_seconds))

    async def run(self) -> None:
        """For ever. Raises what any part died of."""
        informers: tuple[Informer[Any], ...] = (
            self._follow_deployments,
            self._follow_replicasets,
            self._follow_pods,
            self._follow_services,
        )
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.run())
            group.create_task(self._pods.begin(self._follow_pods.store, self._follow_pods.synced))
            group.create_task(self._pods.failure())
            group.create_task(self._control(informers))

    async def _control(self, informers: tuple[Informer[Any], ...]) -> None:
        """Nothing is decided from half a view: everything has been listed first."""
        for informer in informers:
            await informer.synced.wait()
        await asyncio.gather(self._deployments.run(), self._replicasets.run(), self._endpoints.run())

    async def _shut_down(self, grace_seconds: float) -> None:
        await self._pods.shut_down(grace_seconds)
        self.over.set()

    def _on_deployment(self, change: Change[Deployment]) -> None:
        self._deployments.on_deployment(change)

    def _on_replicaset(self, change: Change[ReplicaSet]) -> None:
        self._deployments.on_replicaset(change)
        self._replicasets.on_replicaset(change)

    def _on_pod(self, change: Change[Pod]) -> None:
        self._pods.on_pod(change)
        self._replicasets.on_pod(change)
        self._endpoints.on_pod(change)

    def _on_service(self, change: Change[Service]) -> None:
        self._endpoints.on_service(change)
