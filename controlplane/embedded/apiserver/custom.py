"""CustomResourceDefinitions: stored objects that make resources.

Lives here: a CRD to rows of the registry, its checks and status. May not live here: judging objects of a CRD
(`schema.py`). `definitions.py` serves the rows; the hooks are named by the CRD row of `builtin.py`.
"""

import datetime
from collections.abc import Callable
from typing import Any, Final

from controlplane.embedded.apiserver import columns, meta, names
from controlplane.embedded.apiserver.cel import RuleError
from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.kinds import Resource, Scale, reader
from controlplane.embedded.apiserver.schema import CompiledCRD, CompiledVersion

Object = dict[str, Any]

STORAGE: Final = "apiextensions.k8s.io/customresourcedefinitions"
CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"


def resources_of(crd: Object) -> list[Resource]:
    """The served versions of a CRD, the storage version first. Raises ValueError or RuleError where it cannot be."""
    compiled = CompiledCRD.compile(crd)
    spec = crd["spec"]
    versions = sorted(spec["versions"], key=lambda version: not version.get("storage"))
    return [_resource(spec, compiled.versions[version["name"]]) for version in versions if version.get("served")]


def _resource(spec: Object, version: CompiledVersion) -> Resource:
    accepted = spec["names"]
    scale = version.scale
    api_version = f"{spec['group']}/{version.name}"
    return Resource(
        group=spec["group"],
        version=version.name,
        plural=accepted["plural"],
        kind=accepted["kind"],
        singular=accepted.get("singular") or accepted["kind"].lower(),
        list_kind=accepted.get("listKind") or f"{accepted['kind']}List",
        short_names=tuple(accepted.get("shortNames") or ()),
        categories=tuple(accepted.get("categories") or ()),
        namespaced=spec["scope"] == "Namespaced",
        status=version.has_status,
        scale=None
        if scale is None
        else Scale(scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", "")),
        custom=True,
        generation=True,
        fields={path.removeprefix("."): reader(path) for path in version.selectable_fields},
        columns=tuple(columns.printer_column(column) for column in version.printer_columns),
        schema=version,
        decoded=_converter(api_version) if len(spec["versions"]) > 1 else None,
        encoded=_converter(f"{spec['group']}/{_storage_version(spec)}") if len(spec["versions"]) > 1 else None,
    )


def _storage_version(spec: Object) -> str:
    return str(next(version["name"] for version in spec["versions"] if version.get("storage")))


def _converter(api_version: str) -> Callable[[Object], Object]:
    """Conversion strategy None: only the version's name changes."""
    return lambda item: {**item, "apiVersion": api_version}


def prepare(item: Object, old: Object | None) -> None:
    """Defaults of a CRD and its status, which here follows at once: there is nobody else to wait for."""
    spec = item.get("spec")
    if not isinstance(spec, dict):
        return
    accepted = spec.get("names")
    if not isinstance(accepted, dict):
        return
    kind = accepted.get("kind")
    if isinstance(kind, str) and kind:
        accepted.setdefault("singular", kind.lower())
        accepted.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})
    item["metadata"].setdefault("finalizers", [])
    deleting = item["metadata"].get("deletionTimestamp")
    if not deleting and CLEANUP not in item["metadata"]["finalizers"]:
        item["metadata"]["finalizers"].append(CLEANUP)
    item["status"] = _status(item, old)


def _status(item: Object, old: Object | None) -> Object:
    before = (old or {}).get("status") or {}
    if before.get("conditions"):
        conditions = before["conditions"]
    else:
        since = item["metadata"].get("creationTimestamp") or meta.timestamp(datetime.datetime.now(datetime.UTC))
        conditions = [
            _condition("NamesAccepted", "NoConflicts", "no conflicts found", since),
            _condition("Established", "InitialNamesAccepted", "the initial names have been accepted", since),
        ]
    stored = [v["name"] for v in item["spec"].get("versions") or () if v.get("storage") and v.get("name")]
    seen = [*(before.get("storedVersions") or ())]
    return {
        "conditions": conditions,
        "acceptedNames": item["spec"]["names"],
        "storedVersions": [*seen, *(version for version in stored if version not in seen)],
    }


def _condition(name: str, reason: str, message: str, since: str) -> Object:
    return {"type": name, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}


def check(item: Object, old: Object | None) -> list[Cause]:
    """What Kubernetes asks of a CRD before it serves it, and that its schema and rules compile."""
    spec = item.get("spec")
    if not isinstance(spec, dict):
        return [Cause("FieldValueRequired", "Required value", "spec")]
    causes = _wrong_names(item, spec)
    versions = spec.get("versions")
    if not isinstance(versions, list) or not versions:
        return [*causes, Cause("FieldValueRequired", "Required value", "spec.versions")]
    if sum(bool(version.get("storage")) for version in versions) != 1:
        message = "Invalid value: must have exactly one version marked as storage version"
        causes.append(Cause("FieldValueInvalid", message, "spec.versions"))
    for index, version in enumerate(versions):
        if not (version.get("schema") or {}).get("openAPIV3Schema"):
            message = "Required value: schemas are required"
            causes.append(Cause("FieldValueRequired", message, f"spec.versions[{index}].schema.openAPIV3Schema"))
    strategy = (spec.get("conversion") or {}).get("strategy")
    if strategy != "None":
        message = f'Unsupported value: "{strategy}": supported values: "None"'
        causes.append(Cause("FieldValueNotSupported", message, "spec.conversion.strategy"))
    if old is not None and old["spec"].get("scope") != spec.get("scope"):
        causes.append(Cause("FieldValueInvalid", "Invalid value: field is immutable", "spec.scope"))
    if not causes:
        try:
            resources_of(item)
        except (RuleError, ValueError, KeyError, TypeError, AttributeError) as error:
            causes.append(Cause("FieldValueInvalid", f"Invalid value: {error}", "spec.versions"))
    return causes


def _wrong_names(item: Object, spec: Object) -> list[Cause]:
    causes: list[Cause] = []
    accepted = spec.get("names") if isinstance(spec.get("names"), dict) else {}
    for path, value in (
        ("spec.group", spec.get("group")),
        ("spec.names.plural", accepted.get("plural") if isinstance(accepted, dict) else None),
        ("spec.names.kind", accepted.get("kind") if isinstance(accepted, dict) else None),
    ):
        if not isinstance(value, str) or not value:
            causes.append(Cause("FieldValueRequired", "Required value", path))
        elif path != "spec.names.kind":
            causes += [
                Cause("FieldValueInvalid", f'Invalid value: "{value}": {why}', path)
                for why in names.wrong_subdomain(value)
            ]
    if spec.get("scope") not in {"Namespaced", "Cluster"}:
        message = f'Unsupported value: "{spec.get("scope")}": supported values: "Cluster", "Namespaced"'
        causes.append(Cause("FieldValueNotSupported", message, "spec.scope"))
    if not causes and isinstance(accepted, dict):
        wanted = f"{accepted['plural']}.{spec['group']}"
        if item["metadata"].get("name") != wanted:
            message = f'Invalid value: "{item["metadata"].get("name")}": must be spec.names.plural+"."+spec.group'
            causes.append(Cause("FieldValueInvalid", message, "metadata.name"))
    return causes
