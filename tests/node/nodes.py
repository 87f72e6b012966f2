"""A node on an API in memory, with a spawner that starts no process: the test ends "containers" by hand."""

import asyncio
import copy
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from controlplane.embedded import spawning
from controlplane.embedded.node import rollout
from controlplane.embedded.node.addresses import AddressPool
from controlplane.embedded.node.context import NodeContext
from controlplane.embedded.node.filewatch import FileWatcher
from controlplane.embedded.node.node import Node
from controlplane.kube.clock import SystemClock
from controlplane.kube.resources import CONFIGMAPS, DEPLOYMENTS, ENDPOINTSLICES, PODS, REPLICASETS, Kind
from controlplane.kube.types import Deployment, EndpointSlice, Pod, ReplicaSet
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube

T = TypeVar("T")


class FakeSpawner:
    """Every spawn succeeds at once; `term` says what SIGTERM does ("exit", or "ignore")."""

    def __init__(self) -> None:
        self.running: dict[str, spawning.Spawn] = {}
        self.spawned: list[spawning.Spawn] = []
        self.signals: list[tuple[str, signal.Signals]] = []
        self.ended: dict[str, spawning.Exited] = {}
        self.term = "exit"
        self.node: Node | None = None
        self._since: dict[str, int] = {}

    def spawn(self, request: spawning.Spawn) -> None:
        self.spawned.append(request)
        self.running[request.id] = request
        self._since[request.id] = time.time_ns() // 1_000
        self._tell(spawning.Started(request.id, len(self.spawned), self._since[request.id]))

    def signal(self, id: str, number: signal.Signals) -> None:
        self.signals.append((id, number))
        if number == signal.SIGKILL or self.term == "exit":
            self.end(id, 137 if number == signal.SIGKILL else 0)

    def forget(self, id: str) -> None:
        self.ended.pop(id, None)

    def end(self, id: str, code: int = 1) -> None:
        """The process ends."""
        if self.running.pop(id, None) is not None:
            now = time.time_ns() // 1_000
            self.ended[id] = spawning.Exited(id, code, self._since[id], now)
            self._tell(self.ended[id])

    def enumerate(self) -> None:
        """As the supervisor answers a node that has just started."""
        assert self.node is not None
        for id in self.running:
            self.node.on_report(spawning.Started(id, 1, self._since[id]))
        for ended in list(self.ended.values()):
            self.node.on_report(ended)
        self.node.on_report(spawning.Enumerated())

    def ids(self, container: str) -> list[str]:
        """The running processes of a container name."""
        return [id for id in self.running if id.split("/")[1] == container]

    def _tell(self, report: spawning.Report) -> None:
        if self.node is not None:
            asyncio.get_running_loop().call_soon(self.node.on_report, report)


