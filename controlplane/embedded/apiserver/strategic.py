"""Strategic merge patch for built-in kinds: lists merge by the key that their elements are known by.

Lives here: the merge and its directives ($patch, $retainKeys, $setElementOrder, $deleteFromPrimitiveList). May not live
here: which kinds take it (`patching.py` decides). The keys also tell `apply.py` which lists are maps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from controlplane.embedded.apiserver import errors

Object = dict[str, Any]

MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "containerStatuses": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ports": ("containerPort", "port", "name"),
    "ownerReferences": ("uid",),
    "secrets": ("name",),
    "addresses": ("type",),
    "podIPs": ("ip",),
    "hostIPs": ("ip",),
    "taints": ("key",),
}
"""Field name to the candidates for its merge key: the first that the elements have is used. In the built-in kinds that
are served a name means the same list wherever it stands, but for `ports` (containers, Services, EndpointSlices)."""

MERGED_SETS: Final = frozenset({"finalizers"})
"""Lists of scalars that merge as sets."""


def merge_key(field: str, *lists: Any) -> str:
    """The key that every element of the lists has, or empty where the list is replaced as a whole."""
    elements = [element for each in lists if isinstance(each, list) for element in each]
    for key in MERGE_KEYS.get(field, ()):
        if elements and all(isinstance(element, dict) and key in element for element in elements):
            return key
    return ""


def apply_strategic_patch(document: Object, patch: Object) -> Object:
    """The patched document; both arguments are of no use afterwards. A malformed directive is 400."""
    merged = _merge_object(document, patch)
    return {} if merged is None else merged


def _merge_object(document: Any, patch: Object) -> Object | None:
    match patch.pop("$patch", None):
        case None | "merge":
            pass
        case "replace":
            return patch
        case "delete":
            return None
        case other:
            raise errors.bad_request(f"unrecognized $patch directive: {other!r}")
    merged: Object = dict(document) if isinstance(document, dict) else {}
    retained = patch.pop("$retainKeys", None)
    if retained is not None:
        merged = {name: value for name, value in merged.items() if name in retained}
    orders = {name: patch.pop(name) for name in list(patch) if name.startswith("$setElementOrder/")}
    removals = {name: patch.pop(name) for name in list(patch) if name.startswith("$deleteFromPrimitiveList/")}
    for name, removed in removals.items():
        field = name.partition("/")[2]
        merged[field] = [value for value in merged.get(field) or [] if value not in removed]
    for field, value in patch.items():
        _merge_field(merged, field, value)
    for name, order in orders.items():
        field = name.partition("/")[2]
        if isinstance(merged.get(field), list):
            merged[field] = _ordered(field, merged[field], order)
    return merged


def _merge_field(merged: Object, field: str, value: Any) -> None:
    match value:
        case None:
            merged.pop(field, None)
        case dict():
            inner = _merge_object(merged.get(field), value)
            if inner is None:
                merged.pop(field, None)
            else:
                merged[field] = inner
        case list():
            merged[field] = _merge_list(field, merged.get(field) or [], value)
        case _:
            merged[field] = value


def _merge_list(field: str, current: list[Any], patch: list[Any]) -> list[Any]:
    if field in MERGED_SETS:
        return [*current, *(value for value in patch if value not in current)]
    directives = [element for element in patch if isinstance(element, dict) and "$patch" in element]
    if any(element["$patch"] == "replace" and len(element) == 1 for element in directives):
        return [element for element in patch if element not in directives]
    key = merge_key(field, current, patch)
    if not key:
        return patch
    merged = list(current)
    for element in patch:
        place = next((index for index, known in enumerate(merged) if known[key] == element[key]), None)
        before = {} if place is None else merged[place]
        after = _merge_object(before, dict(element))
        if after is None:
            if place is not None:
                del merged[place]
        elif place is None:
            merged.append(after)
        else:
            merged[place] = after
    return merged


def _ordered(field: str, current: list[Any], order: Sequence[Any]) -> list[Any]:
    """Elements named by the order stand in it; others keep their place after the element that they followed."""
    key = merge_key(field, current)

    def identity(element: Any) -> Any:
        return element.get(key) if key and isinstance(element, dict) else element

    wanted = [identity(element) for element in order]
    if not key and any(isinstance(element, dict) for element in current):
        return current
    named = [element for element in current if identity(element) in wanted]
    named.sort(key=lambda element: wanted.index(identity(element)))
    placed: list[Any] = []
    for element in current:
        placed.append(named.pop(0) if identity(element) in wanted else element)
    return placed
