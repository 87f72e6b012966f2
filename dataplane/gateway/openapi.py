"""The gateway's interface as OpenAPI 3.0, made of the same reasons, limits and patterns that the code keeps.

Here: the document as data. `scripts/generate` writes it to docs/gateway-openapi.yaml; `scripts/fuzz-gateway` has
schemathesis hold the running gateway to it. Nothing at run time reads it.
"""

from collections import defaultdict
from http import HTTPStatus
from typing import Any, Final

from dataplane.gateway import request
from dataplane.gateway.answer import RETRY_AFTER_S
from runtimes.contract.limits import (
    INVOCATION_ID_MAX_BYTES,
    INVOKE_BODY_MAX_BYTES,
    INVOKE_RESULT_MAX_BYTES,
    INVOKE_TIMEOUT_DEFAULT_MS,
    INVOKE_TIMEOUT_MAX_MS,
    INVOKE_TIMEOUT_MIN_MS,
)
from statemachine.reasons import Reason

INVOKE_PATH: Final = "/v1/namespaces/{namespace}/runtimes/{runtime}/runs/{uid}:invoke"
_RETRY: Final = frozenset({429, 503})
_CLOSED_ONLY: Final = frozenset({417, 501, 505})
"""What only a request can provoke that no OpenAPI client sends."""


def document() -> dict[str, Any]:
    """The whole description."""
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "kruntimes gateway",
            "version": "v1",
            "description": "Invokes functions. Where a Run is called stands in its status.endpoint. Every error is a "
            "Kubernetes Status; docs/reasons.md lists the reasons.",
        },
        "paths": {
            INVOKE_PATH: {"parameters": _path_parameters(), "post": _invoke()},
            "/livez": {"get": _page("livez", "The process is alive.", {"200"})},
            "/readyz": {"get": _page("readyz", "Whether new clients should be sent here.", {"200", "503"})},
        },
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the cluster, audience kruntimes or the API's own. A client certificate "
                    "of the cluster's client CA is taken too.",
                }
            },
            "schemas": {"Result": _RESULT, "Status": _status_schema()},
            "headers": _HEADERS,
        },
    }


def _path_parameters() -> list[dict[str, Any]]:
    patterns = {"namespace": request.NAMESPACE, "runtime": request.RUNTIME, "uid": request.UID}
    said = {
        "namespace": "Namespace of the Run.",
        "runtime": "Its spec.runtime.",
        "uid": "Its metadata.uid: a new Run of the same name is never reached by an old URL.",
    }
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": said[name],
            "schema": {"type": "string", "pattern": f"^{pattern}$"},
        }
        for name, pattern in patterns.items()
    ]


def _invoke() -> dict[str, Any]:
    return {
        "operationId": "invoke",
        "summary": "Call a function once.",
        "description": f"The body is at most {INVOKE_BODY_MAX_BYTES} bytes of UTF-8; an empty one is {{}}. A call is "
        "never sent twice: an error with `retryable` true says that it did not run.",
        "security": [{"token": []}],
        "parameters": [
            {
                "name": "X-Kruntime-Invocation-ID",
                "in": "header",
                "description": "Names this call in logs and answers; made when absent.",
                "schema": {"type": "string", "pattern": f"^[\\x21-\\x7e]{{1,{INVOCATION_ID_MAX_BYTES}}}$"},
            },
            {
                "name": "X-Kruntime-Timeout-Ms",
                "in": "header",
                "description": "The call is ended after this; then 504.",
                "schema": {
                    "type": "integer",
                    "minimum": INVOKE_TIMEOUT_MIN_MS,
                    "maximum": INVOKE_TIMEOUT_MAX_MS,
                    "default": INVOKE_TIMEOUT_DEFAULT_MS,
                },
            },
            {
                "name": "traceparent",
                "in": "header",
                "description": "W3C trace context; a bad one starts a new trace.",
                "schema": {"type": "string"},
            },
        ],
        "requestBody": {
            "description": "Any JSON value: what the handler gets.",
            "content": {"application/json": {"schema": {}}},
        },
        "responses": {
            "200": {
                "description": f"What the handler returned, at most {INVOKE_RESULT_MAX_BYTES} bytes.",
                "headers": _headers("X-Kruntime-Invocation-ID", "Server-Timing"),
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Result"}}},
            },
            **{str(status): _failure(status, reasons) for status, reasons in sorted(_reasons().items())},
        },
    }


