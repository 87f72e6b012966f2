"""The Node object of this machine: there for `kubectl get nodes` and for whoever looks up `spec.nodeName`.

Lives here: making and refreshing it once a start. May not live here: Pods. `main` runs it next.
"""

import asyncio
import logging
import os
import platform
import random
from typing import Any

from controlplane.embedded.node.limits import PODS_MAX, WRITE_RETRY_FIRST_SECONDS, WRITE_RETRY_MAX_SECONDS
from controlplane.embedded.node.podstatus import HOST_IP
from controlplane.kube.api import Kube
from controlplane.kube.backoff import Backoff
from controlplane.kube.clock import Clock
from controlplane.kube.codec import format_time_seconds
from controlplane.kube.errors import AlreadyExists, KubeError
from controlplane.kube.resources import NODES

_log = logging.getLogger(__name__)


async def register(kube: Kube, clock: Clock, name: str) -> None:
    """Make the Node object if it is missing, and write its status once. Tries until the API takes it."""
    backoff = Backoff(WRITE_RETRY_FIRST_SECONDS, WRITE_RETRY_MAX_SECONDS, random.Random())
    while True:
        try:
            try:
                await kube.create(NODES, None, body(name))
            except AlreadyExists:
                pass  # of an earlier start
            ops = [{"op": "add", "path": "/status", "value": status(clock.now_us())}]
            await kube.json_patch(NODES, None, name, ops, subresource="status")
            return
        except KubeError as error:
            _log.warning("node %s not registered: %s", name, error)
            await asyncio.sleep(backoff.next_delay())


def body(name: str) -> dict[str, Any]:
    """The Node without its status."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}}


def status(now_us: int) -> dict[str, Any]:
    """Ready since now, with what this machine has."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    capacity = {"cpu": str(os.cpu_count() or 1), "memory": f"{pages * size // 1024}Ki", "pods": str(PODS_MAX)}
    now = format_time_seconds(now_us)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "NodeReady",
        "message": "Pods run as processes of this machine",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [ready],
        "addresses": [{"type": "InternalIP", "address": HOST_IP}],
        "nodeInfo": {
            "operatingSystem": "linux",
            "architecture": platform.machine(),
            "kernelVersion": platform.release(),
            "osImage": "processes of this machine",
            "containerRuntimeVersion": "process://1",
            "kubeletVersion": "v1.34.0",
        },
    }
