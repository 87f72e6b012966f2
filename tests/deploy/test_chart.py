"""The chart, rendered: golden files, what its schema refuses, and that roles say what the code asks for.

Needs helm 3.14 or newer on the PATH, or the one that scripts/cluster keeps in its cache. KRUNTIMES_WRITE_GOLDEN=1
writes the golden files anew.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.runtimecontroller.objects import runtimed_rules
from tests.kit.helm import find_helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
GOLDEN = Path(__file__).parent / "golden"

EVERYTHING = {
    "controlplane": {"nodeSelector": {"zone": "a"}, "tolerations": [{"key": "k", "operator": "Exists"}]},
    "gateway": {"extraHosts": ["functions.example.org"], "permission": "create runs/invoke", "replicas": 3},
    "image": {"registry": "registry.example.org", "tag": "9.9", "pullSecrets": ["pull"]},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"team": "x"}}},
    "defaultRuntimes": {"namespaces": ["default", "other"], "runs": 4, "podAnnotations": {"built": "x"}},
}
LEAST = {
    "gateway": {"enabled": False},
    "admissionPolicy": {"enabled": False},
    "podDisruptionBudgets": {"enabled": False},
    "controlplane": {"replicas": 1},
}
CASES: dict[str, dict[str, Any]] = {"default": {}, "everything": EVERYTHING, "least": LEAST}


@pytest.fixture(scope="module")
def helm() -> str:
    found = find_helm()
    if found is None:
        pytest.skip("helm is neither on the PATH nor in the cache of scripts/cluster")
    return found


def run(helm: str, values: dict[str, Any], *, namespace: str = "kruntimes-system") -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "kruntimes", str(CHART), "--namespace", namespace, "--values", "-"]
    return subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)


def objects(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def without_crds(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The objects; of those definitions that a hook applies only the names of their files."""
    for each in found:
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "kruntimes-crds":
            each["data"] = dict.fromkeys(each["data"], "as in crds/")
    return found


@pytest.mark.parametrize("case", CASES)
def test_it_renders_as_the_golden_file_says(helm: str, case: str) -> None:
    done = run(helm, CASES[case])
    assert done.returncode == 0, done.stderr
    golden = GOLDEN / f"{case}.yaml"
    shown = without_crds(objects(done.stdout))
    if os.environ.get("KRUNTIMES_WRITE_GOLDEN"):
        golden.write_text(yaml.safe_dump_all(shown, sort_keys=False, width=120))
    assert shown == objects(golden.read_text())


def test_lint_finds_nothing(helm: str) -> None:
    command = [helm, "lint", "--strict", str(CHART), "--namespace", "kruntimes-system"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gateway": {"replica": 2}}, "replica"),
        ({"gateway": {"replicas": 0}}, "/gateway/replicas"),
        ({"gateway": {"permission": "get pods"}}, "/gateway/permission"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy"),
        ({"defaultRuntimes": {"languages": ["ruby"]}}, "/defaultRuntimes/languages/0"),
        ({"metrics": {"serviceMonitor": {"interval": "fast"}}}, "/metrics/serviceMonitor/interval"),
        ({"networkPolicies": {"enabled": "yes"}}, "/networkPolicies/enabled"),
        ({"crds": {"upgrade": 1}}, "/crds/upgrade"),
        ({"uninstall": {"drainSeconds": -1}}, "/uninstall/drainSeconds"),
        ({"admissionPolicy": {"enable": True}}, "enable"),
        ({"podDisruptionBudgets": []}, "/podDisruptionBudgets"),
        ({"controlplane": {"replicas": "two"}}, "/controlplane/replicas"),
        ({"clusterDomain": ""}, "/clusterDomain"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: str, values: dict[str, Any], named: str) -> None:
    done = run(helm, values)
    assert done.returncode != 0
    assert named in done.stderr


def test_another_namespace_is_refused_with_the_right_command(helm: str) -> None:
    done = run(helm, {}, namespace="default")
    assert done.returncode != 0
    assert "--namespace kruntimes-system" in done.stderr


@pytest.fixture(scope="module")
def rendered(helm: str) -> list[dict[str, Any]]:
    done = run(helm, {"defaultRuntimes": {"namespaces": ["default"]}})
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def test_no_role_may_everything_or_give_away_what_it_has_not(rendered: list[dict[str, Any]]) -> None:
    for role in rendered:
        if role["kind"] not in ("ClusterRole", "Role"):
            continue
        for rule in role["rules"]:
            assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_the_control_plane_holds_every_right_that_it_gives_to_a_runtimed(rendered: list[dict[str, Any]]) -> None:
    """Else the API refuses the Role, since it may neither `bind` nor `escalate`."""
    held = {
        (group, resource, verb)
        for each in rendered
        if each["kind"] == "ClusterRole" and each["metadata"]["name"] == "kruntimes-controlplane"
        for rule in each["rules"]
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    given = {
        (group, resource, verb)
        for rule in runtimed_rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given <= held


def test_only_one_named_secret_can_be_read(rendered: list[dict[str, Any]]) -> None:
    rules = [rule for each in rendered if each["kind"] in ("ClusterRole", "Role") for rule in each["rules"]]
    secrets = [rule for rule in rules if "secrets" in rule["resources"]]
    assert [rule["resourceNames"] for rule in secrets] == [["kruntimes-pki"]]


def test_every_container_of_ours_is_locked_down(rendered: list[dict[str, Any]]) -> None:
    specs = [each["spec"]["template"]["spec"] for each in rendered if each["kind"] in ("Deployment", "Runtime")]
    specs += [each["spec"]["template"]["spec"] for each in rendered if each["kind"] == "Job"]
    assert len(specs) == 6
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_an_upgrade_applies_the_definitions_of_the_chart_with_rights_of_its_own(rendered: list[dict[str, Any]]) -> None:
    hooks = [each for each in rendered if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-upgrade"]
    assert {each["kind"] for each in hooks} == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "Job",
    }
    (data,) = [each["data"] for each in hooks if each["kind"] == "ConfigMap"]
    assert data == {path.name: path.read_text() for path in (CHART / "crds").glob("*.yaml")}
    (role,) = [each for each in hooks if each["kind"] == "ClusterRole"]
    (rule,) = role["rules"]
    assert sorted(rule["resourceNames"]) == ["runs.kruntimes.io", "runtimes.kruntimes.io"]
    assert rule["verbs"] == ["get", "patch"]
    others = [each for each in rendered if each["kind"] in ("ClusterRole", "Role") and each is not role]
    assert "customresourcedefinitions" not in [
        name for each in others for rule in each["rules"] for name in rule["resources"]
    ]


def test_the_aggregated_api_leads_to_the_control_plane_and_its_ca_is_left_to_it(rendered: list[dict[str, Any]]) -> None:
    (service,) = [each for each in rendered if each["kind"] == "APIService"]
    assert service["metadata"]["name"] == "v1alpha1.logs.kruntimes.io"
    assert not {"caBundle", "insecureSkipTLSVerify"} & set(service["spec"])
    target = service["spec"]["service"]
    (found,) = [each for each in rendered if each["kind"] == "Service" and each["metadata"]["name"] == target["name"]]
    assert target["port"] in [port["port"] for port in found["spec"]["ports"]]


def test_the_crds_are_the_generated_ones() -> None:
    for path in (ROOT / "deploy" / "crds").glob("*.yaml"):
        assert (CHART / "crds" / path.name).read_text() == path.read_text()
