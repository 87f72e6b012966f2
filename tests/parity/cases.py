"""The corpus: manifests that an API server must take, and others that it must refuse, with the field and the reason.

`corpus/*.yaml` are lists of cases; `load` reads them. A case has

    case      what holds, as a sentence: the name of the test
    run       `spec` of a Run over `runtime: python`; or `function`, over a minimal inline function; or `runtime`, over
              a minimal Runtime; or `object`, a whole manifest without apiVersion and, if it likes, without metadata
    then      a merge patch of `spec`, sent after the object was made
    status    a merge patch of `status`, sent through the subresource after the object was made
    refused   {field, reason, message}: the last request is refused with a cause of this field and reason whose message
              holds this text; without it the case is taken
    warned    paths of unknown fields: taken with a warning each, and refused by name when validation is strict
    reads     path → value: what a read shows afterwards

Long texts and lists are written as {$repeat: [text, n]}, {$join: [a, b]}, {$list: [item, n]} and
{$members: [name, value, n]}, where `{i}` in an item or a name is its number.
"""

from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

CORPUS: Final = Path(__file__).parent / "corpus"
API_VERSION: Final = "kruntimes.io/v1alpha1"
Object = dict[str, Any]

_FUNCTION: Final[Object] = {
    "runtime": "python",
    "source": {"inline": "x", "inlinePath": "main.py"},
    "mode": {"function": {"handler": "main.invoke"}},
}
_RUNTIME: Final[Object] = {"template": {"spec": {"containers": [{"name": "runtime"}]}}}


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One cause that the answer must hold."""

    field: str
    reason: str
    message: str


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case, expanded: a manifest to create, a patch to send afterwards, and what is expected."""

    name: str
    manifest: Object
    spec_patch: Object | None
    status_patch: Object | None
    refused: Refusal | None
    warned: tuple[str, ...]
    reads: dict[str, Any]

    @property
    def plural(self) -> str:
        return {"Run": "runs", "Runtime": "runtimes"}[self.manifest["kind"]]


def load() -> list[Case]:
    """Every case of the corpus, in the order of files and lines."""
    written = [entry for path in sorted(CORPUS.glob("*.yaml")) for entry in yaml.safe_load(path.read_text())]
    return [_case(number, _expanded(entry)) for number, entry in enumerate(written)]


def merged(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386) on copies."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def at(item: Any, path: str) -> Any:
    """The value at a dotted path, None where it ends early."""
    for step in path.split("."):
        item = item.get(step) if isinstance(item, dict) else None
    return item


def _case(number: int, entry: Object) -> Case:
    return Case(
        name=entry.pop("case"),
        manifest=_manifest(number, entry),
        spec_patch={"spec": entry.pop("then")} if "then" in entry else None,
        status_patch={"status": entry.pop("status")} if "status" in entry else None,
        refused=msgspec.convert(entry.pop("refused"), Refusal) if "refused" in entry else None,
        warned=tuple(entry.pop("warned", ())),
        reads=_nothing_left(entry, entry.pop("reads", {})),
    )


def _nothing_left(entry: Object, reads: Object) -> Object:
    assert not entry, f"a case knows no {', '.join(entry)}"
    return reads


def _manifest(number: int, entry: Object) -> Object:
    named = {"name": f"case-{number}"}
    if "object" in entry:
        whole: Object = {"apiVersion": API_VERSION, "metadata": named} | entry.pop("object")
        return whole
    for key, kind, base in (
        ("run", "Run", {"runtime": "python"}),
        ("function", "Run", _FUNCTION),
        ("runtime", "Runtime", _RUNTIME),
    ):
        if key in entry:
            return {"apiVersion": API_VERSION, "kind": kind, "metadata": named, "spec": _overlaid(base, entry.pop(key))}
    raise AssertionError("a case has run, function, runtime or object")


def _overlaid(base: Object, spec: Object) -> Object:
    """Like a merge patch, but a null is part of the manifest."""
    result = dict(base)
    for name, value in spec.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = _overlaid(result[name], value) if both else value
    return result


def _expanded(value: Any) -> Any:
    match value:
        case {"$repeat": [text, count]}:
            return text * count
        case {"$join": parts}:
            return "".join(_expanded(part) for part in parts)
        case {"$list": [item, count]}:
            return [_numbered(_expanded(item), index) for index in range(count)]
        case {"$members": [name, member, count]}:
            return {_numbered(_expanded(name), index): _expanded(member) for index in range(count)}
        case dict():
            return {name: _expanded(member) for name, member in value.items()}
        case list():
            return [_expanded(item) for item in value]
    return value


def _numbered(value: Any, index: int) -> Any:
    if isinstance(value, str):
        return value.replace("{i}", str(index))
    if isinstance(value, dict):
        return {name: _numbered(member, index) for name, member in value.items()}
    return value
