"""Where each kind is served and which struct it decodes into: constants, one a kind.

`Kind` is data for `client.py`, `informer.py` and the fake of the tests; nothing here talks to an API.
"""

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from controlplane.kube import types as t
from controlplane.kube.types_kruntimes import RunObject, RuntimeObject

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """One resource of the API: group (empty = core), version, plural, kind, scope, and the struct of its objects."""

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """`v1` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """The URL path of the collection (all namespaces if `namespace` is None), an object or its subresource."""
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace is not None:
            base = f"{base}/namespaces/{quote(namespace, safe='')}"
        if name is None:
            return f"{base}/{self.plural}"
        if self.namespaced and not namespace:
            raise ValueError(f"{self.plural} is namespaced: an object of it has a namespace")
        path = f"{base}/{self.plural}/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path

    def untyped(self) -> "Kind[dict[str, Any]]":
        """The same resource, decoded into dicts with every field that the API sent."""
        return Kind(self.group, self.version, self.plural, self.kind, dict, self.namespaced)


GROUP: Final = "kruntimes.io"
VERSION: Final = "v1alpha1"

RUNS: Final = Kind(GROUP, VERSION, "runs", "Run", RunObject)
RUNTIMES: Final = Kind(GROUP, VERSION, "runtimes", "Runtime", RuntimeObject)

PODS: Final = Kind("", "v1", "pods", "Pod", t.Pod)
SERVICES: Final = Kind("", "v1", "services", "Service", t.Service)
SERVICEACCOUNTS: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount", t.PlainObject)
CONFIGMAPS: Final = Kind("", "v1", "configmaps", "ConfigMap", t.ConfigMap)
SECRETS: Final = Kind("", "v1", "secrets", "Secret", t.Secret)
EVENTS: Final = Kind("", "v1", "events", "Event", t.KubeEvent)
NAMESPACES: Final = Kind("", "v1", "namespaces", "Namespace", t.PlainObject, namespaced=False)
NODES: Final = Kind("", "v1", "nodes", "Node", t.Node, namespaced=False)

DEPLOYMENTS: Final = Kind("apps", "v1", "deployments", "Deployment", t.Deployment)
REPLICASETS: Final = Kind("apps", "v1", "replicasets", "ReplicaSet", t.ReplicaSet)
ENDPOINTSLICES: Final = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", t.EndpointSlice)
LEASES: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease", t.Lease)

_RBAC: Final = "rbac.authorization.k8s.io"
ROLES: Final[Kind[dict[str, Any]]] = Kind(_RBAC, "v1", "roles", "Role", dict)
ROLEBINDINGS: Final[Kind[dict[str, Any]]] = Kind(_RBAC, "v1", "rolebindings", "RoleBinding", dict)
CLUSTERROLES: Final[Kind[dict[str, Any]]] = Kind(_RBAC, "v1", "clusterroles", "ClusterRole", dict, namespaced=False)
CLUSTERROLEBINDINGS: Final[Kind[dict[str, Any]]] = Kind(
    _RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", dict, namespaced=False
)
CUSTOMRESOURCEDEFINITIONS: Final[Kind[dict[str, Any]]] = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", dict, namespaced=False
)

APISERVICES: Final = Kind("apiregistration.k8s.io", "v1", "apiservices", "APIService", t.APIService, namespaced=False)
NETWORKPOLICIES: Final = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", t.PlainObject)

TOKENREVIEWS: Final = Kind(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", t.TokenReview, namespaced=False
)
SUBJECTACCESSREVIEWS: Final = Kind(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", t.SubjectAccessReview, namespaced=False
)
