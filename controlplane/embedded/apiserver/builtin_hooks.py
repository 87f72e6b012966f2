"""What the API server fills in and refuses for single built-in kinds, beyond metadata and schema.

Lives here: defaults and checks as Kubernetes has them, for the kinds that an installation uses. May not live here: the
rows that name them (`builtin.py`). Each hook takes the object and the one before an update, or None.
"""

import base64
import binascii
from typing import Any, Final

from controlplane.embedded.apiserver import errors, limits, meta, names
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.selectors import from_label_selector

Object = dict[str, Any]


def _required(item: Object, *paths: str) -> list[Cause]:
    causes: list[Cause] = []
    for path in paths:
        value: Any = item
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value in (None, "", [], {}):
            causes.append(Cause("FieldValueRequired", "Required value", path))
    return causes


def _immutable(item: Object, old: Object | None, *fields: str) -> list[Cause]:
    if old is None:
        return []
    changed = [field for field in fields if item.get(field) != old.get(field)]
    return [
        Cause("FieldValueInvalid", f"Invalid value: {item.get(field)!r}: field is immutable", field)
        for field in changed
    ]


def prepare_namespace(item: Object, old: Object | None) -> None:
    name = item["metadata"].get("name")
    if name:
        item["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
    if old is None:
        item["spec"] = {"finalizers": ["kubernetes"]}
        item["status"] = {"phase": "Active"}
    elif "spec" in old:
        item["spec"] = old["spec"]


_CONTAINER_DEFAULTS: Final = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_DEFAULTS: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def _default_container(container: Object) -> None:
    for name, value in _CONTAINER_DEFAULTS.items():
        container.setdefault(name, value)
    image = str(container.get("image") or "")
    latest = image.endswith(":latest") or ":" not in image.rpartition("/")[2]
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")
    for probe in (container[name] for name in _PROBES if container.get(name)):
        for name, number in _PROBE_DEFAULTS.items():
            probe.setdefault(name, number)


_VOLUME_MODES: Final = ("secret", "configMap", "projected", "downwardAPI")


def _default_pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        _default_container(container)
    for volume in spec.get("volumes") or ():
        for source in _VOLUME_MODES:
            if isinstance(volume.get(source), dict):
                volume[source].setdefault("defaultMode", 0o644)
        for projection in (volume.get("projected") or {}).get("sources") or ():
            if isinstance(projection.get("serviceAccountToken"), dict):
                projection["serviceAccountToken"].setdefault("expirationSeconds", limits.TOKEN_DEFAULT_SECONDS)


def prepare_pod(item: Object, old: Object | None) -> None:
    spec = item.setdefault("spec", {})
    _default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    account = spec.setdefault("serviceAccountName", spec.get("serviceAccount") or "default")
    spec.setdefault("serviceAccount", account)
    if old is None:
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        _add_tolerations(spec)
        item["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


_NODE_TROUBLES: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATED_SECONDS: Final = 300
"""How long a Pod that says nothing stays on a node that is not ready, as in Kubernetes."""


def _add_tolerations(spec: Object) -> None:
    tolerations = spec.setdefault("tolerations", [])
    for key in _NODE_TROUBLES:
        if not any(each.get("key") in {key, None, ""} and each.get("effect") != "NoSchedule" for each in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED_SECONDS}
            )


def _quality(spec: Object) -> str:
    resources = [container.get("resources") or {} for container in spec.get("containers") or ()]
    if not any(each.get("requests") or each.get("limits") for each in resources):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(each.get("limits") or ()) and each.get("requests", each["limits"]) == each["limits"]
        for each in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _wrong_pod_spec(spec: Object, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if not spec.get("containers"):
        causes.append(Cause("FieldValueRequired", "Required value", f"{path}.containers"))
    seen: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            where = f"{path}.{field}[{index}]"
            for name in ("name", "image"):
                if not container.get(name):
                    causes.append(Cause("FieldValueRequired", "Required value", f"{where}.{name}"))
            for why in names.wrong_label(container["name"]) if container.get("name") else ():
                message = f'Invalid value: "{container["name"]}": {why}'
                causes.append(Cause("FieldValueInvalid", message, f"{where}.name"))
            if container.get("name") in seen:
                message = f'Duplicate value: "{container["name"]}"'
                causes.append(Cause("FieldValueDuplicate", message, f"{where}.name"))
            seen.add(str(container.get("name")))
            causes += _wrong_mounts(container, spec, where)
    return causes


def _wrong_mounts(container: Object, spec: Object, where: str) -> list[Cause]:
    volumes = {volume.get("name") for volume in spec.get("volumes") or ()}
    return [
        Cause("FieldValueNotFound", f'Not found: "{mount.get("name")}"', f"{where}.volumeMounts[{index}].name")
        for index, mount in enumerate(container.get("volumeMounts") or ())
        if mount.get("name") not in volumes
    ]


def check_pod(item: Object, old: Object | None) -> list[Cause]:
    causes = _wrong_pod_spec(item["spec"], "spec")
    if old is not None and _fixed_pod_spec(item["spec"]) != _fixed_pod_spec(old["spec"]):
        message = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing"
            " tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        )
        causes.append(Cause("FieldValueForbidden", message, "spec"))
    return causes


def _fixed_pod_spec(spec: Object) -> Object:
    """What may not change of a Pod. `nodeName` may once be set: the node does it itself here."""
    fixed = {k: v for k, v in spec.items() if k not in {"activeDeadlineSeconds", "tolerations", "nodeName"}}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{k: v for k, v in each.items() if k != "image"} for each in fixed[field]]
    return fixed


def prepare_workload(item: Object, old: Object | None) -> None:
    spec = item.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    if isinstance(spec.get("template"), dict):
        _default_pod_spec(spec["template"].setdefault("spec", {}))
    if item["kind"] == "Deployment":
        strategy = spec.setdefault("strategy", {})
        if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)


