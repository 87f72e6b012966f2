"""OpenAPI of what is served: version 3 by group, and version 2 as a whole for older clients.

Lives here: operations and documents, encoded once for each state of the registry. May not live here: the schemas of
objects (`openapi_schemas.py`), the protobuf form of version 2 (`openapi_protobuf.py`). `server.py` answers with a
`Document`.

kubectl reads from it what `explain` prints, and whether the server validates fields and supports dry runs. Strategic
merge patches are served and not announced: kubectl then plans them by its own types, which know more fields than we do.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.openapi_protobuf import encode
from controlplane.embedded.apiserver.openapi_schemas import META, SCALE, definition_name, definitions
from controlplane.embedded.apiserver.registry import Registry

Object = dict[str, Any]

JSON: Final = "application/json"
PROTOBUF_V2: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""As Kubernetes answers; clients ask for it with `@` before `v1.0`."""

_PATCHES: Final = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_WRITE_PARAMETERS: Final = {
    "dryRun": "All: do everything but store.",
    "fieldManager": "Who writes; required to apply.",
    "fieldValidation": "What an unknown field does: Ignore, Warn or Strict.",
}
_LIST_PARAMETERS: Final = {
    "labelSelector": "Only objects with these labels.",
    "fieldSelector": "Only objects with these values of selectable fields.",
    "resourceVersion": "Not older than this, or from here on.",
    "watch": "Stream changes instead of a list.",
}
_INFO: Final = {"title": "kruntimes embedded Kubernetes API", "version": "v1"}


class Document(msgspec.Struct, frozen=True):
    """An encoded document; `etag` (without quotes) changes exactly when the body does."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, body: bytes, media_type: str = JSON) -> "Document":
        return cls(body, media_type, hashlib.sha256(body).hexdigest().upper())


class Operation(msgspec.Struct, frozen=True):
    """One method of one path, before it is written in either version."""

    path: str
    method: str
    action: str
    resource: Resource
    answer: str
    query: Mapping[str, str] = {}
    body: str = ""
    consumes: tuple[str, ...] = (JSON,)

    @property
    def identity(self) -> Object:
        """What kubectl finds an operation by."""
        resource = self.resource
        return {
            "x-kubernetes-action": self.action,
            "x-kubernetes-group-version-kind": {
                "group": resource.group,
                "kind": resource.kind,
                "version": resource.version,
            },
        }

    @property
    def id(self) -> str:
        """Unique in a document, as the format asks."""
        words = self.path.replace("{", "").replace("}", "").replace(".", "/").replace("-", "/").split("/")
        return self.method + "".join(word.capitalize() for word in words if word)


class OpenAPI:
    """The documents, made when first asked for and kept until the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._documents: dict[str, Document] = {}

    def index(self) -> Document:
        """`/openapi/v3`: where each group's document is; its hash is in the URL, so that it may be kept for ever."""
        return self._kept("index", self._index)

    def group(self, path: str) -> Document | None:
        """`/openapi/v3/<path>`, where path is `api/v1` or `apis/<group>/<version>`; None for what is not served."""
        served = self._served().get(path)
        if served is None:
            return None
        return self._kept(path, lambda: Document.of(msgspec.json.encode(openapi_v3(served))))

    def version_2(self, *, protobuf: bool) -> Document:
        """`/openapi/v2`, as JSON or in the form that kubectl asks for."""
        if protobuf:
            return self._kept("v2.pb", lambda: Document.of(openapi_v2_protobuf(self._registry.all()), PROTOBUF_V2))
        return self._kept("v2", lambda: Document.of(msgspec.json.encode(openapi_v2(self._registry.all()))))

    def _index(self) -> Document:
        hashes = {path: document.etag for path in self._served() if (document := self.group(path))}
        return Document.of(msgspec.json.encode(openapi_v3_index(hashes)))

    def _served(self) -> dict[str, list[Resource]]:
        return {
            group_path(group, version): self._registry.of_version(group, version)
            for group, versions in self._registry.groups().items()
            for version in versions
        }

    def _kept(self, name: str, make: Callable[[], Document]) -> Document:
        if self._generation != self._registry.generation:
            self._documents.clear()
            self._generation = self._registry.generation
        if name not in self._documents:
            self._documents[name] = make()
        return self._documents[name]


def group_path(group: str, version: str) -> str:
    """`api/v1`, `apis/apps/v1`."""
    return f"apis/{group}/{version}" if group else f"api/{version}"


def openapi_v3_index(hashes: Mapping[str, str]) -> Object:
    """The index, from group paths to the hashes of their documents."""
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"} for path, digest in sorted(hashes.items())
        }
    }


def openapi_v3(served: Sequence[Resource]) -> Object:
    """The document of one group version, whose resources are given."""
    paths: dict[str, Object] = {}
    for operation in _operations(served):
        paths.setdefault(operation.path, _path_item_v3(operation.path))[operation.method] = _operation_v3(operation)
    return {
        "openapi": "3.0.0",
        "info": _INFO,
        "paths": paths,
        "components": {"schemas": definitions(served, _refer_v3)},
    }


def openapi_v2(served: Sequence[Resource]) -> Object:
    """One document of everything. Version 2 has no unions and no defaults worth their bytes: bounds are left out."""
    paths: dict[str, Object] = {}
    for operation in _operations(served):
        item = paths.setdefault(operation.path, {"parameters": _path_parameters(operation.path, _typed_v2)})
        item[operation.method] = _operation_v2(operation)
    schemas = definitions(served, _refer_v2)
    return {
        "swagger": "2.0",
        "info": _INFO,
        "paths": paths,
        "definitions": {name: _schema_v2(schema) for name, schema in schemas.items()},
    }


