"""Reading Runs from YAML and JSON files, with every mistake told as `FILE: what is wrong` before anything is sent.

Several documents and Lists are taken as kubectl takes them. `krt run` and `krt delete` call `read_manifests`.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from controlplane.cli.failure import USAGE, Failure
from controlplane.cli.hints import next_step
from controlplane.kube.types_kruntimes import API_VERSION

MANIFEST_MAX_BYTES: Final = 3 * 1024 * 1024  # what an API server takes in one request
VALUES_MAX: Final = 100_000  # of one file, aliases followed: a few hundred Runs; far more is an alias bomb
DEPTH_MAX: Final = 100
NESTING_MAX_CHARS: Final = 10_000  # opening brackets in a file: the parser recurses on them
MOVED: Final = {
    "handler": "spec.mode.function.handler",
    "entrypoint": "spec.mode.task.entrypoint",
    "args": "spec.mode.task.args",
}


def read_manifests(files: Sequence[str]) -> list[dict[str, Any]]:
    """The Runs of these files in order (`-` is standard input). Failure, exit code 2, names what is wrong."""
    return [document for where in files for document in _documents(where)]


def read_bounded(where: str, max_bytes: int, reason: str) -> bytes:
    """A whole file (`-` is standard input). Failure, exit code 2, when it is larger or cannot be read."""
    try:
        if where == "-":
            raw = sys.stdin.buffer.read(max_bytes + 1)
        else:
            with Path(where).open("rb") as file:
                raw = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise Failure(f"{reason}Unreadable", f"cannot read {_shown(where)}: {what}", USAGE) from error
    if len(raw) > max_bytes:
        too_large = f"{reason}TooLarge"
        message = f"{_shown(where)} is larger than {max_bytes} bytes"
        raise Failure(too_large, message, USAGE, hint=next_step(too_large))
    return raw


def _documents(where: str) -> list[dict[str, Any]]:
    raw = read_bounded(where, MANIFEST_MAX_BYTES, "Manifest")
    try:
        found = list(_flat(_parse(raw)))
        _bounded(found)
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise Failure("ManifestInvalid", f"{_shown(where)}: {what}", USAGE) from error
    if not found:
        raise Failure("ManifestInvalid", f"{_shown(where)} holds no object", USAGE)
    for document in found:
        _check(_shown(where), document)
    return found


def _parse(raw: bytes) -> list[Any]:
    """The documents of JSON or YAML. ValueError with the place of what does not parse."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    if text.count("[") + text.count("{") > NESTING_MAX_CHARS:
        raise ValueError("nested too deeply")
    if text.lstrip().startswith("{"):
        try:
            return [json.loads(text, object_pairs_hook=_unique)]
        except json.JSONDecodeError:
            pass  # YAML's flow style, or several documents
    return _yaml(text)


def _yaml(text: str) -> list[Any]:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            self.flatten_mapping(node)
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if not isinstance(key, str | int | bool | float):
                    raise ValueError(f"line {node.start_mark.line + 1}: a key that is no text")
            _refuse_doubles(keys, f"line {node.start_mark.line + 1}: ")
            return super().construct_mapping(node, deep=deep)

    # A date in a manifest is text, as in kubectl: YAML 1.1 would make it a time.
    Loader.yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in Loader.yaml_implicit_resolvers.items()
    }
    try:
        return [one for one in yaml.load_all(text, Loader=Loader) if one is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(f"not YAML: {place}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_doubles([key for key, _ in pairs], "")
    return dict(pairs)


def _refuse_doubles(keys: Sequence[Any], place: str) -> None:
    if len(set(keys)) != len(keys):
        double = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise ValueError(f"{place}key {double!r} is there twice")


def _flat(documents: Iterable[Any]) -> Iterable[Any]:
    for document in documents:
        if isinstance(document, dict) and document.get("kind") in ("List", "RunList"):
            items = document.get("items") or []
            yield from items if isinstance(items, list) else [items]
        else:
            yield document


def _bounded(value: Any) -> None:
    """ValueError for more values than a manifest can hold, each alias counted as often as it stands for something."""
    count, todo = 0, [(value, 0)]
    while todo:
        one, depth = todo.pop()
        count += 1
        if count > VALUES_MAX or depth > DEPTH_MAX:
            raise ValueError("too many values, or nested too deeply")
        if isinstance(one, dict):
            todo += [(part, depth + 1) for part in one.values()]
        elif isinstance(one, list):
            todo += [(part, depth + 1) for part in one]


def _check(where: str, document: Any) -> None:
    if not isinstance(document, dict) or document.get("kind") != "Run" or document.get("apiVersion") != API_VERSION:
        raise Failure("ManifestInvalid", f"{where}: krt takes Runs of {API_VERSION}, not {_kind(document)}", USAGE)
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise Failure("ManifestInvalid", f"{where}: metadata needs a name or a generateName", USAGE)
    for field in ("name", "namespace", "generateName"):
        if not isinstance(metadata.get(field, ""), str):
            raise Failure("ManifestInvalid", f"{where}: metadata.{field} is no text; put it in quotes", USAGE)
    spec = document.get("spec")
    for field, place in MOVED.items():
        if isinstance(spec, dict) and field in spec:
            raise Failure("ManifestInvalid", f"{where}: spec.{field} is no field; it moved to {place}", USAGE)


def _kind(document: Any) -> str:
    if not isinstance(document, dict):
        return {"str": "text", "list": "a list", "int": "a number"}.get(type(document).__name__, "a value")
    return f"{document.get('kind', 'an object without kind')} of {document.get('apiVersion', 'no apiVersion')}"


def _shown(where: str) -> str:
    return "standard input" if where == "-" else where
