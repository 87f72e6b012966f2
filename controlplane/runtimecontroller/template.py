"""The Pod template of a Runtime: what may not be in it, and what is added to it. Pure.

A user's fields are kept as they are. What kruntimes needs for itself (names of containers and volumes, folders,
labels, the identity) is reserved: a template that uses it is refused with a sentence that names the field.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from controlplane.runtimecontroller.storage import VOLUMES as STORAGE_VOLUMES
from controlplane.runtimecontroller.storage import Storage

RUNTIME_LABEL: Final = "kruntimes.io/runtime"
LABEL_PREFIX: Final = "kruntimes.io/"
OWN_AUDIENCES: Final = ("", "kruntimes")  # tokens by which a Pod's account is known to the API and to the signer
PORT: Final = 8443
PORT_NAME: Final = "runtimed"
RUNTIME_CONTAINER: Final = "runtime"
DAEMON_CONTAINER: Final = "runtimed"
CA_CONFIG_MAP: Final = "kruntimes-ca"

SOCKET_DIR: Final = "/run/kruntimes"
WORK_DIR: Final = "/work"
API_ACCESS_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
IDENTITY_DIR: Final = "/var/run/secrets/kruntimes"
CA_DIR: Final = "/etc/kruntimes"
JOURNAL_DIR: Final = "/var/lib/kruntimes/journal"  # seen by runtimed alone
JOURNAL_VOLUME: Final = "kruntimes-journal"
RESERVED_DIRS: Final = (SOCKET_DIR, WORK_DIR, API_ACCESS_DIR, IDENTITY_DIR, CA_DIR)
RESERVED_VOLUMES: Final = (
    "socket",
    "work",
    "api-access",
    "identity",
    "installation-ca",
    JOURNAL_VOLUME,
    *STORAGE_VOLUMES,
)

GRACE_S: Final = 330  # the longest invocation (300 s) and 30 s to move Runs and end
TOKEN_S: Final = 3_600  # the node renews a projected token at 80 % of this
UNREACHABLE_S: Final = 5  # a Pod on a lost node is replaced after this, so that no recovery takes longer than 120 s
LIVENESS_PERIOD_S: Final = 5
STARTUP_PERIOD_S: Final = 1
STARTUP_MAX_S: Final = 120  # a Runtime Server on a busy node; liveness is judged only after it
LIVENESS_GRACE_S: Final = 10  # a hung Runtime Server has no calls left to wait for
DAEMON_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}
OWNED_BY_GROUP: Final = {"fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch"}
"""Of a volume that runtimed writes to, as the user of its image; a template that says otherwise knows why."""
NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class Settings(msgspec.Struct, frozen=True):
    """What an installation gives every Runtime. `gateway_url` is empty when no gateway is installed, `source_cache` (a
    folder of the node) where each Pod is to have its own. `network_policy` is empty where nobody is a Pod."""

    daemon_image: str
    signer_url: str
    gateway_url: str
    root_pem: str
    source_cache: str = ""
    network_policy: Literal["", "on", "off"] = ""
    system_namespace: str = ""


def problems(template: Mapping[str, Any], service_account: str) -> list[str]:
    """One sentence for each reserved thing that the template uses; empty when it may be used."""
    spec: Mapping[str, Any] = template.get("spec") or {}
    containers: list[Mapping[str, Any]] = list(spec.get("containers") or ())
    found: list[str] = []
    if not containers or containers[0].get("name") != RUNTIME_CONTAINER:
        found.append(f"spec.template.spec.containers[0].name must be {RUNTIME_CONTAINER}")
    found += _container_problems("containers", containers)
    found += _container_problems("initContainers", list(spec.get("initContainers") or ()))
    for index, volume in enumerate(spec.get("volumes") or ()):
        if volume.get("name") in RESERVED_VOLUMES:
            found.append(f"spec.template.spec.volumes[{index}].name: {volume['name']} is reserved")
        for source in (volume.get("projected") or {}).get("sources") or ():
            token = source.get("serviceAccountToken")
            if token is not None and token.get("audience", "") in OWN_AUDIENCES:
                found.append(
                    f"spec.template.spec.volumes[{index}].projected: a token must have an audience that is neither "
                    "the API's own nor kruntimes: user code is not to be taken for runtimed"
                )
    for label in (template.get("metadata") or {}).get("labels") or {}:
        if label.startswith(LABEL_PREFIX):
            found.append(f"spec.template.metadata.labels: {label} is reserved")
    if spec.get("serviceAccountName", service_account) != service_account:
        found.append(f"spec.template.spec.serviceAccountName must be {service_account}, or absent")
    if spec.get("automountServiceAccountToken"):
        found.append("spec.template.spec.automountServiceAccountToken must be false: user code gets no API token")
    for name in ("shareProcessNamespace", "hostPID"):
        if spec.get(name):
            found.append(f"spec.template.spec.{name} must be false: user code could read runtimed's memory")
    own = (containers[0].get("securityContext") or {}) if containers else {}
    for path, context in (("containers[0].", own), ("", spec.get("securityContext") or {})):
        if context.get("runAsUser") == 0:
            found.append(
                f"spec.template.spec.{path}securityContext.runAsUser must not be 0: runtimed runs as that user"
            )
    if spec.get("restartPolicy", "Always") != "Always":
        found.append("spec.template.spec.restartPolicy must be Always")
    return found


def _container_problems(field: str, containers: Iterable[Mapping[str, Any]]) -> list[str]:
    found = []
    for index, container in enumerate(containers):
        path = f"spec.template.spec.{field}[{index}]"
        name = container.get("name")
        first = field == "containers" and index == 0
        if name == DAEMON_CONTAINER or (name == RUNTIME_CONTAINER and not first):
            found.append(f"{path}.name: {name} is reserved")
        for mount in container.get("volumeMounts") or ():
            if mount.get("name") in RESERVED_VOLUMES:
                found.append(f"{path}.volumeMounts: volume {mount['name']} is reserved")
            if first and _is_reserved_dir(str(mount.get("mountPath", ""))):
                found.append(f"{path}.volumeMounts: {mount['mountPath']} is reserved")
    return found


def _is_reserved_dir(path: str) -> bool:
    """Whether a mount would cover, or lie within, a folder of ours."""
    path = "/" + path.strip("/")
    return any(path == own or path.startswith(f"{own}/") or own.startswith(f"{path}/") for own in RESERVED_DIRS)


def pod_template(
    name: str,
    template: Mapping[str, Any],
    *,
    service_account: str,
    daemon_image: str,
    settings: Settings,
    storage: Storage,
) -> dict[str, Any]:
    """The template of a Runtime's Pods: the user's, with runtimed, volumes, identity and defaults added."""
    metadata: dict[str, Any] = dict(template.get("metadata") or {})
    spec: dict[str, Any] = dict(template.get("spec") or {})
    metadata["labels"] = {**(metadata.get("labels") or {}), RUNTIME_LABEL: name}
    runtime, *others = spec["containers"]
    spec["containers"] = [_runtime_container(runtime), *others]
    spec["initContainers"] = [
        _daemon_container(name, daemon_image, settings, storage, runtime.get("securityContext") or {}),
        *(spec.get("initContainers") or ()),
    ]
    spec["volumes"] = [*(spec.get("volumes") or ()), *_volumes(), *storage.volumes]
    spec["serviceAccountName"] = service_account
    spec["automountServiceAccountToken"] = False
    spec.setdefault("enableServiceLinks", False)  # a namespace's Services do not belong into the environment of calls
    spec.setdefault("terminationGracePeriodSeconds", GRACE_S)
    if storage.claims:
        spec["securityContext"] = {**OWNED_BY_GROUP, **(spec.get("securityContext") or {})}
    spec["tolerations"] = _tolerations(spec.get("tolerations") or ())
    return {"metadata": metadata, "spec": spec}


def _runtime_container(container: Mapping[str, Any]) -> dict[str, Any]:
    """The Runtime Server: it sees the socket and the work folder, and no credential."""
    mounts = [{"name": "socket", "mountPath": SOCKET_DIR}, {"name": "work", "mountPath": WORK_DIR}]
    probe = {
        "exec": {"command": ["krt-alive"]},
        "periodSeconds": LIVENESS_PERIOD_S,
        "timeoutSeconds": LIVENESS_PERIOD_S,
        "failureThreshold": 3,
        "terminationGracePeriodSeconds": LIVENESS_GRACE_S,
    }
    starting = {**probe, "periodSeconds": STARTUP_PERIOD_S, "failureThreshold": STARTUP_MAX_S // STARTUP_PERIOD_S}
    return {
        "startupProbe": starting,
        "livenessProbe": probe,
        **container,
        "volumeMounts": [*(container.get("volumeMounts") or ()), *mounts],
    }


def _daemon_container(
    name: str, image: str, settings: Settings, storage: Storage, beside: Mapping[str, Any]
) -> dict[str, Any]:
    """runtimed as a native sidecar: it starts before the Runtime Server and ends after it.

    Both write into the work folder, so it runs as the user that `beside`, the Runtime Server's context, names.
    """
    user = {field: beside[field] for field in ("runAsUser", "runAsGroup") if field in beside}
    fields = {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_UID": "metadata.uid",
        "POD_IP": "status.podIP",
    }
    values = {
        "KRUNTIMES_RUNTIME": name,
        "KRUNTIMES_SIGNER_URL": settings.signer_url,
        "KRUNTIMES_GATEWAY_URL": settings.gateway_url,
        "KRUNTIMES_JOURNAL_DIR": JOURNAL_DIR,
        **storage.env,
    }
    return {
        "name": DAEMON_CONTAINER,
        "image": image,
        "restartPolicy": "Always",
        "env": [
            *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()),
            *({"name": key, "value": value} for key, value in values.items() if value),
        ],
        "ports": [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}],
        "readinessProbe": {
            "exec": {"command": ["cat", f"{WORK_DIR}/ready"]},
            "periodSeconds": 1,
            "failureThreshold": 1,
        },
        "securityContext": {**DAEMON_SECURITY, **user},
        "volumeMounts": [
            {"name": "socket", "mountPath": SOCKET_DIR},
            {"name": "work", "mountPath": WORK_DIR},
            {"name": "api-access", "mountPath": API_ACCESS_DIR, "readOnly": True},
            {"name": "identity", "mountPath": IDENTITY_DIR, "readOnly": True},
            {"name": "installation-ca", "mountPath": CA_DIR, "readOnly": True},
            {"name": JOURNAL_VOLUME, "mountPath": JOURNAL_DIR},
            *storage.mounts,
        ],
    }


def _volumes() -> list[dict[str, Any]]:
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    root = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    api_access = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_S}},
        {"configMap": root},
        {"downwardAPI": {"items": [namespace]}},
    ]
    identity = [{"serviceAccountToken": {"path": "token", "audience": "kruntimes", "expirationSeconds": TOKEN_S}}]
    return [
        {"name": "socket", "emptyDir": {}},
        {"name": "work", "emptyDir": {}},
        {"name": "api-access", "projected": {"sources": api_access}},
        {"name": "identity", "projected": {"sources": identity}},
        {"name": "installation-ca", "configMap": {"name": CA_CONFIG_MAP}},
        {"name": JOURNAL_VOLUME, "emptyDir": {}},
    ]


def _tolerations(own: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The user's, and five seconds for a lost node where they say nothing of it."""
    own = list(own)
    named = {toleration.get("key") for toleration in own}
    ours = [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_S}
        for taint in NODE_TAINTS
        if taint not in named
    ]
    return [*own, *ours]
