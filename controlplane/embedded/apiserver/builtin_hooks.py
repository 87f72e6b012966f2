"""What the API server fills in and refuses for single built-in kinds, beyond metadata and schema.

Lives here: defaults and checks as Kubernetes has them, for the kinds that an installation uses. May not live here: the
rows that name them (`builtin.py`). Each hook takes the object and the one before an update, or None.
"""

import base64
import binascii
from typing import Any

from controlplane.embedded.apiserver import errors, limits
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.field_checks import immutable, required, wrong_selector

Object = dict[str, Any]


def prepare_namespace(item: Object, old: Object | None) -> None:
    name = item["metadata"].get("name")
    if name:
        item["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
    if old is None:
        item["spec"] = {"finalizers": ["kubernetes"]}
        item["status"] = {"phase": "Active"}
    elif "spec" in old:
        item["spec"] = old["spec"]


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
    causes = [*immutable(item, old, "type"), *_frozen_data(item, old)]
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
    causes = required(item, "roleRef.kind", "roleRef.name")
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
        causes += wrong_selector(selector, f"aggregationRule.clusterRoleSelectors[{index}]")
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
    return required(item, "addressType") + immutable(item, old, "addressType")
