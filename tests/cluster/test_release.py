"""Upgrade and uninstallation of the chart: definitions follow, custom resources stay, nothing is stuck.

These take the installation away and put it back: nobody else may use the cluster meanwhile.
"""

import json
import time
from typing import Any, Final

import pytest

from controlplane.kube.resources import RUNS
from tests.cluster.kit import SYSTEM, Cluster, fresh, scripts_cluster, settled
from tests.cluster.test_logs import task
from tests.e2e.stack import ECHO, function

INSTALL: Final = ("install", "--set", "defaultRuntimes.namespaces={default},defaultRuntimes.runs=8")
CRDS: Final = ("runs.kruntimes.io", "runtimes.kruntimes.io")


async def until(client: Any, namespace: str, name: str, phase: str) -> Any:
    return await settled(lambda: client.get(RUNS, namespace, name), lambda run: run.status.phase == phase, 60)


def conditions(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "crd", name, "-o", "jsonpath={.spec.versions[0].schema.openAPIV3Schema.description}")


@pytest.mark.timeout(400)
async def test_an_upgrade_brings_the_definitions_of_the_new_chart(cluster: Cluster) -> None:
    for name in CRDS:
        patch = [
            {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "of an older chart"}
        ]
        cluster.kubectl("patch", "crd", name, "--type=json", "-p", json.dumps(patch))
    scripts_cluster(*INSTALL)
    assert "of an older chart" not in [conditions(cluster, name) for name in CRDS]
    left = cluster.kubectl("get", "job,serviceaccount,configmap", "-n", SYSTEM, "-o", "name").splitlines()
    assert not [name for name in left if "crds" in name], "the Job and its rights are gone"
    assert "kruntimes-crds" not in cluster.kubectl("get", "clusterrole,clusterrolebinding", "-o", "name")
    cluster.settle()


@pytest.mark.timeout(400)
async def test_network_policies_can_be_switched_off_and_on_again(cluster: Cluster) -> None:
    async def policies() -> str:
        return cluster.kubectl(
            "get", "networkpolicy", "-A", "-l", "app.kubernetes.io/managed-by=kruntimes", "-o", "name"
        )

    scripts_cluster(*INSTALL, "--set", "networkPolicies.enabled=false")
    await settled(policies, lambda found: not found)
    scripts_cluster(*INSTALL, "--set", "networkPolicies.enabled=true")
    await settled(policies, lambda found: "runtime-python" in found and "runtime-bash" in found)
    cluster.settle()


@pytest.mark.timeout(900)
async def test_after_an_uninstallation_custom_resources_stay_and_can_be_deleted(cluster: Cluster) -> None:
    elsewhere = fresh("several")
    runtime = json.loads(cluster.kubectl("get", "runtime", "python", "-o", "json"))
    spec = {key: runtime["spec"][key] for key in ("template", "capacity")}
    made = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Runtime", "metadata": {"name": "python"}, "spec": spec}
    cluster.kubectl("create", "namespace", elsewhere)
    cluster.apply(made, namespace=elsewhere)
    async with cluster.client() as client:
        for namespace in ("default", elsewhere):
            await client.create(RUNS, namespace, function("stays", ECHO))
            await client.create(RUNS, namespace, task("done", "print(1)\n"))
            await until(client, namespace, "stays", "Ready")
            await until(client, namespace, "done", "Succeeded")
        scripts_cluster("uninstall")
        for namespace in ("default", elsewhere):
            for name in ("stays", "done"):
                run = await client.get(RUNS, namespace, name)
                assert run.metadata.finalizers == (), f"{namespace}/{name} is held by nobody"
            assert (await client.get(RUNS, namespace, "done")).status.phase == "Succeeded"
    for name in CRDS:
        assert cluster.kubectl("get", "crd", name, "-o", "name").strip()
    assert cluster.kubectl("get", "runtime", "python", "-n", elsewhere, "-o", "name").strip()
    assert not cluster.kubectl("get", "pods", "-A", "-l", "kruntimes.io/runtime", "-o", "name")
    assert not cluster.kubectl(
        "get", "sa,role,rolebinding", "-A", "-l", "app.kubernetes.io/managed-by=kruntimes", "-o", "name"
    )
    assert not cluster.kubectl("get", "apiservice", "v1alpha1.logs.kruntimes.io", "--ignore-not-found")

    began = time.monotonic()
    cluster.kubectl("delete", "run", "done", "-n", elsewhere, "--timeout=20s")
    scripts_cluster(*INSTALL)  # a later installation takes up what was left
    cluster.settle()
    async with cluster.client() as client:
        for namespace in ("default", elsewhere):
            await until(client, namespace, "stays", "Ready")
    scripts_cluster("uninstall")
    cluster.kubectl("delete", "crd", *CRDS, "--timeout=60s")
    assert not cluster.kubectl("get", "crd", "-o", "name").count("kruntimes.io")
    cluster.kubectl("delete", "namespace", elsewhere, "--timeout=60s")
    scripts_cluster(*INSTALL)
    cluster.settle()
    print(f"deleted, installed, uninstalled, deleted and installed in {time.monotonic() - began:.0f} s")  # noqa: T201
