"""What the aggregated API says of itself: discovery and OpenAPI, which the API server makes part of its own.

Pure data by path. `server` answers with it; the embedded API server has the resources in its own documents.
"""

from typing import Any, Final

from controlplane.runlogs.api import GROUP, NDJSON, RESOURCES, SEGMENT, SUBRESOURCES, TAIL_MAX_LINES, VERSION

ROOT: Final = f"/apis/{GROUP}/{VERSION}"
_QUERIES: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "log": {
        "tailLines": ("integer", f"Only the last lines, at most {TAIL_MAX_LINES}."),
        "follow": ("boolean", "Go on until the Run has ended."),
        "cursor": ("string", "Only what came after the answer that ended with this cursor."),
        "invocation": ("string", "Only of the call with this id."),
    },
    "journal": {"writer": ("string", "controlplane (the default), runtimed (the owner's), or runtimed-<Pod UID>.")},
}
_PLACE: Final = {"namespace": "Namespace of the Run.", "name": "Name of the Run."}
_PRODUCES: Final = {"log": NDJSON, "journal": SEGMENT}
_INFO: Final = {"title": "kruntimes logs and journals", "version": VERSION}


def document(path: str) -> dict[str, Any] | None:
    """The document of a path; None for another path."""
    version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
    group = {"name": GROUP, "versions": [version], "preferredVersion": version}
    match path.rstrip("/"):
        case "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
        case found if found == f"/apis/{GROUP}":
            return {"kind": "APIGroup", "apiVersion": "v1", **group}
        case found if found == ROOT:
            resources = [dict(entry) for entry in RESOURCES]
            version_name = f"{GROUP}/{VERSION}"
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version_name, "resources": resources}
        case "/openapi/v2":
            return {"swagger": "2.0", "info": _INFO, "paths": _paths(2), "definitions": {}}
        case "/openapi/v3":
            return {"paths": {ROOT[1:]: {"serverRelativeURL": f"/openapi/v3{ROOT}"}}}
        case found if found == f"/openapi/v3{ROOT}":
            return {"openapi": "3.0.0", "info": _INFO, "paths": _paths(3)}
        case _:
            return None


def _paths(major: int) -> dict[str, Any]:
    return {
        f"{ROOT}/namespaces/{{namespace}}/runs/{{name}}/{subresource}": {"get": _operation(subresource, major)}
        for subresource in sorted(SUBRESOURCES)
    }


def _operation(subresource: str, major: int) -> dict[str, Any]:
    parameters = [_parameter(name, "path", "string", what, major) for name, what in _PLACE.items()]
    for name, (kind, what) in _QUERIES[subresource].items():
        parameters.append(_parameter(name, "query", kind, what, major))
    media = _PRODUCES[subresource]
    answer: dict[str, Any] = {"description": f"The {subresource} of the Run."}
    binary = {"type": "string", "format": "binary"}
    answer |= {"schema": binary} if major == 2 else {"content": {media: {"schema": binary}}}
    operation: dict[str, Any] = {
        "description": f"Read the {subresource} of a Run",
        "operationId": f"readLogsKruntimesIoV1alpha1NamespacedRun{subresource.capitalize()}",
        "parameters": parameters,
        "responses": {"200": answer, "401": {"description": "Unauthorized"}},
    }
    return operation | ({"produces": [media]} if major == 2 else {})


def _parameter(name: str, where: str, kind: str, what: str, major: int) -> dict[str, Any]:
    parameter: dict[str, Any] = {"name": name, "in": where, "description": what, "required": where == "path"}
    return parameter | ({"type": kind, "uniqueItems": True} if major == 2 else {"schema": {"type": kind}})
