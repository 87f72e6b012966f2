"""The cluster's DNS as objects: a Service with the address that every Pod asks, and CoreDNS on the node behind it."""

from typing import Any, Final

from clusterlib import api
from clusterlib.settings import DNS_SERVICE_IP, NODE_IP

_NAME: Final = "kube-dns"
_PORTS: Final = (("dns", "UDP"), ("dns-tcp", "TCP"))
_ROLE_REF: Final = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:coredns"}


def apply() -> None:
    """Make or repair them. Raises ClusterError."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    api.apply(f"{rbac}/clusterroles/system:coredns", _role())
    api.apply(f"{rbac}/clusterrolebindings/system:coredns", _binding())
    api.apply(f"/api/v1/namespaces/kube-system/services/{_NAME}", _service())
    api.apply(f"/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices/{_NAME}-node", _slice())


def _role() -> dict[str, Any]:
    read = ["list", "watch"]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces", "endpoints"], "verbs": read},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
        ],
    }


def _binding() -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": _ROLE_REF,
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:coredns"}],
    }


def _service() -> dict[str, Any]:
    ports = [{"name": name, "port": 53, "protocol": protocol} for name, protocol in _PORTS]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _NAME, "namespace": "kube-system", "labels": {"k8s-app": _NAME}},
        "spec": {"clusterIP": DNS_SERVICE_IP, "ports": ports},
    }


def _slice() -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{_NAME}-node",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": _NAME},
        },
        "addressType": "IPv4",
        "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in _PORTS],
        "endpoints": [{"addresses": [NODE_IP], "conditions": {"ready": True}}],
    }
