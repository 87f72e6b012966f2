"""A namespace of a real Kubernetes with Runtimes of its own, as the end-to-end tests see it.

The cluster itself, with the chart installed, is `tests.cluster`'s, and tests share it; what is broken here is one Pod
of this namespace. This machine reaches Pods and Services of `scripts/cluster` by their addresses, but not their names.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp.abc import AbstractResolver, ResolveResult

from controlplane.kube.resources import PODS
from tests.cluster.containers import first_process
from tests.cluster.kit import GATEWAY_HOST, KUBECONFIG, STATE, SYSTEM, Cluster
from tests.e2e.stack import Asked, Stack, settled, until

HTTPS: Final = 443
GATEWAY_PORT: Final = 8443
ANOTHER: Final = "another-gateway"
VOLUMES: Final = "volumes/kubernetes.io~empty-dir"
ACCOUNT: Final = "anything"  # who may do anything in the namespace
POD_S: Final = 60.0
GONE_S: Final = 100.0


class OnCluster(Stack):
    """A namespace, from `start` to `stop`."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path, *languages: str) -> None:
        self.namespace = namespace
        self.kubeconfig = directory / f"{namespace}.kubeconfig"
        self.gateway = f"https://{GATEWAY_HOST}"
        self._cluster = cluster
        self._languages = languages
        self._addresses: dict[int, str] = {}
        self._token = ""
        self._made = False

    def start(self) -> None:
        """Make the namespace and its Runtimes, and wait for their Pods."""
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        self.kubeconfig.write_bytes(KUBECONFIG.read_bytes())
        self._must("config", "set-context", "--current", f"--namespace={self.namespace}")
        self._must("create", "namespace", self.namespace)
        self._made = True
        self._must("create", "serviceaccount", ACCOUNT)
        subject = f"--serviceaccount={self.namespace}:{ACCOUNT}"
        self._must("create", "rolebinding", ACCOUNT, "--clusterrole=cluster-admin", subject)
        for language in self._languages:
            runtime = self.runtime(language, runs="64")
            runtime["spec"]["template"]["spec"]["containers"][0]["image"] = self.image(language)
            self._must("create", "-f", "-", stdin=json.dumps(runtime))
        for language in self._languages:
            until(f"Runtime {language} has a Pod", lambda name=language: self._replicas(name) == "1", POD_S)
        address = "jsonpath={.spec.clusterIP}"
        service = self._cluster.kubectl("get", "service", "runtime-gateway", "-n", SYSTEM, "-o", address)
        self._addresses[HTTPS] = service.strip()

    def stop(self) -> None:
        """Delete what is in the namespace, and it, and wait until it is gone.

        In this order, because Kubernetes looks again at a namespace with Pods only after half of their grace."""
        if self._made:
            for kind in ("runs", "runtimes"):
                self._must("delete", kind, "--all", f"--timeout={GONE_S:g}s", timeout=GONE_S + 10)
            until("every Pod is gone", lambda: not self._must("get", "pods", "-o", "name"), GONE_S)
        self._cluster.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", f"--timeout={GONE_S:g}s")

    def _replicas(self, runtime: str) -> str:
        return self.kubectl("get", "runtime", runtime, "-o", "jsonpath={.status.readyReplicas}").out

    def _must(self, *arguments: str, **options: Any) -> str:
        done = self.kubectl(*arguments, **options)
        assert done.code == 0, done.err
        return done.out

    def image(self, language: str) -> str:
        version = self._cluster.kubectl(
            "get", "runtime", language, "-n", "default", "-o", "jsonpath={.spec.template.spec.containers[0].image}"
        )
        return version.strip()

    def token(self) -> str:
        if not self._token:
            self._token = self.krt("token", "--serviceaccount", ACCOUNT).out.strip()
        return self._token

    def root(self) -> str:
        template = 'go-template={{index .data "root.crt" | base64decode}}'
        return self._cluster.kubectl("get", "secret", "kruntimes-pki", "-n", SYSTEM, "-o", template)

    def addresses(self) -> dict[int, str]:
        return self._addresses

    def resolver(self) -> AbstractResolver:
        return _Gateways(self._addresses)

    def requests(self, name: str = "") -> list[Asked]:
        """What the audit log has of this namespace: Runs and Runtimes, which is all that it is told to keep."""
        needles = [each.encode() for each in (f'"namespace":"{self.namespace}"', f'"name":"{name}"' if name else "")]
        with (STATE / "logs" / "audit.log").open("rb") as log:
            lines = [json.loads(line) for line in log if all(needle in line for needle in needles)]
        found = []
        for line in lines:
            about, body = line["objectRef"], line.get("requestObject")
            if about.get("namespace") != self.namespace or name not in ("", about.get("name")):
                continue
            patched = tuple(op["path"] for op in body) if isinstance(body, list) else ()
            user, code = line["user"]["username"], line["responseStatus"]["code"]
            found.append(Asked(line["verb"], about["resource"], about.get("name", ""), user, code, patched))
        return found

    def kill(self, pod_uid: str, *containers: str) -> None:
        pods = json.loads(self._must("get", "pods", "-o", "json"))["items"]
        status = next(pod["status"] for pod in pods if pod["metadata"]["uid"] == pod_uid)
        statuses = [*status["containerStatuses"], *status.get("initContainerStatuses", ())]
        ids = {one["name"]: one["containerID"] for one in statuses}
        pids = [first_process(ids[container]) for container in containers]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            until("it died", lambda pid=pid: not Path(f"/proc/{pid}/cmdline").exists())

    def left_on_disk(self, uid: str = "") -> list[str]:
        pods = json.loads(self._must("get", "pods", "-o", "json"))["items"]
        folders = [STATE / "kubelet" / "pods" / pod["metadata"]["uid"] / VOLUMES for pod in pods]
        found = [folder.rglob(f"*{uid}*") if uid else folder.glob("work/runs/*") for folder in folders]
        return [str(path) for paths in found for path in paths]

    @asynccontextmanager
    async def another_gateway(self, *, routing: str) -> AsyncIterator[str]:
        """A Pod as the Deployment makes them, but for the routing and the labels by which the Service selects."""
        deployment = json.loads(self._cluster.kubectl("get", "deploy", "runtime-gateway", "-n", SYSTEM, "-o", "json"))
        spec = deployment["spec"]["template"]["spec"]
        spec["containers"][0]["env"].append({"name": "KRUNTIMES_GATEWAY_ROUTING", "value": routing})
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{ANOTHER}-{self.namespace}"}, "spec": spec}
        name = str(pod["metadata"]["name"])
        async with self.client() as client:
            await client.create(PODS, SYSTEM, pod)
            try:
                await settled(lambda: client.get(PODS, SYSTEM, name), _is_ready, POD_S)
                where = json.loads(self._cluster.kubectl("get", "pod", name, "-n", SYSTEM, "-o", "json"))
                self._addresses[GATEWAY_PORT] = where["status"]["podIP"]
                yield f"{self.gateway}:{GATEWAY_PORT}"
            finally:
                self._addresses.pop(GATEWAY_PORT, None)
                await client.delete(PODS, SYSTEM, name, grace_seconds=1)


class _Gateways(AbstractResolver):
    """Every name is the address that its port has."""

    def __init__(self, addresses: dict[int, str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        await asyncio.sleep(0)
        at = self._addresses[port]
        return [ResolveResult(hostname=host, host=at, port=port, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        return


def _is_ready(pod: Any) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions)
