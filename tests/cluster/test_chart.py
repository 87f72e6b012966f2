"""What the chart promises, asked of the installation: notes, metrics, budgets, policies, stores that can be written."""

import json
import re
import shutil
import subprocess
from typing import Any, Final

import aiohttp
import pytest

from controlplane.kube.resources import NETWORKPOLICIES, PODS, RUNS
from tests.cluster.kit import KUBECONFIG, STATE, SYSTEM, Cluster, fresh, settled
from tests.cluster.test_logs import krt, task
from tests.kit.helm import find_helm

WRITES: Final = """
import os, pathlib
pathlib.Path(os.environ["KRUNTIME_ARTIFACTS_DIR"], "plot.txt").write_text("a plot")
"""


def test_the_notes_show_a_first_run_that_works_as_it_is_written(cluster: Cluster) -> None:
    command = [
        find_helm() or "helm",
        "get",
        "notes",
        "kruntimes",
        "--namespace",
        SYSTEM,
        "--kubeconfig",
        str(KUBECONFIG),
    ]
    notes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    manifests = re.findall(r"kubectl apply --namespace default -f - <<'END'\n(.*?)\n *END\n", notes, re.DOTALL)
    (manifest,) = manifests  # the chart made the Runtimes
    assert "kubectl wait --namespace default --for=condition=Ready run/hello" in notes
    assert """krt invoke hello --namespace default -d '{"name": "you"}'""" in notes
    cluster.kubectl("apply", "--namespace", "default", "-f", "-", stdin=manifest)
    cluster.kubectl("wait", "--namespace", "default", "--for=condition=Ready", "run/hello", "--timeout=30s")
    said = krt("invoke", "hello", "--namespace", "default", "-d", '{"name": "you"}')
    assert json.loads(said) == {"outputs": {"greeting": "hello you"}}
    cluster.kubectl("delete", "run", "hello")


@pytest.mark.parametrize(
    ("component", "metric"), [("controlplane", "kruntimes_runs_waiting"), ("gateway", "kruntimes_gateway_")]
)
async def test_metrics_are_behind_a_service_of_their_own(cluster: Cluster, component: str, metric: str) -> None:
    labels = f"app.kubernetes.io/component={component},kruntimes.io/metrics=true"
    (service,) = json.loads(cluster.kubectl("get", "svc", "-n", SYSTEM, "-l", labels, "-o", "json"))["items"]
    slices = json.loads(
        cluster.kubectl(
            "get", "endpointslices", "-n", SYSTEM, "-l", f"kubernetes.io/service-name={service['metadata']['name']}",
            "-o", "json",
        )
    )  # fmt: skip
    addresses = [place["addresses"][0] for each in slices["items"] for place in each["endpoints"]]
    assert len(addresses) >= 2
    async with aiohttp.ClientSession() as session:
        for address in addresses:
            async with session.get(f"http://{address}:9090/metrics") as answer:
                text = await answer.text()
                assert answer.status == 200
                assert metric in text
                assert not re.search(r'(uid|run|name|path)="', text), "no identity is a label"


async def test_a_budget_lets_one_of_two_go_and_not_both(cluster: Cluster) -> None:
    async def allowed() -> dict[str, int]:
        budgets = json.loads(cluster.kubectl("get", "pdb", "-n", SYSTEM, "-o", "json"))["items"]
        return {each["metadata"]["name"]: each["status"]["disruptionsAllowed"] for each in budgets}

    await settled(allowed, lambda found: found == {"kruntimes-controlplane": 1, "runtime-gateway": 1})


async def test_every_runtime_has_a_network_policy_that_goes_with_it(cluster: Cluster) -> None:
    """The bridge plugin of this cluster enforces none: what is shown here is that the object is there and right."""
    async with cluster.client() as client:
        policies = await client.list(NETWORKPOLICIES.untyped(), "default")
    found = {each["metadata"]["name"]: each["spec"] for each in policies.items}
    assert {"runtime-python", "runtime-bash"} <= found.keys()
    pods = json.loads(cluster.kubectl("get", "pods", "-n", SYSTEM, "-o", "json"))["items"]
    labels = [each["metadata"]["labels"] for each in pods]
    (rule,) = found["runtime-python"]["ingress"]
    for peer in rule["from"][:2]:
        wanted = peer["podSelector"]["matchLabels"].items()
        assert [each for each in labels if wanted <= each.items()], "the selector finds Pods of ours"


