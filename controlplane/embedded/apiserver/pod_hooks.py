"""Pods and what makes Pods: defaults and checks of Pod specs, Deployments and ReplicaSets.

Lives here: hooks as in `builtin_hooks.py`. May not live here: running Pods (the node does). `builtin.py` names them.
"""

from typing import Final

from controlplane.embedded.apiserver import errors, limits, meta, names
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.field_checks import required, wrong_selector
from controlplane.embedded.apiserver.kinds import Object
from controlplane.embedded.apiserver.selectors import from_label_selector

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


def check_workload(item: Object, old: Object | None) -> list[Cause]:
    causes = required(item, "spec.selector", "spec.template")
    if causes:
        return causes
    spec = item["spec"]
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    causes = wrong_selector(spec["selector"], "spec.selector")
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
