"""What a Runtime is made of in the API: identity, rights, Service, Deployment. Pure: a Runtime in, objects out.

`controller` applies them, in this order, by server-side apply. Every name follows from the Runtime's. Service and
Deployment belong to it, so garbage collection takes them when it goes; its Pods drain after that, and need the identity
until they have: `identities` removes that one. The namespace's CA stays.
"""

from typing import Any, Final

import msgspec

from controlplane.kube.resources import CONFIGMAPS as _CONFIGMAPS
from controlplane.kube.resources import (
    DEPLOYMENTS,
    NETWORKPOLICIES,
    ROLEBINDINGS,
    ROLES,
    SERVICEACCOUNTS,
    SERVICES,
    Kind,
)
from controlplane.kube.types import PlainObject, RuntimeObject
from controlplane.runtimecontroller.storage import storage
from controlplane.runtimecontroller.template import (
    CA_CONFIG_MAP,
    PORT,
    PORT_NAME,
    RUNTIME_LABEL,
    Settings,
    pod_template,
)

MANAGER: Final = "kruntimes"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"  # as the chart labels gateways and control planes
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
SELECTOR: Final = f"{MANAGED_BY}={MANAGER}"  # of everything made here


def _plain(kind: Kind[Any]) -> Kind[PlainObject]:
    """The kind with its answers read only as far as their metadata."""
    return Kind(kind.group, kind.version, kind.plural, kind.kind, PlainObject)


CONFIG_MAP, ACCOUNT, ROLE = _plain(_CONFIGMAPS), _plain(SERVICEACCOUNTS), _plain(ROLES)
BINDING, SERVICE, DEPLOYMENT = _plain(ROLEBINDINGS), _plain(SERVICES), _plain(DEPLOYMENTS)
NETWORK_POLICY: Final = NETWORKPOLICIES
IDENTITY: Final = (BINDING, ROLE, ACCOUNT)  # in the order in which they go
KINDS: Final = (CONFIG_MAP, ACCOUNT, ROLE, BINDING, SERVICE, DEPLOYMENT)


def kinds(settings: Settings) -> tuple[Kind[PlainObject], ...]:
    """The kinds of which a Runtime needs an object, or must have none."""
    return (*KINDS, NETWORK_POLICY) if settings.network_policy else KINDS


class Wanted(msgspec.Struct, frozen=True):
    """One object to apply."""

    kind: Kind[PlainObject]
    name: str
    body: dict[str, Any]


def object_name(runtime: str) -> str:
    """The name of a Runtime's ServiceAccount, Role, RoleBinding, Service and Deployment."""
    return f"runtime-{runtime}"


def wanted_objects(runtime: RuntimeObject, settings: Settings) -> tuple[Wanted, ...]:
    """Everything that a Runtime needs, in the order in which it is needed. Its template has no `problems`."""
    name = object_name(runtime.metadata.name)
    role_ref = {"apiGroup": ROLES.group, "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": runtime.metadata.namespace}
    ports = [{"name": PORT_NAME, "port": PORT, "targetPort": PORT, "protocol": "TCP"}]
    service = {"selector": {RUNTIME_LABEL: runtime.metadata.name}, "ports": ports}
    policy = {"spec": _network_policy(runtime.metadata.name, settings.system_namespace)}
    return (
        _ca(runtime, settings),
        _named(ACCOUNT, runtime, {"automountServiceAccountToken": False}),
        _named(ROLE, runtime, {"rules": runtimed_rules()}),
        _named(BINDING, runtime, {"roleRef": role_ref, "subjects": [subject]}),
        *((_owned(NETWORK_POLICY, runtime, policy),) if settings.network_policy == "on" else ()),
        _owned(SERVICE, runtime, {"spec": service}),
        _owned(DEPLOYMENT, runtime, {"spec": _deployment(runtime, settings)}),
    )


def unwanted_objects(runtime: RuntimeObject, settings: Settings) -> tuple[tuple[Kind[PlainObject], str], ...]:
    """What an earlier installation with other settings may have made, and this one has not."""
    return ((NETWORK_POLICY, object_name(runtime.metadata.name)),) if settings.network_policy == "off" else ()


def _network_policy(name: str, system_namespace: str) -> dict[str, Any]:
    """Who reaches a Runtime's Pods: gateways and the control plane of this installation, and Pods of the same Runtime.

    Policies add up: whoever wants other ports of these Pods reached allows them with one of their own."""
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": system_namespace}}}
    ours = [
        {**system, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kruntimes", COMPONENT_LABEL: component}}}
        for component in ("gateway", "controlplane")
    ]
    same = {"matchLabels": {RUNTIME_LABEL: name}}
    return {
        "podSelector": same,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [*ours, {"podSelector": same}], "ports": [{"port": PORT, "protocol": "TCP"}]}],
    }


def _deployment(runtime: RuntimeObject, settings: Settings) -> dict[str, Any]:
    name = runtime.metadata.name
    return {
        "replicas": runtime.spec.replicas,
        "selector": {"matchLabels": {RUNTIME_LABEL: name}},
        "template": pod_template(
            name,
            runtime.spec.template,
            service_account=object_name(name),
            daemon_image=runtime.spec.daemon_image or settings.daemon_image,
            settings=settings,
            storage=storage(runtime, settings.source_cache),
        ),
        # A rollout never has fewer Pods than before: Runs move from a Pod that drains to one that is ready.
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "revisionHistoryLimit": 2,
    }


def runtimed_rules() -> list[dict[str, Any]]:
    """What a runtimed may do, in its own namespace."""
    return [
        {"apiGroups": ["kruntimes.io"], "resources": ["runs"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": ["kruntimes.io"], "resources": ["runs/status"], "verbs": ["patch"]},
        {"apiGroups": ["kruntimes.io"], "resources": ["runtimes"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    ]


def _ca(runtime: RuntimeObject, settings: Settings) -> Wanted:
    """The installation's root for the Pods of a namespace. All its Runtimes share it, so no single one owns it."""
    metadata = {"name": CA_CONFIG_MAP, "namespace": runtime.metadata.namespace, "labels": {MANAGED_BY: MANAGER}}
    body = {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": metadata,
        "data": {"ca.crt": settings.root_pem},
    }
    return Wanted(CONFIG_MAP, CA_CONFIG_MAP, body)


def _named(kind: Kind[PlainObject], runtime: RuntimeObject, fields: dict[str, Any]) -> Wanted:
    name = object_name(runtime.metadata.name)
    metadata = {
        "name": name,
        "namespace": runtime.metadata.namespace,
        "labels": {MANAGED_BY: MANAGER, RUNTIME_LABEL: runtime.metadata.name},
    }
    return Wanted(kind, name, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields})


def _owned(kind: Kind[PlainObject], runtime: RuntimeObject, fields: dict[str, Any]) -> Wanted:
    wanted = _named(kind, runtime, fields)
    owner = {
        "apiVersion": runtime.api_version,
        "kind": runtime.kind,
        "name": runtime.metadata.name,
        "uid": runtime.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    wanted.body["metadata"]["ownerReferences"] = [owner]
    return wanted
