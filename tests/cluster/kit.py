"""Talking to the real cluster: kubectl, a Kubernetes client, invocations by the Service's name, a steady load."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from controlplane.kube.client import KubeClient
from tests.kit.waiting import last_turns

ROOT: Final = Path(__file__).parents[2]
STATE: Final = Path(os.environ.get("KRUNTIMES_CLUSTER_DIR") or "/var/lib/kruntimes-cluster")
KUBECONFIG: Final = STATE / "kubeconfig"
SYSTEM: Final = "kruntimes-system"
GATEWAY_HOST: Final = "runtime-gateway.kruntimes-system.svc.cluster.local"
SETTLE_S: Final = 120.0


def scripts_cluster(*arguments: str, check: bool = True) -> int:
    """Run scripts/cluster; its exit status. Fails the test with what it said."""
    done = subprocess.run([str(ROOT / "scripts" / "cluster"), *arguments], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.returncode


class Cluster:
    """The shared cluster."""

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator; its output."""
        binary = shutil.which("kubectl")
        assert binary is not None, "kubectl is needed"
        command = [binary, "--kubeconfig", str(KUBECONFIG), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: dict[str, Any], namespace: str = "default") -> None:
        content = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(content))

    def settle(self) -> None:
        """Wait until every Pod of a rollout is there and every old one is gone."""
        self.kubectl("rollout", "status", "-n", SYSTEM, "deploy/kruntimes-controlplane", "deploy/runtime-gateway")
        self.kubectl("rollout", "status", "-n", "default", "deploy/runtime-python", "deploy/runtime-bash")

    def token(
        self, account: str, *, pod: str = "", uid: str = "", audience: str = "", namespace: str = "default"
    ) -> str:
        """A token of a ServiceAccount, bound to a Pod if one is named."""
        options = [f"--audience={audience}"] if audience else []
        if pod:
            options += ["--bound-object-kind=Pod", f"--bound-object-name={pod}", f"--bound-object-uid={uid}"]
        return self.kubectl("create", "token", account, "-n", "default", *options).strip()

    @asynccontextmanager
    async def client(self, token: str | None = None) -> AsyncIterator[KubeClient]:
        """A Kubernetes client: the administrator's, or that of a bearer token."""
        path = KUBECONFIG
        if token is not None:
            path = STATE / f"token-{abs(hash(token))}.kubeconfig"
            authority = str(STATE / "pki" / "ca.crt")
            server = {"server": "https://10.250.0.2:6443", "certificate-authority": authority}
            config = {
                "clusters": [{"name": "c", "cluster": server}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "c",
            }
            path.write_text(json.dumps(config))
        async with await KubeClient.connect(str(path), user_agent="tests") as client:
            yield client
        await last_turns()

    @asynccontextmanager
    async def https(self, run: Any, token: str) -> AsyncIterator[aiohttp.ClientSession]:
        """An HTTPS client that finds the gateway by its name in the cluster and trusts the Run's caBundle alone."""
        pem = base64.b64decode(run.status.endpoint.ca_bundle).decode()
        address = self.kubectl("get", "svc", "runtime-gateway", "-n", SYSTEM, "-o", "jsonpath={.spec.clusterIP}")
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=pem), resolver=_Fixed(address), limit=64)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield session
        await last_turns()

    def audit(self, name: str) -> list[dict[str, Any]]:
        """Every request about Runs of this name that the API server has logged as done."""
        lines = [json.loads(line) for line in (STATE / "logs" / "audit.log").read_text().splitlines()]
        return [line for line in lines if line.get("objectRef", {}).get("name") == name]


class _Fixed(AbstractResolver):
    """Every name is this address."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host=self._address, port=port, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        return


async def settled(call: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = 30.0) -> Any:
    """The first result of an awaitable `call` that is `wanted`."""
    async with asyncio.timeout(seconds):
        while True:
            value = await call()
            if wanted(value):
                return value
            await asyncio.sleep(0.02)


_NUMBERS = itertools.count()


def fresh(prefix: str) -> str:
    """A name that no other test, and no earlier run of this one, has used."""
    return f"{prefix}-{os.getpid()}-{next(_NUMBERS)}"
