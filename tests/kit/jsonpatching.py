"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) over plain values, as far as our own patches use them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any


class PatchFailed(Exception):
    """A test failed or a path is not there."""


def json_patch(document: dict[str, Any], ops: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The patched copy; PatchFailed leaves no trace."""
    result = copy.deepcopy(document)
    for op in ops:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]]
        place: Any = result
        for part in parents:
            place = _step(place, part)
        match op["op"]:
            case "test":
                _test(place, last, op["value"])
            case "add" if isinstance(place, list):
                place.insert(len(place) if last == "-" else _index(place, last, len(place)), copy.deepcopy(op["value"]))
            case "add":
                place[last] = copy.deepcopy(op["value"])
            case "replace":
                _step(place, last)
                place[_key(place, last)] = copy.deepcopy(op["value"])
            case "remove":
                _step(place, last)
                del place[_key(place, last)]
            case other:
                raise PatchFailed(f"operation {other!r} is not used here")
    return result


def merge_patch(target: Any, patch: Any) -> Any:
    """The merged value; null removes."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _test(place: Any, last: str, wanted: Any) -> None:
    absent = last not in place if isinstance(place, dict) else not (last.isdigit() and int(last) < len(place))
    found = None if absent else place[_key(place, last)]
    if found != wanted or type(found) is not type(wanted):
        raise PatchFailed(f"testing value {last} failed")


def _step(place: Any, part: str) -> Any:
    try:
        return place[_key(place, part)]
    except (KeyError, IndexError, TypeError) as error:
        raise PatchFailed(f"{part} is not there") from error


def _key(place: Any, part: str) -> Any:
    return _index(place, part, len(place) - 1) if isinstance(place, list) else part


def _index(place: list[Any], part: str, highest: int) -> int:
    if not part.isdigit() or int(part) > highest:
        raise PatchFailed(f"{part} is no place in a list of {len(place)}")
    return int(part)
