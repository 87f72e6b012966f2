"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7396) over decoded objects.

Lives here: the two standard patches, pure. May not live here: strategic and apply patches (`strategic.py`, `apply.py`).
`patching.py` chooses among them next.
"""

import copy
from typing import Any

from controlplane.embedded.apiserver import errors, limits

_OPERATIONS = {"add", "remove", "replace", "move", "copy", "test"}


def apply_json_patch(document: Any, operations: Any) -> Any:
    """The document, changed in place: it is the caller's own copy, of no use after a refusal.

    A failed test or an absent path is 422 without causes, as in Kubernetes; a bad patch is 400.
    """
    if not isinstance(operations, list):
        raise errors.bad_request("json patch must be a list of operations")
    if len(operations) > limits.JSON_PATCH_MAX_OPERATIONS:
        raise errors.ApiError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {limits.JSON_PATCH_MAX_OPERATIONS},"
            f" got {len(operations)}",
        )
    for operation in operations:
        kind, path = _checked(operation)
        if kind == "test":
            _test(document, path, operation)
        else:
            document = _changed(document, kind, path, operation)
    return document


def _checked(operation: Any) -> tuple[str, str]:
    if not isinstance(operation, dict):
        raise errors.bad_request("a json patch operation must be an object")
    kind, path = operation.get("op"), operation.get("path")
    if kind not in _OPERATIONS:
        raise _failed(f"unexpected kind of operation: {kind!r}")
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise errors.bad_request(f"json patch: bad path {path!r}")
    if kind in {"add", "replace"} and "value" not in operation:
        raise errors.bad_request(f"json patch: {kind} {path} has no value")
    return kind, path


def _test(document: Any, path: str, operation: dict[str, Any]) -> None:
    wanted = operation.get("value")
    try:
        found = _get(document, _tokens(path))
    except LookupError:
        found = None
        if wanted is not None:
            raise _failed(f"testing path {path} failed: the path is absent") from None
    if found != wanted or isinstance(found, bool) is not isinstance(wanted, bool):
        raise _failed(f"testing value {path} failed")


def _changed(document: Any, kind: str, path: str, operation: dict[str, Any]) -> Any:
    tokens = _tokens(path)
    try:
        match kind:
            case "add":
                return _add(document, tokens, operation["value"])
            case "replace":
                _get(document, tokens)
                return _replace(document, tokens, operation["value"])
            case "remove":
                return _remove(document, tokens)
            case "move":
                source = _tokens(str(operation.get("from")))
                value = _get(document, source)
                return _add(_remove(document, source), tokens, value)
            case _:
                return _add(document, tokens, copy.deepcopy(_get(document, _tokens(str(operation.get("from"))))))
    except LookupError as error:
        raise _failed(f"{kind} operation does not apply: doc is missing path: {path!r}: {error}") from error


def _tokens(path: str) -> list[str]:
    return [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:]]


def _index(items: list[Any], token: str, *, end: int) -> int:
    if not token.isdigit() or (len(token) > 1 and token[0] == "0"):
        raise LookupError(f"{token!r} is no index")
    index = int(token)
    if index > end:
        raise LookupError(f"index {index} is out of bounds")
    return index


def _child(value: Any, token: str) -> Any:
    match value:
        case dict():
            return value[token]
        case list():
            return value[_index(value, token, end=len(value) - 1)]
        case _:
            raise LookupError(f"{token!r} is below a scalar")


def _get(document: Any, tokens: list[str]) -> Any:
    for token in tokens:
        document = _child(document, token)
    return document


def _add(document: Any, tokens: list[str], value: Any) -> Any:
    if not tokens:
        return value
    parent = _get(document, tokens[:-1])
    match parent:
        case dict():
            parent[tokens[-1]] = value
        case list():
            place = len(parent) if tokens[-1] == "-" else _index(parent, tokens[-1], end=len(parent))
            parent.insert(place, value)
        case _:
            raise LookupError(f"{tokens[-1]!r} is below a scalar")
    return document


def _replace(document: Any, tokens: list[str], value: Any) -> Any:
    if not tokens:
        return value
    parent = _get(document, tokens[:-1])
    if isinstance(parent, list):
        parent[int(tokens[-1])] = value
    else:
        parent[tokens[-1]] = value
    return document


def _remove(document: Any, tokens: list[str]) -> Any:
    if not tokens:
        return None
    parent = _get(document, tokens[:-1])
    _child(parent, tokens[-1])
    if isinstance(parent, list):
        del parent[int(tokens[-1])]
    else:
        del parent[tokens[-1]]
    return document


def _failed(why: str) -> errors.ApiError:
    return errors.unprocessable(f"the server rejected our request due to an error in our request: {why}")


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """The merged document; null removes. It shares parts with both arguments, which are of no use afterwards."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = apply_merge_patch(merged.get(name), value)
    return merged
