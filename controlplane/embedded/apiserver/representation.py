"""How a client wants objects: plain JSON, a Table, or metadata alone; chosen from Accept.

Lives here: content negotiation and request bodies. May not live here: how a Table is filled (`tables.py`).
`endpoints.py` and `watching.py` read the choice.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import yaml

from controlplane.embedded.apiserver import errors, protobuf

JSON: Final = "application/json"
YAML: Final = "application/yaml"
OFFERED: Final = f"{JSON}, {YAML}"
_TAKEN: Final = f"{OFFERED}, {protobuf.MEDIA_TYPE}"
_META_VERSIONS: Final = frozenset({"v1", "v1beta1"})


class View(msgspec.Struct, frozen=True):
    """`form` is object, table or metadata; `include` is the `includeObject` of a Table."""

    form: str = "object"
    include: str = "Metadata"
    version: str = "v1"
    yaml: bool = False


PLAIN: Final = View()


def choose(accept: str, query: Mapping[str, str]) -> View:
    """The first acceptable offer; 406 names what there is."""
    if not accept or accept == JSON:
        return PLAIN
    for offer in accept.split(","):
        media, *pairs = (part.strip() for part in offer.split(";"))
        parameters = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if media not in {JSON, YAML, "application/*", "*/*"}:
            continue
        view = _view(parameters, query, as_yaml=media == YAML)
        if view is not None:
            return view
    raise errors.not_acceptable(OFFERED)


def _view(parameters: Mapping[str, str], query: Mapping[str, str], *, as_yaml: bool) -> View | None:
    kind = parameters.get("as")
    if not kind:
        return View(yaml=as_yaml) if as_yaml else PLAIN
    if parameters.get("g") != "meta.k8s.io" or parameters.get("v") not in _META_VERSIONS:
        return None
    version = parameters["v"]
    match kind:
        case "Table":
            include = query.get("includeObject") or "Metadata"
            if include not in {"None", "Metadata", "Object"}:
                raise errors.bad_request(
                    f'includeObject: Unsupported value: "{include}": supported values: "Metadata", "None", "Object"'
                )
            return View("table", include, version)
        case "PartialObjectMetadata" | "PartialObjectMetadataList":
            return View("metadata", version=version)
        case _:
            return None


def decode_body(body: bytes, content_type: str) -> Any:
    """A request body in JSON or YAML; 415 for anything else, 400 where it does not parse."""
    media = content_type.partition(";")[0].strip().lower() or JSON
    if media in {JSON, "application/apply-patch+json"} or media.endswith("-patch+json"):
        return decode_json(body)
    if media == protobuf.MEDIA_TYPE:
        return protobuf.decode(body)
    if media in {YAML, "application/apply-patch+yaml", "text/yaml"}:
        return decode_yaml(body)
    message = f"the body of the request was in an unknown format - accepted media types include: {_TAKEN}"
    raise errors.unsupported_media_type(message)


def decode_json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.bad_request(f"the object provided is not JSON: {error}") from error


def duplicate_fields(body: bytes) -> tuple[str, ...]:
    """Paths of names that stand twice in one object of a JSON body; the last of them counts."""
    if not body.startswith(b"{"):
        return ()
    with contextlib.suppress(ValueError, RecursionError):
        return tuple(_doubles(json.loads(body, object_pairs_hook=_Pairs)))
    return ()


class _Pairs(list[tuple[str, Any]]):
    """An object's members as they stand."""


def _doubles(value: Any) -> Iterator[str]:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for name, member in value:
            if name in seen:
                yield name
            seen.add(name)
            yield from (f"{name}{'' if path.startswith('[') else '.'}{path}" for path in _doubles(member))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from (f"[{index}]{'' if path.startswith('[') else '.'}{path}" for path in _doubles(member))


def decode_yaml(body: bytes) -> Any:
    """YAML as Kubernetes reads it: JSON is YAML too, and the fast path."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(body, Loader=yaml.CSafeLoader)):
            raise errors.bad_request("error decoding YAML: aliases are not taken, since they unfold without bound")
        decoded = yaml.load(body, Loader=_JsonLoader)
        return msgspec.json.decode(msgspec.json.encode(decoded))
    except (yaml.YAMLError, msgspec.MsgspecError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.bad_request(f"error decoding YAML: {error}") from error


class _JsonLoader(yaml.CSafeLoader):
    """YAML without timestamps: they stay strings, as in JSON."""


_JsonLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