def openapi_v2_protobuf(served: Sequence[Resource]) -> bytes:
    """The same in protobuf, the only form that kubectl up to 1.27 asks for."""
    return encode(openapi_v2(served))


def _operations(served: Iterable[Resource]) -> Iterable[Operation]:
    for resource in served:
        base = f"/{group_path(resource.group, resource.version)}"
        place = f"{base}/namespaces/{{namespace}}" if resource.namespaced else base
        own = definition_name(resource.group, resource.version, resource.kind)
        listed = definition_name(resource.group, resource.version, resource.list_name)
        collection, item = f"{place}/{resource.plural}", f"{place}/{resource.plural}/{{name}}"
        if "list" in resource.verbs:
            yield Operation(collection, "get", "list", resource, listed, _LIST_PARAMETERS)
            if resource.namespaced:
                yield Operation(f"{base}/{resource.plural}", "get", "list", resource, listed, _LIST_PARAMETERS)
        if "create" in resource.verbs:
            yield Operation(collection, "post", "post", resource, own, _WRITE_PARAMETERS, own)
        if "get" in resource.verbs:
            yield from _item_operations(item, resource, own)
            if "delete" in resource.verbs:
                body = f"{META}.DeleteOptions"
                yield Operation(item, "delete", "delete", resource, f"{META}.Status", {}, body)
        if resource.status:
            yield from _item_operations(f"{item}/status", resource, own)
        if resource.scale:
            yield from _item_operations(f"{item}/scale", _SCALE, SCALE)


def _item_operations(path: str, resource: Resource, answer: str) -> Iterable[Operation]:
    yield Operation(path, "get", "get", resource, answer)
    yield Operation(path, "put", "put", resource, answer, _WRITE_PARAMETERS, answer)
    query = {**_WRITE_PARAMETERS, "force": "Take fields over from other managers when applying."}
    yield Operation(path, "patch", "patch", resource, answer, query, f"{META}.Patch", _PATCHES)


_SCALE: Final = Resource(group="autoscaling", version="v1", plural="scales", kind="Scale")


def _refer_v3(name: str) -> str:
    return f"#/components/schemas/{name}"


def _refer_v2(name: str) -> str:
    return f"#/definitions/{name}"


def _typed_v3(kind: str) -> Object:
    return {"schema": {"type": kind}}


def _typed_v2(kind: str) -> Object:
    return {"type": kind}


def _path_parameters(path: str, typed: Callable[[str], Object]) -> list[Object]:
    return [
        {"name": name, "in": "path", "required": True, "description": f"The {name} of the object.", **typed("string")}
        for name in ("namespace", "name")
        if f"{{{name}}}" in path
    ]


def _query_parameters(operation: Operation, typed: Callable[[str], Object]) -> list[Object]:
    return [
        {"name": name, "in": "query", "description": doc, **typed("string")} for name, doc in operation.query.items()
    ]


def _path_item_v3(path: str) -> Object:
    parameters = _path_parameters(path, _typed_v3)
    return {"parameters": parameters} if parameters else {}


def _operation_v3(operation: Operation) -> Object:
    answer = {"schema": {"$ref": _refer_v3(operation.answer)}}
    written: Object = {
        "description": f"{operation.action} {operation.resource.kind}",
        "operationId": operation.id,
        "parameters": _query_parameters(operation, _typed_v3),
        "responses": {"200": {"description": "OK", "content": {JSON: answer}}},
    }
    if operation.body:
        schema = {"schema": {"$ref": _refer_v3(operation.body)}}
        written["requestBody"] = {"content": dict.fromkeys(operation.consumes, schema), "required": True}
    return written | operation.identity


def _operation_v2(operation: Operation) -> Object:
    parameters = _query_parameters(operation, _typed_v2)
    if operation.body:
        schema = {"$ref": _refer_v2(operation.body)}
        parameters.append({"name": "body", "in": "body", "required": True, "schema": schema})
    return {
        "description": f"{operation.action} {operation.resource.kind}",
        "operationId": operation.id,
        "consumes": list(operation.consumes) if operation.body else [],
        "produces": [JSON],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "schema": {"$ref": _refer_v2(operation.answer)}}},
    } | operation.identity


_IN_V2: Final[tuple[str, ...]] = ("description", "type", "format", "required", "$ref")
_NOT_IN_V2: Final = frozenset({"x-kubernetes-validations", "x-kubernetes-int-or-string"})


def _schema_v2(schema: Object) -> Object:
    """A schema without what version 2 cannot say: a reference stands alone, unions and bounds go."""
    if "allOf" in schema:
        return {"$ref": schema["allOf"][0]["$ref"]}
    reduced: Object = {key: schema[key] for key in _IN_V2 if key in schema}
    reduced |= {
        key: value for key, value in schema.items() if key.startswith("x-kubernetes-") and key not in _NOT_IN_V2
    }
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": "string", "format": "int-or-string"} | reduced
    if schema.get("x-kubernetes-preserve-unknown-fields") and "properties" not in schema:
        reduced.pop("type", None)
    if "properties" in schema:
        reduced["properties"] = {name: _schema_v2(member) for name, member in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), dict):
        reduced["additionalProperties"] = _schema_v2(schema["additionalProperties"])
    if "items" in schema:
        reduced["items"] = _schema_v2(schema["items"])
    return reduced
