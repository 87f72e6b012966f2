"""The built-in resources: one row each.

Lives here: data. May not live here: behaviour, which the rows name. `registry.py` starts from `BUILTIN`.
"""

from typing import Final

import msgspec

from controlplane.embedded.apiserver import builtin_hooks as hooks
from controlplane.embedded.apiserver import columns, custom, events_v1, names, pod_hooks
from controlplane.embedded.apiserver.core_types import CoreSchema
from controlplane.embedded.apiserver.kinds import REVIEW_VERBS, Resource, Scale, reader

_REPLICAS: Final = Scale(".spec.replicas", ".status.replicas", ".status.selector")
_POD_FIELDS: Final = {
    path: reader(f".{path}")
    for path in (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
    )
}
_INVOLVED: Final = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT_FIELDS: Final = {
    **{f"involvedObject.{name}": reader(f".involvedObject.{name}") for name in _INVOLVED},
    **{name: reader(f".{name}") for name in ("reason", "type", "reportingComponent")},
    "source": reader(".source.component"),
}
_REGARDING_FIELDS: Final = {
    **_EVENT_FIELDS,
    **{f"regarding.{name}": reader(f".involvedObject.{name}") for name in _INVOLVED},
    "reportingController": reader(".reportingComponent"),
}
_RBAC: Final = "rbac.authorization.k8s.io"


def _core() -> list[Resource]:
    return [
        Resource(
            group="",
            version="v1",
            plural="namespaces",
            kind="Namespace",
            short_names=("ns",),
            namespaced=False,
            status=True,
            name_rule=names.wrong_label,
            fields={"status.phase": reader(".status.phase")},
            columns=columns.NAMESPACES,
            prepare=hooks.prepare_namespace,
        ),
        Resource(
            group="",
            version="v1",
            plural="pods",
            kind="Pod",
            short_names=("po",),
            categories=("all",),
            status=True,
            generation=True,
            graceful=True,
            fields=_POD_FIELDS,
            columns=columns.PODS,
            prepare=pod_hooks.prepare_pod,
            check=pod_hooks.check_pod,
        ),
        Resource(
            group="",
            version="v1",
            plural="services",
            kind="Service",
            short_names=("svc",),
            categories=("all",),
            status=True,
            name_rule=names.wrong_rfc1035,
            columns=columns.SERVICES,
            prepare=hooks.prepare_service,
            check=hooks.check_service,
        ),
        Resource(
            group="",
            version="v1",
            plural="serviceaccounts",
            kind="ServiceAccount",
            short_names=("sa",),
            columns=columns.SERVICE_ACCOUNTS,
        ),
        Resource(
            group="",
            version="v1",
            plural="configmaps",
            kind="ConfigMap",
            short_names=("cm",),
            columns=columns.CONFIG_MAPS,
            check=hooks.check_config_map,
        ),
        Resource(
            group="",
            version="v1",
            plural="secrets",
            kind="Secret",
            fields={"type": reader(".type")},
            columns=columns.SECRETS,
            prepare=hooks.prepare_secret,
            check=hooks.check_secret,
        ),
        Resource(
            group="",
            version="v1",
            plural="events",
            kind="Event",
            short_names=("ev",),
            fields=_EVENT_FIELDS,
            columns=columns.EVENTS,
            nameless=True,
            check=hooks.check_event,
        ),
        Resource(
            group="",
            version="v1",
            plural="nodes",
            kind="Node",
            short_names=("no",),
            namespaced=False,
            status=True,
            fields={"spec.unschedulable": reader(".spec.unschedulable")},
            columns=columns.NODES,
        ),
        Resource(
            group="", version="v1", plural="endpoints", kind="Endpoints", short_names=("ep",), columns=columns.ENDPOINTS
        ),
    ]


def _apps() -> list[Resource]:
    return [
        Resource(
            group="apps",
            version="v1",
            plural=plural,
            kind=kind,
            short_names=(short,),
            categories=("all",),
            status=True,
            scale=_REPLICAS,
            generation=True,
            columns=shown,
            prepare=pod_hooks.prepare_workload,
            check=pod_hooks.check_workload,
        )
        for plural, kind, short, shown in (
            ("deployments", "Deployment", "deploy", columns.DEPLOYMENTS),
            ("replicasets", "ReplicaSet", "rs", columns.REPLICASETS),
        )
    ]


def _rbac() -> list[Resource]:
    return [
        Resource(
            group=_RBAC,
            version="v1",
            plural=plural,
            kind=kind,
            namespaced=namespaced,
            name_rule=names.wrong_path_segment,
            columns=columns.ROLE_BINDINGS if binding else columns.ROLES,
            prepare=hooks.prepare_binding if binding else None,
            check=hooks.check_binding if binding else hooks.check_role,
        )
        for plural, kind, namespaced, binding in (
            ("roles", "Role", True, False),
            ("rolebindings", "RoleBinding", True, True),
            ("clusterroles", "ClusterRole", False, False),
            ("clusterrolebindings", "ClusterRoleBinding", False, True),
        )
    ]


def _others() -> list[Resource]:
    return [
        Resource(
            group="discovery.k8s.io",
            version="v1",
            plural="endpointslices",
            kind="EndpointSlice",
            generation=True,
            columns=columns.ENDPOINT_SLICES,
            check=hooks.check_endpoint_slice,
        ),
        Resource(group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", columns=columns.LEASES),
        Resource(
            group="events.k8s.io",
            version="v1",
            plural="events",
            kind="Event",
            short_names=("ev",),
            storage="/events",
            fields=_REGARDING_FIELDS,
            columns=columns.EVENTS,
            nameless=True,
            check=hooks.check_event,
            encoded=events_v1.to_core,
            decoded=events_v1.from_core,
        ),
        Resource(
            group="policy",
            version="v1",
            plural="poddisruptionbudgets",
            kind="PodDisruptionBudget",
            short_names=("pdb",),
            status=True,
            generation=True,
            columns=columns.DISRUPTION_BUDGETS,
        ),
        Resource(
            group="networking.k8s.io",
            version="v1",
            plural="networkpolicies",
            kind="NetworkPolicy",
            short_names=("netpol",),
            generation=True,
            columns=columns.NETWORK_POLICIES,
        ),
        Resource(
            group="apiextensions.k8s.io",
            version="v1",
            plural="customresourcedefinitions",
            kind="CustomResourceDefinition",
            short_names=("crd", "crds"),
            categories=("api-extensions",),
            namespaced=False,
            status=True,
            generation=True,
            columns=columns.DEFINITIONS,
            prepare=custom.prepare,
            check=custom.check,
        ),
    ]


def _reviews() -> list[Resource]:
    return [
        Resource(
            group=f"{group}.k8s.io",
            version="v1",
            plural=kind.lower() + "s",
            kind=kind,
            namespaced=namespaced,
            verbs=REVIEW_VERBS,
            review=kind,
        )
        for group, kind, namespaced in (
            ("authentication", "TokenReview", False),
            ("authentication", "SelfSubjectReview", False),
            ("authorization", "SubjectAccessReview", False),
            ("authorization", "SelfSubjectAccessReview", False),
            ("authorization", "SelfSubjectRulesReview", False),
            ("authorization", "LocalSubjectAccessReview", True),
        )
    ]


def _with_schema(resource: Resource) -> Resource:
    """The types of the stored shape: events.k8s.io/v1 is stored as core."""
    group = resource.stored_as.rpartition("/")[0]
    return msgspec.structs.replace(resource, schema=CoreSchema(group, resource.kind))


BUILTIN: Final = (*map(_with_schema, (*_core(), *_apps(), *_rbac(), *_others())), *_reviews())
