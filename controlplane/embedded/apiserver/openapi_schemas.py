"""What the objects of each served kind look like, for OpenAPI: custom ones by their CRD, built-in ones by their types.

Lives here: named definitions. May not live here: paths and documents, which are `openapi.py`. Fields of built-in kinds
are those of `core_types.txt`; documented are the kinds and their metadata.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from controlplane.embedded.apiserver import core_types
from controlplane.embedded.apiserver.core_types import Field
from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.schema import CompiledVersion

Object = dict[str, Any]
Reference = Callable[[str], str]

META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
SCALE: Final = "io.k8s.api.autoscaling.v1.Scale"
_OBJECT_META: Final = "meta.ObjectMeta"
_KEEPS: Final = "x-kubernetes-preserve-unknown-fields"

_SCALARS: Final[Mapping[str, Object]] = {
    "string": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "double": {"type": "number", "format": "double"},
    "bytes": {"type": "string", "format": "byte"},
    "Time": {"type": "string", "format": "date-time"},
    "MicroTime": {"type": "string", "format": "date-time"},
    "Quantity": {"type": "string"},
    "IntOrString": {"x-kubernetes-int-or-string": True},
    "ExtraValue": {"type": "array", "items": {"type": "string"}},
    "FieldsV1": {"type": "object", _KEEPS: True},
}
_ANYTHING: Final[Object] = {_KEEPS: True}
_DOCS: Final[Mapping[str, str]] = {
    "Namespace": "A Namespace divides names, permissions and everything that is in it.",
    "Pod": "A Pod is containers that run together on one node.",
    "Service": "A Service is one name and address for the Pods that its selector finds.",
    "ServiceAccount": "A ServiceAccount is an identity for processes.",
    "ConfigMap": "A ConfigMap holds configuration for Pods.",
    "Secret": "A Secret holds bytes that not everybody may read.",
    "Node": "A Node is a machine that runs Pods.",
    "Event": "An Event reports something that happened to an object.",
    "Endpoints": "Endpoints are the addresses of a Service. EndpointSlices replace them.",
    "EndpointSlice": "An EndpointSlice holds addresses of a Service, with what is known of each.",
    "Deployment": "A Deployment keeps a number of equal Pods and replaces them a few at a time.",
    "ReplicaSet": "A ReplicaSet keeps a number of equal Pods.",
    "Lease": "A Lease says who holds something, and until when.",
    "Role": "A Role is a set of permissions within a namespace.",
    "ClusterRole": "A ClusterRole is a set of permissions in every namespace.",
    "RoleBinding": "A RoleBinding grants a role within a namespace.",
    "ClusterRoleBinding": "A ClusterRoleBinding grants a ClusterRole everywhere.",
    "CustomResourceDefinition": "A CustomResourceDefinition makes the API server serve another kind.",
    "NetworkPolicy": "A NetworkPolicy says which Pods may talk. It is stored and not enforced here.",
    "PodDisruptionBudget": "A PodDisruptionBudget bounds how many Pods may be evicted at once.",
}
_META_DOCS: Final[Mapping[str, str]] = {
    "name": "Unique in its namespace among the objects of its kind. Never changes.",
    "generateName": "Beginning of a name that the server completes, where no name is given.",
    "namespace": "The namespace that the object is in.",
    "uid": "Identity of this object, over all time. Set by the server.",
    "resourceVersion": "Version of the object, for conditional writes and watches. Opaque.",
    "generation": "Counts changes of what is wanted.",
    "creationTimestamp": "When it was made. Set by the server.",
    "deletionTimestamp": "When its deletion was accepted, or will be complete. Set by the server.",
    "deletionGracePeriodSeconds": "How long its deletion may take. Set by the server.",
    "labels": "Names and values that selectors find objects by.",
    "annotations": "Names and values for tools.",
    "ownerReferences": "The objects that this one belongs to; it goes when the last of them is gone.",
    "finalizers": "Who must still let go before a deleted object is removed.",
    "managedFields": "Which manager owns which field.",
}


def definition_name(group: str, version: str, kind: str) -> str:
    """`io.k8s.api.apps.v1.Deployment`, `io.kruntimes.v1alpha1.Run`."""
    if not group or "." not in group or group.endswith(".k8s.io"):
        return f"io.k8s.api.{group.partition('.')[0] or 'core'}.{version}.{kind}"
    return ".".join([*reversed(group.split(".")), version, kind])


def definitions(served: Iterable[Resource], refer: Reference) -> dict[str, Object]:
    """The schemas of some resources, their lists, and all that these refer to; `refer` writes a reference to a name."""
    found: dict[str, Object] = _common(refer)
    for resource in served:
        gvk = {"group": resource.group, "kind": resource.kind, "version": resource.version}
        name = definition_name(resource.group, resource.version, resource.kind)
        schema = _object(resource, refer, found)
        found[name] = {**schema, "x-kubernetes-group-version-kind": [gvk]}
        if "list" in resource.verbs:
            listed = definition_name(resource.group, resource.version, resource.list_name)
            gvk = {**gvk, "kind": resource.list_name}
            found[listed] = {**_list(resource, refer(name), refer), "x-kubernetes-group-version-kind": [gvk]}
    return found


def _object(resource: Resource, refer: Reference, found: dict[str, Object]) -> Object:
    if isinstance(resource.schema, CompiledVersion):
        schema = resource.schema.schema
    else:
        message = core_types.message_of(resource.group, resource.kind)
        documented = _DOCS.get(resource.kind, f"{resource.kind} of {resource.api_version}.")
        schema = {**_message(message, refer, found), "description": documented}
    return {**schema, "properties": {**schema.get("properties", {}), **_server_fields(refer)}}


def _message(name: str, refer: Reference, found: dict[str, Object]) -> Object:
    known = core_types.message(name)
    if known is None:
        return {"type": "object", _KEEPS: True}
    return {
        "type": "object",
        "properties": {field: _field(kind, refer, found) for field, kind in known.named.items()},
    }


def _field(field: Field, refer: Reference, found: dict[str, Object]) -> Object:
    one = _type(field.type, refer, found)
    if field.repeated:
        return {"type": "array", "items": one}
    return {"type": "object", "additionalProperties": one} if field.mapped else one


def _type(name: str, refer: Reference, found: dict[str, Object]) -> Object:
    if core_types.message(name) is None:
        return dict(_SCALARS.get(name, _ANYTHING))
    package, _, kind = name.partition(".")
    defined = (
        f"{META}.{kind}" if package == "meta" else definition_name("" if package == "core" else package, "v1", kind)
    )
    if defined not in found:
        found[defined] = {}  # stands for itself while its own fields, which may refer to it, are written
        found[defined] = _message(name, refer, found)
    return {"allOf": [{"$ref": refer(defined)}]}


def _list(resource: Resource, item: str, refer: Reference) -> Object:
    fields = _server_fields(refer)
    items = {"type": "array", "description": "The objects.", "items": {"allOf": [{"$ref": item}]}}
    metadata = {"description": "Metadata of the list.", "allOf": [{"$ref": refer(f"{META}.ListMeta")}]}
    return {
        "type": "object",
        "description": f"A list of {resource.kind} objects.",
        "required": ["items"],
        "properties": {**fields, "metadata": metadata, "items": items},
    }


def _server_fields(refer: Reference) -> Object:
    return {
        "apiVersion": {"type": "string", "description": "Group and version of this representation of the object."},
        "kind": {"type": "string", "description": "Kind of the object."},
        "metadata": {
            "description": "Name, namespace, labels, annotations and what the server keeps about the object.",
            "allOf": [{"$ref": refer(f"{META}.ObjectMeta")}],
        },
    }


def _common(refer: Reference) -> dict[str, Object]:
    """What every document holds: metadata, and the bodies and answers that are no objects of a kind."""
    text = {"type": "string"}
    found: dict[str, Object] = {
        f"{META}.ListMeta": {
            "type": "object",
            "properties": {"continue": text, "remainingItemCount": dict(_SCALARS["int"]), "resourceVersion": text},
        },
        f"{META}.Status": {"type": "object", "description": "How a request ended.", _KEEPS: True},
        f"{META}.Patch": {"type": "object", "description": "A patch in one of the accepted formats.", _KEEPS: True},
    }
    _type(_OBJECT_META, refer, found)
    for name, doc in _META_DOCS.items():
        found[f"{META}.ObjectMeta"]["properties"][name]["description"] = doc
    _type("meta.DeleteOptions", refer, found)
    _type("autoscaling.Scale", refer, found)
    found[SCALE]["properties"] |= _server_fields(refer)
    return found
