"""What the processes of one machine may do: roles and bindings, least privilege each.

Lives here: data. May not live here: making the objects (`bootstrap` does, next) and the identities (`credentials`).
The control plane's and the gateway's rules are those of the chart (a test compares them); only the node's, and in the
end the control plane's for one Secret and the gateway's look at the client CA, exist here alone.
"""

from typing import Any, Final

from controlplane.embedded.credentials import PROCESS_USERS, SYSTEM_NAMESPACE
from controlplane.embedded.topology import CONTROL_PLANE, GATEWAY, NODE

Object = dict[str, Any]

_RBAC: Final = "rbac.authorization.k8s.io"
_READ: Final = ["get", "list", "watch"]
_FOLLOW: Final = ["list", "watch"]
_MADE: Final = ["list", "watch", "create", "patch"]
_OWN: Final = ["get", "list", "watch", "create", "patch", "update", "delete"]


def _rule(groups: list[str], resources: list[str], verbs: list[str], names: list[str] | None = None) -> Object:
    rule: Object = {"apiGroups": groups, "resources": resources, "verbs": verbs}
    return rule | {"resourceNames": names} if names else rule


_EVENTS: Final = _rule([""], ["events"], ["create", "patch"])

RULES: Final[dict[str, list[Object]]] = {
    CONTROL_PLANE: [
        _rule(["kruntimes.io"], ["runs"], ["get", "list", "watch", "patch", "delete"]),
        _rule(["kruntimes.io"], ["runs/status", "runtimes/status"], ["patch"]),
        _rule(["kruntimes.io"], ["runtimes"], _FOLLOW),
        _rule(["kruntimes.io"], ["runtimes/finalizers"], ["update"]),
        _rule([""], ["pods"], [*_READ, "delete"]),
        _rule([""], ["events"], [*_FOLLOW, "create", "patch"]),
        _rule(["apps"], ["deployments"], [*_READ, "create", "patch"]),
        _rule([""], ["services", "serviceaccounts", "configmaps"], _MADE),
        _rule([_RBAC], ["roles", "rolebindings"], _MADE),
        _rule(["networking.k8s.io"], ["networkpolicies"], [*_MADE, "delete"]),
        _rule([""], ["serviceaccounts"], ["delete"]),
        _rule([_RBAC], ["roles", "rolebindings"], ["delete"]),
        _rule(["apiregistration.k8s.io"], ["apiservices"], [*_FOLLOW, "patch"], ["v1alpha1.logs.kruntimes.io"]),
        _rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        _rule([""], ["secrets"], [*_READ, "patch"], ["kruntimes-pki"]),
    ],
    GATEWAY: [
        _rule(["kruntimes.io"], ["runs", "runtimes"], ["list", "watch"]),
        _rule(["discovery.k8s.io"], ["endpointslices"], ["list", "watch"]),
        _EVENTS,
        _rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        _rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        _rule([""], ["configmaps"], _READ, ["extension-apiserver-authentication"]),
    ],
    NODE: [
        _rule(["apps"], ["deployments"], _READ),
        _rule(["apps"], ["deployments/status", "replicasets/status"], ["patch"]),
        _rule(["apps"], ["replicasets"], _OWN),
        _rule([""], ["pods"], _OWN),
        _rule([""], ["pods/status", "nodes/status"], ["patch"]),
        _rule([""], ["services"], _READ),
        _rule([""], ["configmaps", "secrets"], ["get"]),
        _rule([""], ["nodes"], ["get", "create", "patch"]),
        _rule([""], ["serviceaccounts/token"], ["create"]),
        _rule(["discovery.k8s.io"], ["endpointslices"], _OWN),
        _EVENTS,
    ],
}


def role_name(process: str) -> str:
    """The ClusterRole of a process."""
    return f"kruntimes-{process}"


def roles() -> list[Object]:
    """One ClusterRole a process."""
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": role_name(process)},
            "rules": rules,
        }
        for process, rules in RULES.items()
    ]


def bindings() -> list[Object]:
    """One ClusterRoleBinding a process, to its user alone."""
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role_name(process)},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role_name(process)},
            "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": PROCESS_USERS[process][0]}],
        }
        for process in RULES
    ]


def service_accounts() -> list[Object]:
    """The accounts whose names the control plane and the gateway go by."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": f"kruntimes-{process}", "namespace": SYSTEM_NAMESPACE},
            "automountServiceAccountToken": False,
        }
        for process in (CONTROL_PLANE, GATEWAY)
    ]