async def test_a_claim_is_a_store_that_runtimed_may_write_as_nobody_in_particular(cluster: Cluster) -> None:
    name, folder = fresh("stored"), STATE / fresh("volume")
    folder.mkdir(mode=0o755)  # root's, as a new disk is
    node = cluster.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    common: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    runtime = json.loads(cluster.kubectl("get", "runtime", "python", "-o", "json"))["spec"]
    template = json.loads(json.dumps(runtime["template"]))
    del template["spec"]["securityContext"]["fsGroup"]
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": common
            | {
                "capacity": {"storage": "1Gi"},
                "local": {"path": str(folder)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": common | {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        },
        {
            "apiVersion": "kruntimes.io/v1alpha1",
            "kind": "Runtime",
            "metadata": {"name": name},
            "spec": {
                "template": template,
                "capacity": runtime["capacity"],
                "artifactStore": {"filesystem": {"volumeClaimName": name}},
            },
        },
    )
    try:
        async with cluster.client() as client:
            await client.create(RUNS, "default", task(name, WRITES, name))
            run = await settled(
                lambda: client.get(RUNS, "default", name), lambda run: run.status.phase in ("Succeeded", "Failed"), 60
            )
            assert run.status.phase == "Succeeded", (run.status.reason, run.status.message)
            assert [ref.name for ref in run.status.artifact_refs] == ["plot.txt"]
        (kept,) = folder.rglob("plot.txt")
        assert kept.read_text() == "a plot"
    finally:
        for kind in ("run", "runtime", "pvc", "pv"):
            cluster.kubectl("delete", kind, name, "--wait=false", check=False)
        shutil.rmtree(folder)


async def test_a_runtime_server_of_another_user_works_and_its_log_is_read(cluster: Cluster) -> None:
    name = fresh("another-user")
    runtime = json.loads(cluster.kubectl("get", "runtime", "python", "-o", "json"))["spec"]
    template = json.loads(json.dumps(runtime["template"]))
    template["spec"]["containers"][0]["securityContext"] |= {"runAsUser": 1000, "runAsGroup": 1000}
    spec = {"template": template, "capacity": runtime["capacity"]}
    made = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Runtime", "metadata": {"name": name}, "spec": spec}
    cluster.apply(made)
    async with cluster.client() as client:
        await client.create(RUNS, "default", task(name, "import os\nprint(os.getuid())\n", name))
        run = await settled(
            lambda: client.get(RUNS, "default", name), lambda run: run.status.phase in ("Succeeded", "Failed"), 60
        )
    assert run.status.phase == "Succeeded", (run.status.reason, run.status.message)
    assert krt("logs", name) == "1000\n"
    for kind in ("run", "runtime"):
        cluster.kubectl("delete", kind, name, "--wait=false")


async def test_reserved_names_are_refused_with_an_event_and_a_condition_that_name_them(cluster: Cluster) -> None:
    name = fresh("reserved")
    container = {"name": "runtime", "image": "example.org/x", "volumeMounts": [{"name": "v", "mountPath": "/work"}]}
    spec = {"template": {"spec": {"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]}}}
    made = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Runtime", "metadata": {"name": name}, "spec": spec}
    cluster.apply(made)

    async def condition() -> Any:
        shown = json.loads(cluster.kubectl("get", "runtime", name, "-o", "json"))
        return (shown.get("status", {}).get("conditions") or [{}])[0]

    found = await settled(condition, lambda found: found.get("reason") == "TemplateInvalid")
    assert "spec.template.spec.containers[0].volumeMounts: /work is reserved" in found["message"]

    async def events() -> str:
        return cluster.kubectl("get", "events", "--field-selector", f"involvedObject.name={name}")

    await settled(events, lambda text: "TemplateInvalid" in text)
    assert not cluster.kubectl("get", "deploy", f"runtime-{name}", "--ignore-not-found")
    cluster.kubectl("delete", "runtime", name)


async def test_a_runtime_pod_has_its_tokens_in_runtimed_alone_and_outlives_the_longest_call(cluster: Cluster) -> None:
    async with cluster.client() as client:
        pods = await client.list(PODS.untyped(), "default", labels="kruntimes.io/runtime=python")
    pod = next(each for each in pods.items if "deletionTimestamp" not in each["metadata"])["spec"]
    runtime, daemon = pod["containers"][0], pod["initContainers"][0]
    secret = {
        volume["name"]
        for volume in pod["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }
    assert secret == {"api-access", "identity"}
    assert secret <= {mount["name"] for mount in daemon["volumeMounts"]}
    assert not secret & {mount["name"] for mount in runtime["volumeMounts"]}
    assert pod["automountServiceAccountToken"] is False
    assert not pod.get("shareProcessNamespace")
    assert daemon["restartPolicy"] == "Always", "a native sidecar"
    assert pod["terminationGracePeriodSeconds"] > 300
    assert runtime["livenessProbe"]["exec"]["command"] == ["krt-alive"]
    assert daemon["securityContext"]["readOnlyRootFilesystem"] is True