def _wrong_selector(selector: Object, path: str) -> list[Cause]:
    try:
        from_label_selector(selector)
    except ValueError as error:
        return [Cause("FieldValueInvalid", f"Invalid value: {error}", path)]
    return []


def check_workload(item: Object, old: Object | None) -> list[Cause]:
    causes = _required(item, "spec.selector", "spec.template")
    if causes:
        return causes
    spec = item["spec"]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    causes = _wrong_selector(spec["selector"], "spec.selector")
    if causes:
        return causes
    if not all(requirement.matches(labels) for requirement in from_label_selector(spec["selector"])):
        message = f"Invalid value: {errors.shown(labels)}: `selector` does not match template `labels`"
        causes.append(Cause("FieldValueInvalid", message, "spec.template.metadata.labels"))
    if old is not None and spec["selector"] != old["spec"]["selector"]:
        message = f"Invalid value: {errors.shown(spec['selector'])}: field is immutable"
        causes.append(Cause("FieldValueInvalid", message, "spec.selector"))
    causes += meta.wrong_labels(labels, "spec.template.metadata.labels")
    return causes + _wrong_pod_spec(spec["template"]["spec"], "spec.template.spec")


def prepare_service(item: Object, old: Object | None) -> None:
    """Services here have no virtual address: they select Pods, and their EndpointSlices say where those are."""
    spec = item.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["type"] != "ExternalName":
        spec.setdefault("clusterIP", "None")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
        spec.setdefault("internalTrafficPolicy", "Cluster")
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if "port" in port:
            port.setdefault("targetPort", port["port"])


def check_service(item: Object, old: Object | None) -> list[Cause]:
    causes: list[Cause] = []
    ports = item["spec"].get("ports") or []
    for index, port in enumerate(ports):
        number = port.get("port")
        if not isinstance(number, int) or not 1 <= number <= 65535:
            message = f"Invalid value: {number}: must be between 1 and 65535, inclusive"
            causes.append(Cause("FieldValueInvalid", message, f"spec.ports[{index}].port"))
        if len(ports) > 1 and not port.get("name"):
            causes.append(Cause("FieldValueRequired", "Required value", f"spec.ports[{index}].name"))
    return causes


def prepare_secret(item: Object, old: Object | None) -> None:
    item.setdefault("type", "Opaque")
    plain = item.pop("stringData", None)
    if isinstance(plain, dict):
        encoded = {name: base64.b64encode(str(value).encode()).decode() for name, value in plain.items()}
        item["data"] = {**(item.get("data") or {}), **encoded}


