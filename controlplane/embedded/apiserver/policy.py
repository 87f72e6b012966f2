"""The roles that exist from the start: Kubernetes' user-facing ClusterRoles and what everybody may see.

Lives here: data. May not live here: evaluation (`rbac.py`). `bootstrap.py` stores what is absent.
"""

from typing import Any, Final

Object = dict[str, Any]

_GROUP: Final = "rbac.authorization.k8s.io"
_READ: Final = ["get", "list", "watch"]
_WRITE: Final = ["create", "delete", "deletecollection", "patch", "update"]


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": groups, "resources": resources, "verbs": verbs}


def _paths(*paths: str) -> Object:
    return {"nonResourceURLs": list(paths), "verbs": ["get"]}


_VIEWED: Final = [
    _rule(
        [""],
        [
            "configmaps",
            "endpoints",
            "events",
            "namespaces",
            "pods",
            "pods/log",
            "pods/status",
            "serviceaccounts",
            "services",
        ],
        _READ,
    ),
    _rule(
        ["apps"], ["deployments", "deployments/scale", "deployments/status", "replicasets", "replicasets/status"], _READ
    ),
    _rule(["discovery.k8s.io"], ["endpointslices"], _READ),
    _rule(["events.k8s.io"], ["events"], _READ),
    _rule(["policy"], ["poddisruptionbudgets", "poddisruptionbudgets/status"], _READ),
    _rule(["networking.k8s.io"], ["networkpolicies"], _READ),
    _rule(["kruntimes.io"], ["runs", "runs/status", "runtimes", "runtimes/scale", "runtimes/status"], _READ),
    _rule(["logs.kruntimes.io"], ["runs/log", "runs/journal"], ["get"]),
]
_EDITED: Final = [
    _rule([""], ["secrets"], _READ),
    _rule([""], ["configmaps", "events", "pods", "pods/eviction", "secrets", "serviceaccounts", "services"], _WRITE),
    _rule([""], ["serviceaccounts/token"], ["create"]),
    _rule([""], ["serviceaccounts"], ["impersonate"]),
    _rule(["apps"], ["deployments", "deployments/scale", "replicasets", "replicasets/scale"], _WRITE),
    _rule(["coordination.k8s.io"], ["leases"], [*_READ, *_WRITE]),
    _rule(["policy"], ["poddisruptionbudgets"], _WRITE),
    _rule(["networking.k8s.io"], ["networkpolicies"], _WRITE),
    _rule(["kruntimes.io"], ["runs", "runtimes", "runtimes/scale"], _WRITE),
]
_ADMINISTERED: Final = [
    _rule([_GROUP], ["roles", "rolebindings"], [*_READ, *_WRITE]),
    _rule(["authorization.k8s.io"], ["localsubjectaccessreviews"], ["create"]),
]


def _role(name: str, rules: list[Object], labels: dict[str, str] | None = None, aggregate: str = "") -> Object:
    role: Object = {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults", **(labels or {})}},
        "rules": rules,
    }
    if aggregate:
        selector = {"matchLabels": {f"rbac.authorization.k8s.io/aggregate-to-{aggregate}": "true"}}
        role["aggregationRule"] = {"clusterRoleSelectors": [selector]}
    return role


def _binding(name: str, role: str, *groups: str) -> Object:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}},
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _GROUP, "kind": "Group", "name": group} for group in groups],
    }


_EVERYBODY: Final = ("system:authenticated", "system:unauthenticated")
_DISCOVERED: Final = (
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
)

ROLES: Final = (
    _role("cluster-admin", [_rule(["*"], ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]),
    _role("admin", [*_VIEWED, *_EDITED, *_ADMINISTERED], aggregate="admin"),
    _role("edit", [*_VIEWED, *_EDITED], {"rbac.authorization.k8s.io/aggregate-to-admin": "true"}, aggregate="edit"),
    _role("view", [*_VIEWED], {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}, aggregate="view"),
    _role("system:discovery", [_paths(*_DISCOVERED, "/version/")]),
    _role("system:public-info-viewer", [_paths("/healthz", "/livez", "/readyz", "/version", "/version/")]),
    _role(
        "system:basic-user",
        [
            _rule(["authorization.k8s.io"], ["selfsubjectaccessreviews", "selfsubjectrulesreviews"], ["create"]),
            _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
        ],
    ),
    _role(
        "system:auth-delegator",
        [
            _rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
            _rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
        ],
    ),
)
BINDINGS: Final = (
    _binding("cluster-admin", "cluster-admin", "system:masters"),
    _binding("system:discovery", "system:discovery", "system:authenticated"),
    _binding("system:basic-user", "system:basic-user", "system:authenticated"),
    _binding("system:public-info-viewer", "system:public-info-viewer", *_EVERYBODY),
)
