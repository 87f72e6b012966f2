"""Which patch a request carries, and how it changes an object.

Lives here: the choice by Content-Type and its refusals. May not live here: the patch algorithms themselves.
`endpoints.py` calls it.
"""

from collections.abc import Callable
from typing import Final

from controlplane.embedded.apiserver import errors, representation
from controlplane.embedded.apiserver.jsonpatch import apply_json_patch, apply_merge_patch
from controlplane.embedded.apiserver.kinds import Object
from controlplane.embedded.apiserver.strategic import apply_strategic_patch

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
_BUILTIN: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
_CUSTOM: Final = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH)


def media_type(content_type: str, *, custom: bool) -> str:
    """The patch type of a request; 415 names those that the resource takes: strategic ones are for built-in kinds."""
    media = content_type.partition(";")[0].strip().lower()
    taken = _CUSTOM if custom else _BUILTIN
    if media not in taken:
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise errors.unsupported_media_type(message + ", ".join(taken))
    return media


def mutation(media: str, body: bytes) -> Callable[[Object], Object]:
    """What makes the new object of a copy of the old one. Raises 400 before anything is read."""
    patch = representation.decode_json(body)
    if media == JSON_PATCH:
        return lambda base: _object(apply_json_patch(base, patch))
    if media == MERGE_PATCH:
        return lambda base: _object(apply_merge_patch(base, _object(patch)))
    return lambda base: _object(apply_strategic_patch(base, _object(patch)))


def _object(value: object) -> Object:
    if not isinstance(value, dict):
        raise errors.bad_request("the patch does not make a JSON object")
    return value