def check_secret(item: Object, old: Object | None) -> list[Cause]:
    causes = [*_immutable(item, old, "type"), *_frozen_data(item, old)]
    size = 0
    for name, value in (item.get("data") or {}).items():
        try:
            size += len(base64.b64decode(value or "", validate=True))
        except (binascii.Error, ValueError):
            raise errors.bad_request(
                f'Secret in version "v1" cannot be handled as a Secret: data.{name}: illegal base64 data'
            ) from None
    return causes + _too_large(size)


def check_config_map(item: Object, old: Object | None) -> list[Cause]:
    size = sum(
        len(str(value).encode()) for field in ("data", "binaryData") for value in (item.get(field) or {}).values()
    )
    wrong = [
        Cause("FieldValueTypeInvalid", f"Invalid value: {value!r}: must be a string", f"data.{name}")
        for name, value in (item.get("data") or {}).items()
        if not isinstance(value, str)
    ]
    return wrong + _frozen_data(item, old) + _too_large(size)


def _too_large(size: int) -> list[Cause]:
    if size <= limits.CONFIG_DATA_MAX_BYTES:
        return []
    return [Cause("FieldValueTooLong", f"Too long: may not be more than {limits.CONFIG_DATA_MAX_BYTES} bytes", "data")]


def _frozen_data(item: Object, old: Object | None) -> list[Cause]:
    """`immutable: true` closes the data of ConfigMaps and Secrets for good."""
    if old is None or not old.get("immutable"):
        return []
    fields = ("data", "binaryData", "immutable")
    return [
        Cause("FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", field)
        for field in fields
        if item.get(field) != old.get(field)
    ]


def check_binding(item: Object, old: Object | None) -> list[Cause]:
    causes = _required(item, "roleRef.kind", "roleRef.name")
    if old is not None and item.get("roleRef") != old.get("roleRef"):
        message = f"Invalid value: {errors.shown(item.get('roleRef'))}: cannot change roleRef"
        causes.append(Cause("FieldValueInvalid", message, "roleRef"))
    for index, subject in enumerate(item.get("subjects") or ()):
        if subject.get("kind") not in {"User", "Group", "ServiceAccount"}:
            message = f'Unsupported value: "{subject.get("kind")}": supported values: "ServiceAccount", "User", "Group"'
            causes.append(Cause("FieldValueNotSupported", message, f"subjects[{index}].kind"))
        if not subject.get("name"):
            causes.append(Cause("FieldValueRequired", "Required value", f"subjects[{index}].name"))
    return causes


def prepare_binding(item: Object, old: Object | None) -> None:
    group = "rbac.authorization.k8s.io"
    if isinstance(item.get("roleRef"), dict):
        item["roleRef"].setdefault("apiGroup", group)
    for subject in item.get("subjects") or ():
        if subject.get("kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", group)


def check_role(item: Object, old: Object | None) -> list[Cause]:
    causes: list[Cause] = []
    selectors = (item.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    for index, selector in enumerate(selectors):
        causes += _wrong_selector(selector, f"aggregationRule.clusterRoleSelectors[{index}]")
    for index, rule in enumerate(item.get("rules") or ()):
        if not rule.get("verbs"):
            message = "Required value: verbs must contain at least one value"
            causes.append(Cause("FieldValueRequired", message, f"rules[{index}].verbs"))
        if rule.get("nonResourceURLs"):
            continue
        for field in ("apiGroups", "resources"):
            if not rule.get(field):
                message = f"Required value: resource rules must supply at least one {field[:-1]}"
                causes.append(Cause("FieldValueRequired", message, f"rules[{index}].{field}"))
    return causes


def check_event(item: Object, old: Object | None) -> list[Cause]:
    """An Event lies in the namespace of its object; those of cluster-wide objects in `default` or `kube-system`."""
    namespace = (item.get("involvedObject") or {}).get("namespace") or ""
    allowed = {namespace} if namespace else {"default", "kube-system"}
    if item["metadata"].get("namespace") not in allowed:
        message = f'Invalid value: "{namespace}": does not match event.namespace'
        return [Cause("FieldValueInvalid", message, "involvedObject.namespace")]
    return []


def check_endpoint_slice(item: Object, old: Object | None) -> list[Cause]:
    return _required(item, "addressType") + _immutable(item, old, "addressType")
