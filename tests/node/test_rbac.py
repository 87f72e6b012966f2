"""Least privilege on one machine: the same rights as on a cluster, and no wildcard anywhere."""

from pathlib import Path
from typing import Any

import yaml

from controlplane.embedded import rbac
from controlplane.embedded.credentials import PROCESS_USERS
from controlplane.embedded.topology import CONTROL_PLANE, GATEWAY

CHART = Path(__file__).parents[2] / "deploy" / "chart" / "templates" / "rbac.yaml"


def chart_rules(name: str) -> list[Any]:
    """The rules of a ClusterRole of the chart: they stand one a line, without template syntax."""
    for document in CHART.read_text().split("\n---"):
        lines = [line.strip() for line in document.splitlines()]
        if "kind: ClusterRole" in lines and f"name: {name}" in lines:
            rules = yaml.safe_load("\n".join(line for line in lines if line.startswith("- {apiGroups:")))
            assert isinstance(rules, list)
            return rules
    raise AssertionError(f"the chart has no ClusterRole {name}")


def test_the_control_plane_may_do_here_what_the_chart_lets_it_do() -> None:
    *rules, secret = rbac.RULES[CONTROL_PLANE]
    assert rules == chart_rules("kruntimes-controlplane")
    assert (secret["resources"], secret["resourceNames"]) == (["secrets"], ["kruntimes-pki"])


def test_the_gateway_may_do_here_what_the_chart_lets_it_do_and_look_at_the_client_ca() -> None:
    *rules, client_ca = rbac.RULES[GATEWAY]
    assert rules == chart_rules("kruntimes-gateway")
    assert client_ca["resourceNames"] == ["extension-apiserver-authentication"]


def test_each_process_has_a_role_of_its_own_and_nobody_has_a_wildcard() -> None:
    assert set(rbac.RULES) == set(PROCESS_USERS)
    for rules in rbac.RULES.values():
        assert not [rule for rule in rules if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]]
    subjects = [binding["subjects"] for binding in rbac.bindings()]
    assert [[subject["name"] for subject in found] for found in subjects] == [
        [PROCESS_USERS[process][0]] for process in rbac.RULES
    ]