class Machine:
    """The API, the spawner and the folders, which outlive a node; `node()` runs one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "pods").mkdir(parents=True)
        (path / "run").mkdir()
        self.kube = FakeKube(ManualClock(now_us=time.time_ns() // 1_000))
        self.spawner = FakeSpawner()
        self.notes: list[tuple[str, str]] = []
        for name in ("kruntimes-ca", "kube-root-ca.crt"):
            self.apply(CONFIGMAPS, {"metadata": {"name": name, "namespace": "default"}, "data": {"ca.crt": "PEM"}})

    @asynccontextmanager
    async def node(self) -> AsyncIterator[Node]:
        """A node that runs until the block ends, as if it were killed then: no goodbye to anybody."""
        with closing(FileWatcher()) as watcher:
            node = Node(
                NodeContext(
                    kube=self.kube,
                    spawner=self.spawner,
                    clock=SystemClock(),
                    addresses=AddressPool("127.99.1"),
                    watch=watcher.watch,
                    note=lambda pod, type_, reason, message: self.notes.append((reason, message)),
                    node_name="local",
                    data_dir=self.path,
                    run_dir=self.path / "run",
                    machine={"PATH": "/bin"},
                ),
                random.Random(7),
            )
            self.spawner.node = node
            running = asyncio.ensure_future(node.run())
            self.spawner.enumerate()
            try:
                yield node
                if running.done():
                    running.result()
            finally:
                self.spawner.node = None
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

    def apply(self, kind: Kind[Any], obj: dict[str, Any]) -> None:
        """Put a new object into the API."""
        self.kube.store.insert(kind, obj["metadata"]["namespace"], copy.deepcopy(obj))

    def change(self, kind: Kind[Any], obj: dict[str, Any]) -> None:
        """A user changes the spec of an object."""
        meta = obj["metadata"]
        old = copy.deepcopy(self.kube.store.find(kind, meta["namespace"], meta["name"]))
        self.kube.store.change(kind, meta["namespace"], meta["name"], old | {"spec": obj["spec"]}, "")

    def all(self, kind: Kind[T]) -> list[T]:
        """Everything of a kind, as the API has it now."""
        return [msgspec.convert(obj, kind.type) for obj in self.kube.store.of(kind, None)]

    def pods(self) -> list[Pod]:
        return sorted(self.all(PODS), key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.name))

    def pod(self) -> Pod:
        (pod,) = self.pods()
        return pod

    def replicasets(self) -> list[ReplicaSet]:
        """The oldest first."""
        return sorted(self.all(REPLICASETS), key=lambda rs: rs.metadata.annotations[rollout.REVISION_ANNOTATION])

    def deployment(self) -> Deployment:
        (found,) = self.all(DEPLOYMENTS)
        return found

    def slice(self) -> EndpointSlice | None:
        found = self.all(ENDPOINTSLICES)
        return found[0] if found else None

    def work(self, pod: Pod) -> Path:
        return self.path / "pods" / pod.metadata.uid / "volumes" / "work"

    def serve(self, pod: Pod) -> None:
        """What runtimed does when it serves."""
        (self.work(pod) / "ready").touch()

    def drain(self, pod: Pod) -> None:
        """What runtimed does when it drains."""
        (self.work(pod) / "ready").unlink(missing_ok=True)


def template(image: str = "kruntimes/python-runtime", **spec: Any) -> dict[str, Any]:
    """The Pod template of a Runtime, as the Runtime controller writes it."""
    mounts = [{"name": "socket", "mountPath": "/run/kruntimes"}, {"name": "work", "mountPath": "/work"}]
    identity = [
        {"name": "api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        {"name": "identity", "mountPath": "/var/run/secrets/kruntimes"},
        {"name": "installation-ca", "mountPath": "/etc/kruntimes"},
    ]
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    return {
        "metadata": {"labels": {"kruntimes.io/runtime": "python"}},
        "spec": {
            "serviceAccountName": "runtime-python",
            "initContainers": [
                {
                    "name": "runtimed",
                    "image": "kruntimes/runtimed",
                    "restartPolicy": "Always",
                    "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "ports": [{"name": "runtimed", "containerPort": 8443}],
                    "volumeMounts": mounts + identity,
                    "readinessProbe": {"exec": {"command": ["cat", "/work/ready"]}},
                }
            ],
            "containers": [{"name": "runtime", "image": image, "volumeMounts": mounts}],
            "volumes": [
                {"name": "socket", "emptyDir": {}},
                {"name": "work", "emptyDir": {}},
                {
                    "name": "api-access",
                    "projected": {
                        "sources": [
                            token,
                            {"configMap": {"name": "kube-root-ca.crt"}},
                            {"downwardAPI": {"items": [
                                {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                        ]
                    },
                },
                {"name": "identity", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "audience": "kruntimes"}}]}},
                {"name": "installation-ca", "configMap": {"name": "kruntimes-ca"}},
            ],
        }
        | spec,
    }  # fmt: skip


def deployment(replicas: int = 1, image: str = "kruntimes/python-runtime") -> dict[str, Any]:
    return {
        "metadata": {"name": "runtime-python", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"kruntimes.io/runtime": "python"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template(image),
        },
    }


def service() -> dict[str, Any]:
    return {
        "metadata": {"name": "runtime-python", "namespace": "default"},
        "spec": {
            "selector": {"kruntimes.io/runtime": "python"},
            "ports": [{"name": "runtimed", "port": 8443, "targetPort": "runtimed"}],
        },
    }
