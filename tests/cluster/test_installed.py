"""What holds on a real Kubernetes with the chart installed."""

import asyncio
import json
from typing import Any

import pytest

from controlplane.kube.errors import Forbidden, Invalid
from controlplane.kube.resources import NAMESPACES, PODS, RUNS
from tests.cluster.kit import GATEWAY_HOST, Cluster, fresh, settled
from tests.e2e.stack import ECHO, function

GONE_S = 200.0
PROBE = """
import json, ssl, sys, urllib.error, urllib.request
url, pem, token = sys.argv[1], sys.stdin.read(), sys.argv[2]
token = open("/var/run/secrets/kruntimes/token").read() if token == "own" else token
headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
request = urllib.request.Request(url, b'{"a": 1}', headers)
try:
    answer = urllib.request.urlopen(request, context=ssl.create_default_context(cadata=pem))
except urllib.error.HTTPError as error:
    answer = error
print(json.dumps([answer.status, json.load(answer)]))
"""


async def ready(client: Any, name: str, namespace: str = "default") -> Any:
    return await settled(lambda: client.get(RUNS, namespace, name), lambda run: run.status.phase == "Ready")


def client_pod(account: str) -> dict[str, Any]:
    """A Pod that can call: an interpreter and a token for the gateway."""
    token = {"serviceAccountToken": {"path": "token", "audience": "kruntimes"}}
    container = {
        "name": "client",
        "image": "docker.io/kruntimes/python-runtime:0.1.0",
        "command": ["sleep", "3600"],
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kruntimes"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"client-{account}"},
        "spec": {
            "serviceAccountName": account,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [{"name": "token", "projected": {"sources": [token]}}],
        },
    }


async def test_the_documents_url_works_from_a_pod_for_who_may_get_that_run_alone(cluster: Cluster) -> None:
    name = fresh("seed")
    accounts = ("caller", "stranger")
    for account in accounts:
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
        cluster.apply(client_pod(account))
    rules = [{"apiGroups": ["kruntimes.io"], "resources": ["runs"], "resourceNames": [name], "verbs": ["get"]}]
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": {"name": "seed-caller"}, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "seed-caller"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "seed-caller"},
        "subjects": [{"kind": "ServiceAccount", "name": "caller", "namespace": "default"}],
    }
    cluster.apply(role, binding)
    async with cluster.client() as client:
        await client.create(RUNS, "default", function(name, ECHO))
        run = await ready(client, name)
        url = run.status.endpoint.url
        assert url == f"https://{GATEWAY_HOST}/v1/namespaces/default/runtimes/python/runs/{run.metadata.uid}:invoke"
        cluster.kubectl("wait", "--for=condition=Ready", *(f"pod/client-{account}" for account in accounts))
        pem = cluster.kubectl("get", "run", name, "-o", "go-template={{.status.endpoint.caBundle | base64decode}}")

        def call(account: str, token: str = "own") -> Any:
            command = ("exec", "-i", f"client-{account}", "--", "python3", "-c", PROBE, url, token)
            return json.loads(cluster.kubectl(*command, stdin=pem))

        assert call("caller") == [200, {"outputs": {"echo": {"a": 1}}}]
        assert [call("stranger")[0], call("stranger")[1]["reason"]] == [403, "Forbidden"]
        assert call("caller", "nonsense")[0] == 401
        await client.delete(RUNS, "default", name)
    cluster.kubectl("delete", "pod", *(f"client-{account}" for account in accounts))


async def test_a_taken_over_pod_can_change_the_runs_that_it_owns_and_no_others(cluster: Cluster) -> None:
    name = fresh("owned")
    async with cluster.client() as client:
        await client.create(RUNS, "default", function(name, ECHO))
        run = await ready(client, name)
        owner, others = run.status.assigned_pod, await client.list(PODS, "default", labels="kruntimes.io/runtime=bash")
        stranger = others.items[0].metadata
        own = cluster.token("runtime-python", pod=owner, uid=run.status.assigned_pod_uid)
        tokens = {
            "another Pod": cluster.token("runtime-bash", pod=stranger.name, uid=stranger.uid),
            "no Pod": cluster.token("runtime-python"),
        }
        status = [{"op": "add", "path": "/status/message", "value": "taken over"}]
        to_another = [{"op": "replace", "path": "/status/assignedPodUID", "value": stranger.uid}]
        labels = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
        cancel = [{"op": "add", "path": "/spec/cancelRequested", "value": True}]
        finalizers = [{"op": "replace", "path": "/metadata/finalizers", "value": []}]
        for who, token in tokens.items():
            async with cluster.client(token) as thief:
                for ops, subresource in ((status, "status"), (finalizers, ""), (labels, "")):
                    with pytest.raises((Forbidden, Invalid), match="not assigned"):
                        await thief.json_patch(RUNS, "default", name, ops, subresource=subresource)
                        pytest.fail(f"a token of {who} was let through: {ops}")
        async with cluster.client(own) as thief:
            await thief.json_patch(RUNS, "default", name, status, subresource="status")
            with pytest.raises((Forbidden, Invalid), match="never to another Pod"):
                await thief.json_patch(RUNS, "default", name, to_another, subresource="status")
            for ops in (labels, cancel):
                with pytest.raises((Forbidden, Invalid), match="only finalizers"):
                    await thief.json_patch(RUNS, "default", name, ops)
            with pytest.raises(Forbidden):
                await thief.delete(RUNS, "default", name)
        await client.delete(RUNS, "default", name)


async def test_writes_to_a_run_stay_within_their_budget_by_the_audit_log(cluster: Cluster) -> None:
    name = fresh("budget")
    async with cluster.client() as client:
        await client.create(RUNS, "default", function(name, ECHO))
        await ready(client, name)

        def writes() -> list[str]:
            ours = [line for line in cluster.audit(name) if line["user"]["username"] != "admin"]
            mine = [line for line in ours if line["verb"] not in ("get", "list", "watch")]
            return [f"{line['verb']} {line['objectRef'].get('subresource', '')}" for line in mine]

        await settled(lambda: asyncio.sleep(0.3, writes()), lambda found: len(found) >= 3)
        assert len(writes()) <= 4, writes()
        await client.delete(RUNS, "default", name)
        await settled(
            lambda: client.list(RUNS, "default"), lambda runs: name not in {run.metadata.name for run in runs.items}
        )
        await asyncio.sleep(0.3)
        assert len(writes()) <= 6, writes()


@pytest.mark.timeout(300)
async def test_a_namespace_with_ready_functions_can_be_deleted(cluster: Cluster) -> None:
    runtime = json.loads(cluster.kubectl("get", "runtime", "python", "-o", "json"))
    spec = {key: runtime["spec"][key] for key in ("template", "capacity")}
    cluster.kubectl("create", "namespace", "elsewhere")
    made = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Runtime", "metadata": {"name": "python"}, "spec": spec}
    cluster.apply(made, namespace="elsewhere")
    async with cluster.client() as client:
        await client.create(RUNS, "elsewhere", function("there", ECHO))
        await ready(client, "there", "elsewhere")
        cluster.kubectl("delete", "namespace", "elsewhere", "--wait=false")
        # Kubernetes deletes Pods first, looks again soon, and if one ends calls then, after half of its grace.
        await settled(lambda: client.list(NAMESPACES, None), lambda found: "elsewhere" not in names_of(found), GONE_S)


def names_of(found: Any) -> set[str]:
    return {each.metadata.name for each in found.items}
