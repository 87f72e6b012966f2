"""Refusals: one exception that is a Kubernetes Status, and a constructor for each reason the server gives.

Lives here: codes, reasons, messages in Kubernetes' wording. May not live here: HTTP. Raised by every module, turned
into a response by `server.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_SHOWN_MAX_CHARS: Final = 1024
"""A refused value is shown up to here: it may be 128 KiB of source."""


class Cause(msgspec.Struct, frozen=True):
    """One field that is wrong: `reason` as in metav1.CauseType, `field` as a path such as `spec.env[0].name`."""

    reason: str
    message: str
    field: str

    def as_object(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """A refusal. `status()` is the body; nothing was stored when it is raised by a writing verb."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})
        self.headers = dict(headers or {})

    def status(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


def qualified(plural: str, group: str) -> str:
    """`runs.kruntimes.io`, `pods`: how Kubernetes names a resource in messages."""
    return f"{plural}.{group}" if group else plural


def _details(plural: str, group: str, name: str, **more: Any) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if group:
        details["group"] = group
    if plural:
        details["kind"] = plural
    details.update(more)
    return details


def not_found(plural: str, group: str, name: str) -> ApiError:
    message = f'{qualified(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", message, details=_details(plural, group, name))


def no_such_resource(hint: str = "") -> ApiError:
    message = "the server could not find the requested resource" + (f": {hint}" if hint else "")
    return ApiError(404, "NotFound", message, details={})


def already_exists(plural: str, group: str, name: str) -> ApiError:
    message = f'{qualified(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, details=_details(plural, group, name))


def conflict(plural: str, group: str, name: str, why: str, causes: Sequence[Cause] = ()) -> ApiError:
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    more = {"causes": [cause.as_object() for cause in causes]} if causes else {}
    return ApiError(409, "Conflict", message, details=_details(plural, group, name, **more))


def modified(plural: str, group: str, name: str) -> ApiError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(plural, group, name, why)


def apply_conflict(causes: Sequence[Cause]) -> ApiError:
    """Server-side apply met fields of other managers; kubectl prints the causes."""
    several = f"Apply failed with {len(causes)} conflict{'s' if len(causes) != 1 else ''}: "
    message = several + "; ".join(f"{cause.message}: {cause.field}" for cause in causes)
    return ApiError(409, "Conflict", message, details={"causes": [cause.as_object() for cause in causes]})


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: `Run.kruntimes.io "x" is invalid: spec.a: Required value`, each cause named."""
    texts = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    message = f'{qualified(kind, group)} "{name}" is invalid: {joined}'
    details = {"name": name, "group": group, "kind": kind, "causes": [cause.as_object() for cause in causes]}
    return ApiError(422, "Invalid", message, details={key: value for key, value in details.items() if value})


def bad_option(options: str, field: str, value: Any, supported: Sequence[str]) -> ApiError:
    """422 for an option of a request that has a value it may not have; `options` is such as CreateOptions."""
    listed = ", ".join(f'"{each}"' for each in supported)
    message = f"Unsupported value: {shown(value)}: supported values: {listed}"
    return invalid(options, "meta.k8s.io", "", [Cause("FieldValueNotSupported", message, field)])


def shown(value: Any) -> str:
    """A value as messages show it: its JSON, cut where it is long."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_MAX_CHARS else f"{text[:_SHOWN_MAX_CHARS]}..."


def other_namespace() -> ApiError:
    return bad_request("the namespace of the provided object does not match the namespace sent on the request")


def other_name(given: str, asked: str) -> ApiError:
    return bad_request(f"the name of the object ({given}) does not match the name on the URL ({asked})")


def unprocessable(message: str) -> ApiError:
    """422 without causes: a JSON Patch whose test failed or whose path is absent."""
    return ApiError(422, "Invalid", message, details={})


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized", headers={"WWW-Authenticate": 'Bearer realm="kruntimes"'})


def forbidden(plural: str, group: str, name: str, why: str, causes: Sequence[Cause] = ()) -> ApiError:
    target = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    message = f"{target} is forbidden: {why}" if target else f"forbidden: {why}"
    more = {"causes": [cause.as_object() for cause in causes]} if causes else {}
    return ApiError(403, "Forbidden", message, details=_details(plural, group, name, **more))


def method_not_allowed(method: str, allowed: str = "") -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message, headers={"Allow": allowed} if allowed else None)


def not_acceptable(offered: str) -> ApiError:
    message = f"only the following media types are accepted: {offered}"
    return ApiError(406, "NotAcceptable", message)


def unsupported_media_type(message: str) -> ApiError:
    return ApiError(415, "UnsupportedMediaType", message)


def gone(message: str) -> ApiError:
    """410: the version asked for is compacted; list again."""
    return ApiError(410, "Expired", message)


def too_large(limit: int) -> ApiError:
    message = f"Request entity too large: limit is {limit}"
    return ApiError(413, "RequestEntityTooLarge", message)


def not_implemented(what: str) -> ApiError:
    return ApiError(501, "NotImplemented", f"the embedded API server does not serve {what}")


def future_version(asked: int, current: int) -> ApiError:
    """504 as Kubernetes answers a list that asks for a version not written yet."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, details=details)


def storage_full(why: str) -> ApiError:
    """507: the disk took no write; reads and watches go on, the same request may succeed later."""
    return ApiError(
        507,
        "InsufficientStorage",
        f"the data directory takes no writes now: {why}",
        details={"retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )


def internal(message: str) -> ApiError:
    return ApiError(
        500, "InternalError", f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
    )


def of_code(code: int, message: str) -> ApiError:
    """For HTTP errors that aiohttp finds before a request reaches the server (bad framing, too long a header)."""
    reasons = {400: "BadRequest", 413: "RequestEntityTooLarge"}
    return ApiError(code, reasons.get(code, "Unknown"), message)
