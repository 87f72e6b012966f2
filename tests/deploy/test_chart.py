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


@pytest.mark.parametrize("case", CASES)
def test_it_renders_as_the_golden_file_says(helm: str, case: str) -> None:
    done = run(helm, CASES[case])
    assert done.returncode == 0, done.stderr
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("KRUNTIMES_WRITE_GOLDEN"):
        golden.write_text(done.stdout)
    assert objects(done.stdout) == objects(golden.read_text())


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


def test_only_one_named_secret_can_be_read(rendered: list[dict[str, Any]]) -> None:
    rules = [rule for each in rendered if each["kind"] in ("ClusterRole", "Role") for rule in each["rules"]]
    secrets = [rule for rule in rules if "secrets" in rule["resources"]]
    assert [rule["resourceNames"] for rule in secrets] == [["kruntimes-pki"]]


def test_every_container_of_ours_is_locked_down(rendered: list[dict[str, Any]]) -> None:
    specs = [each["spec"]["template"]["spec"] for each in rendered if each["kind"] in ("Deployment", "Runtime")]
    assert len(specs) == 4
    for spec in specs:
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_crds_are_the_generated_ones() -> None:
    for path in (ROOT / "deploy" / "crds").glob("*.yaml"):
        assert (CHART / "crds" / path.name).read_text() == path.read_text()