def _reasons() -> dict[int, list[Reason]]:
    by_status: dict[int, list[Reason]] = defaultdict(list)
    for reason in Reason:
        status = reason.info.http_status
        if status and status not in _CLOSED_ONLY:
            by_status[status].append(reason)
    return by_status


def _failure(status: int, reasons: list[Reason]) -> dict[str, Any]:
    names = ["X-Kruntime-Invocation-ID"]
    if status in _RETRY:
        names.append("Retry-After")
    if status == HTTPStatus.UNAUTHORIZED:
        names.append("WWW-Authenticate")
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        names.append("Allow")
    return {
        "description": "\n".join(f"- {reason.value}: {reason.info.sentence}" for reason in reasons),
        "headers": _headers(*names),
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}},
    }


def _page(name: str, summary: str, statuses: set[str]) -> dict[str, Any]:
    def response() -> dict[str, Any]:
        return {"description": summary, "content": {"text/plain; charset=utf-8": {"schema": {"type": "string"}}}}

    return {
        "operationId": name,
        "summary": summary,
        "responses": {status: response() for status in sorted(statuses)},
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _status_schema() -> dict[str, Any]:
    reasons = sorted(reason.value for reason in Reason if reason.info.http_status)
    return {
        "type": "object",
        "description": "A Kubernetes Status, and what we add to it.",
        "required": ["kind", "apiVersion", "status", "reason", "code", "message", "kruntimes"],
        "properties": {
            "kind": {"type": "string", "enum": ["Status"]},
            "apiVersion": {"type": "string", "enum": ["v1"]},
            "metadata": {"type": "object"},
            "status": {"type": "string", "enum": ["Failure"]},
            "reason": {"type": "string", "enum": reasons},
            "code": {"type": "integer"},
            "message": {"type": "string", "minLength": 1},
            "details": {
                "type": "object",
                "description": "What of it is known.",
                "properties": {
                    "name": {"type": "string"},
                    "group": {"type": "string"},
                    "kind": {"type": "string"},
                    "uid": {"type": "string"},
                    "retryAfterSeconds": {"type": "integer", "minimum": RETRY_AFTER_S},
                    "causes": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"reason": {"type": "string"}, "message": {"type": "string"}},
                        },
                    },
                },
            },
            "kruntimes": {
                "type": "object",
                "required": ["hop", "invocationId", "retryable"],
                "properties": {
                    "hop": {"type": "string", "enum": ["gateway", "runtimed", "peer", "runtime", "worker"]},
                    "invocationId": {"type": "string", "minLength": 1, "maxLength": INVOCATION_ID_MAX_BYTES},
                    "retryable": {"type": "boolean"},
                },
            },
        },
    }


_RESULT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["outputs"],
    "additionalProperties": False,
    "properties": {
        "outputs": {"type": "object"},
        "artifactRefs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "uri"],
                "properties": {"name": {"type": "string"}, "uri": {"type": "string"}},
            },
        },
    },
}

_HEADERS: Final[dict[str, Any]] = {
    "X-Kruntime-Invocation-ID": {"required": True, "schema": {"type": "string", "minLength": 1}},
    "Server-Timing": {
        "required": True,
        "description": "Milliseconds by hop, outermost first.",
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds.", "schema": {"type": "integer", "minimum": RETRY_AFTER_S}},
    "WWW-Authenticate": {"required": True, "schema": {"type": "string"}},
    "Allow": {"required": True, "schema": {"type": "string"}},
}
