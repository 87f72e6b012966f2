"""The aggregated API on a real Kubernetes: logs and journals with any credential, and impostors of the front proxy."""

import asyncio
import base64
import json
import ssl
import subprocess
import sys
from typing import Any, Final

import aiohttp
import pytest

from controlplane.kube.resources import PODS, RUNS
from tests.cluster.kit import KUBECONFIG, ROOT, STATE, SYSTEM, Cluster, fresh, settled
from tests.e2e.stack import function

HOST: Final = "kruntimes-controlplane.kruntimes-system.svc"
API: Final = "/apis/logs.kruntimes.io/v1alpha1/namespaces/default/runs"
PRINTS: Final = (
    "import sys\ndef invoke(request):\n    print('called with', request, file=sys.stderr)\n    return {'outputs': {}}\n"
)


def krt(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "controlplane.cli", *arguments, "--kubeconfig", str(KUBECONFIG)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout


def task(name: str, source: str, runtime: str = "python") -> dict[str, Any]:
    spec = {"runtime": runtime, "source": {"inline": source}}
    return {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": name}, "spec": spec}


def account_with(name: str, rule: dict[str, Any]) -> list[dict[str, Any]]:
    """A ServiceAccount that may this one thing."""
    group = "rbac.authorization.k8s.io"
    made: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {"apiVersion": f"{group}/v1", "kind": "Role", "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        },
    ]
    return [{**each, "metadata": {"name": name}} for each in made]


async def until(client: Any, name: str, phase: str) -> Any:
    return await settled(lambda: client.get(RUNS, "default", name), lambda run: run.status.phase == phase)


async def test_a_task_in_python_and_in_bash_prints_into_its_log_and_replays(cluster: Cluster) -> None:
    python, bash = fresh("printed"), fresh("printed-bash")
    async with cluster.client() as client:
        await client.create(RUNS, "default", task(python, "print('from python')\n"))
        await client.create(RUNS, "default", task(bash, 'echo from bash\necho "a=1" >> "$KRUNTIME_OUTPUTS"\n', "bash"))
        for name in (python, bash):
            await until(client, name, "Succeeded")
        assert (await client.get(RUNS, "default", bash)).status.outputs == {"a": "1"}
    for name, text in ((python, "from python\n"), (bash, "from bash\n")):
        assert await asyncio.to_thread(krt, "logs", name) == text
        lines = [json.loads(line) for line in cluster.kubectl("get", "--raw", f"{API}/{name}/log").splitlines()]
        assert [line.get("line") for line in lines] == [text.strip(), None]
        assert "Succeeded" in await asyncio.to_thread(krt, "replay", name)
        cluster.kubectl("delete", "run", name)


async def test_a_functions_log_is_followed_and_told_apart_by_invocation(cluster: Cluster) -> None:
    name = fresh("followed")
    async with cluster.client() as client:
        await client.create(RUNS, "default", function(name, PRINTS))
        run = await until(client, name, "Ready")
        command = [sys.executable, "-m", "controlplane.cli", "logs", "-f", name, "--kubeconfig", str(KUBECONFIG)]
        following = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
        assert following.stdout is not None
        cluster.apply(*account_with("calls", {"apiGroups": ["kruntimes.io"], "resources": ["runs"], "verbs": ["get"]}))
        token = cluster.token("calls", audience="kruntimes")
        async with cluster.https(run, token) as session:
            for number, invocation in enumerate(("first", "second")):
                headers = {"X-Kruntime-Invocation-ID": invocation}
                async with session.post(run.status.endpoint.url, json={"n": number}, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                async with asyncio.timeout(15):
                    assert await following.stdout.readline() == f"called with {{'n': {number}}}\n".encode()
        assert await asyncio.to_thread(krt, "logs", name, "--invocation", "second") == "called with {'n': 1}\n"
        await client.delete(RUNS, "default", name)
        async with asyncio.timeout(30):
            assert await following.wait() == 0


async def test_the_api_server_itself_refuses_a_caller_without_the_right(cluster: Cluster) -> None:
    name = fresh("private")
    async with cluster.client() as client:
        await client.create(RUNS, "default", task(name, "print('x')\n"))
        await until(client, name, "Succeeded")
    rights = {"reads-runs": ("kruntimes.io", "runs"), "reads-logs": ("logs.kruntimes.io", "runs/log")}
    for account, (group, resource) in rights.items():
        cluster.apply(*account_with(account, {"apiGroups": [group], "resources": [resource], "verbs": ["get"]}))

    async def get(account: str, subresource: str) -> int:
        token = cluster.kubectl("create", "token", account).strip()
        context = ssl.create_default_context(cafile=str(STATE / "pki" / "ca.crt"))
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
            session.get(f"https://10.250.0.2:6443{API}/{name}/{subresource}", ssl=context) as answer,
        ):
            return answer.status

    assert await get("reads-logs", "log") == 200
    assert await get("reads-logs", "journal") == 403
    assert await get("reads-runs", "log") == 403
    cluster.kubectl("delete", "run", name)


async def test_every_replica_answers_the_front_proxy_and_nobody_who_pretends_to_be_it(cluster: Cluster) -> None:
    name, pki = fresh("asked"), STATE / "pki"
    secret = cluster.kubectl("get", "secret", "-n", SYSTEM, "kruntimes-pki", "-o", r"jsonpath={.data.root\.crt}")
    root = base64.b64decode(secret).decode()
    async with cluster.client() as client:
        await client.create(RUNS, "default", task(name, "print('x')\n"))
        await until(client, name, "Succeeded")
        replicas = await client.list(PODS, SYSTEM, labels="app.kubernetes.io/component=controlplane")
    addresses = [pod.status.pod_ip for pod in replicas.items if not pod.metadata.deleting]
    assert len(addresses) >= 2

    async def get(address: str, shown: str, path: str, user: str = "someone") -> int:
        context = ssl.create_default_context(cadata=root)
        if shown:
            context.load_cert_chain(pki / f"{shown}.crt", pki / f"{shown}.key")
        headers = {"X-Remote-User": user, "X-Remote-Group": "system:masters"} if user else {}
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.get(f"https://{address}:8445{path}", ssl=context, server_hostname=HOST) as answer,
            ):
                return answer.status
        except (aiohttp.ClientError, ConnectionError):
            return 0

    for address in addresses:
        for subresource in ("log", "journal"):
            path = f"{API}/{name}/{subresource}"
            assert await get(address, "front-proxy-client", path) == 200, (address, path)
            assert await get(address, "", path) == 401
            assert await get(address, "admin", path) == 0, "a certificate of the cluster's client CA is none of it"
            assert await get(address, "front-proxy-client", path, user="") == 401
    cluster.kubectl("delete", "run", name)


async def test_a_ca_bundle_that_somebody_spoils_is_put_right(cluster: Cluster) -> None:
    name, shown = "apiservice/v1alpha1.logs.kruntimes.io", ("-o", "jsonpath={.spec.caBundle}")
    before = cluster.kubectl("get", name, *shown)
    assert before
    other = base64.b64encode((STATE / "pki" / "ca.crt").read_bytes()).decode()
    cluster.kubectl("patch", name, "--type=merge", "-p", json.dumps({"spec": {"caBundle": other}}))

    async def bundle() -> str:
        return cluster.kubectl("get", name, *shown)

    await settled(bundle, lambda found: found == before, 30)
    cluster.kubectl("wait", name, "--for=condition=Available", "--timeout=30s")


@pytest.mark.timeout(600)
async def test_what_went_with_a_pod_is_said_and_not_shown_as_nothing(cluster: Cluster) -> None:
    name = fresh("went")
    async with cluster.client() as client:
        await client.create(RUNS, "default", task(name, "print('x')\n"))
        run = await until(client, name, "Succeeded")
        await client.delete(PODS, "default", run.status.assigned_pod)

        async def there() -> list[str]:
            pods = await client.list(PODS, "default", labels="kruntimes.io/runtime=python")
            return [pod.metadata.uid for pod in pods.items]

        await settled(there, lambda uids: run.status.assigned_pod_uid not in uids, 120)
    command = [sys.executable, "-m", "controlplane.cli", "logs", name, "--kubeconfig", str(KUBECONFIG)]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert f"Pod {run.status.assigned_pod} is gone, and what {name} printed there went with it" in done.stderr
    assert "Succeeded" in await asyncio.to_thread(krt, "replay", name)
    cluster.settle()
    cluster.kubectl("delete", "run", name)
