"""OpenAPI says what is served, in every form that kubectl asks for."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import yaml

from controlplane.embedded.apiserver.builtin import BUILTIN
from controlplane.embedded.apiserver.custom import resources_of
from controlplane.embedded.apiserver.openapi import PROTOBUF_V2, OpenAPI
from controlplane.embedded.apiserver.registry import Registry
from controlplane.kube.crd import render

RUN = {"group": "kruntimes.io", "kind": "Run", "version": "v1alpha1"}
OURS = "apis/kruntimes.io/v1alpha1"


@pytest.fixture(scope="module")
def registry() -> Registry:
    registry = Registry(BUILTIN)
    for text in render().values():
        crd = yaml.safe_load(text)
        registry.serve("kruntimes.io", crd["spec"]["names"]["plural"], resources_of(crd))
    return registry


@pytest.fixture(scope="module")
def served(registry: Registry) -> OpenAPI:
    return OpenAPI(registry)


def group(served: OpenAPI, path: str) -> Any:
    found = served.group(path)
    assert found is not None
    return msgspec.json.decode(found.body)


def index(served: OpenAPI) -> Any:
    return msgspec.json.decode(served.index().body)["paths"]


def whole(served: OpenAPI) -> Any:
    return msgspec.json.decode(served.version_2(protobuf=False).body)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from references(member)


def test_the_index_names_every_group_with_the_hash_of_its_document(served: OpenAPI, registry: Registry) -> None:
    paths = index(served)
    assert {OURS, "api/v1", "apis/apps/v1"} <= set(paths)
    assert len(paths) == sum(len(versions) for versions in registry.groups().values())
    for path, entry in paths.items():
        url, _, digest = entry["serverRelativeURL"].partition("?hash=")
        found = served.group(path)
        assert url == f"/openapi/v3/{path}"
        assert found is not None
        assert found.etag == digest


def test_every_kind_of_every_group_has_a_schema(served: OpenAPI, registry: Registry) -> None:
    for path in index(served):
        schemas = group(served, path)["components"]["schemas"].values()
        kinds = {each["kind"] for schema in schemas for each in schema.get("x-kubernetes-group-version-kind", ())}
        name, _, version = path.removeprefix("apis/").removeprefix("api/").rpartition("/")
        assert {resource.kind for resource in registry.of_version(name, version)} <= kinds


def test_every_reference_leads_somewhere(served: OpenAPI) -> None:
    for path in index(served):
        document = group(served, path)
        names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        assert set(references(document)) <= names
    document = whole(served)
    assert set(references(document)) <= {f"#/definitions/{name}" for name in document["definitions"]}


def test_a_run_is_explained_down_to_its_leaves(served: OpenAPI) -> None:
    schemas = group(served, OURS)["components"]["schemas"]
    run = schemas["io.kruntimes.v1alpha1.Run"]
    assert run["x-kubernetes-group-version-kind"] == [RUN]
    handler = run["properties"]["spec"]["properties"]["mode"]["properties"]["function"]["properties"]["handler"]
    assert "file.function" in handler["description"]


def test_built_in_kinds_are_explained_down_to_their_leaves(served: OpenAPI) -> None:
    schemas = group(served, "apis/apps/v1")["components"]["schemas"]
    spec = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]
    assert spec["containers"] == {
        "type": "array",
        "items": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"}]},
    }
    assert schemas["io.k8s.api.core.v1.Container"]["properties"]["image"] == {"type": "string"}


@pytest.mark.parametrize("version", [2, 3])
def test_a_patch_of_a_run_supports_dry_run_and_field_validation(served: OpenAPI, version: int) -> None:
    paths = (whole(served) if version == 2 else group(served, OURS))["paths"]
    patch = paths[f"/{OURS}/namespaces/{{namespace}}/runs/{{name}}"]["patch"]
    assert {"dryRun", "fieldValidation", "fieldManager", "force"} <= {each["name"] for each in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"] == RUN


def test_documents_are_kept_until_the_registry_changes(registry: Registry) -> None:
    registry = Registry(registry.all())
    served = OpenAPI(registry)
    first = served.version_2(protobuf=False)
    assert served.version_2(protobuf=False) is first
    registry.serve("kruntimes.io", "runs", [])
    assert served.version_2(protobuf=False).etag != first.etag


def test_what_is_not_served_has_no_document(served: OpenAPI) -> None:
    assert served.group("apis/batch/v1") is None


def fields(message: bytes) -> list[tuple[int, Any]]:
    """Protobuf as (number, varint or bytes)."""
    found: list[tuple[int, Any]] = []
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        key = varint()
        if key & 7 == 0:
            found.append((key >> 3, varint()))
        else:
            assert key & 7 == 2
            length = varint()
            found.append((key >> 3, message[position : position + length]))
            position += length
    assert position == len(message)
    return found


def only(message: bytes, number: int) -> bytes:
    (value,) = [value for each, value in fields(message) if each == number]
    assert isinstance(value, bytes)
    return value


def named(message: bytes, number: int) -> dict[str, bytes]:
    entries = [value for each, value in fields(message) if each == number]
    return {only(entry, 1).decode(): only(entry, 2) for entry in entries}


def test_version_2_in_protobuf_says_what_its_json_says(served: OpenAPI) -> None:
    found = served.version_2(protobuf=True)
    assert found.media_type == PROTOBUF_V2
    expected = whole(served)
    assert only(found.body, 1) == b"2.0"
    paths = named(only(found.body, 8), 2)
    assert set(paths) == set(expected["paths"])
    definitions = named(only(found.body, 9), 1)
    assert set(definitions) == set(expected["definitions"])

    run = definitions["io.kruntimes.v1alpha1.Run"]
    assert msgspec.json.decode(only(named(run, 31)["x-kubernetes-group-version-kind"], 2)) == [RUN]
    spec = named(only(run, 25), 1)["spec"]
    assert [value for number, value in fields(spec) if number == 19] == [b"runtime"]
    assert only(only(spec, 22), 1) == b"object"

    patch = only(paths[f"/{OURS}/namespaces/{{namespace}}/runs/{{name}}"], 8)
    assert msgspec.json.decode(only(named(patch, 13)["x-kubernetes-group-version-kind"], 2)) == RUN
    plain = [
        only(only(value, 1), 2) for number, value in fields(patch) if number == 8 and fields(only(value, 1))[0][0] == 2
    ]
    assert {only(only(parameter, 3), 4) for parameter in plain} >= {b"dryRun", b"fieldValidation"}
