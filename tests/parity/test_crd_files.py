"""The CRD files are what the types say, and the types read an object as the API server defaults it."""

import copy
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controlplane.embedded.apiserver.schema import CompiledCRD
from controlplane.kube.codec import DURATION_MAX_MS, parse_duration_ms, whole_quantity
from controlplane.kube.crd import HEADER, render
from controlplane.kube.crd_fields import DURATION_PATTERN, QUANTITY_PATTERN
from controlplane.kube.types_kruntimes import RunObject, RuntimeObject
from tests.parity.judges import CRDS

RENDERED = render()
RUN = yaml.safe_load(RENDERED["kruntimes.io_runs.yaml"])
RUNTIME = yaml.safe_load(RENDERED["kruntimes.io_runtimes.yaml"])


def _schemas(schema: dict[str, Any], path: str) -> list[tuple[str, dict[str, Any]]]:
    children = [(f"{path}.{name}", child) for name, child in schema.get("properties", {}).items()]
    for key, step in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            children.append((path + step, schema[key]))
    return [(path, schema)] + [found for where, child in children for found in _schemas(child, where)]


def _version(crd: dict[str, Any]) -> dict[str, Any]:
    versions: list[dict[str, Any]] = crd["spec"]["versions"]
    assert len(versions) == 1
    return versions[0]


ALL = [
    found
    for crd in (RUN, RUNTIME)
    for found in _schemas(_version(crd)["schema"]["openAPIV3Schema"], crd["spec"]["names"]["kind"])
]


def test_the_files_are_fresh() -> None:
    written = {path.name: path.read_text() for path in CRDS.glob("*.yaml")}
    assert written == RENDERED, "run scripts/generate"


def test_the_files_say_that_they_are_generated_and_by_what() -> None:
    assert "scripts/generate" in HEADER
    assert all(text.startswith(HEADER) for text in RENDERED.values())


@pytest.mark.parametrize(("path", "schema"), ALL, ids=[path for path, _ in ALL])
def test_every_field_is_documented_and_bounded(path: str, schema: dict[str, Any]) -> None:
    server_given = path.endswith((".apiVersion", ".kind")) or ".metadata" in path
    if server_given:
        return
    assert schema.get("description") or path.endswith(("{}", "[]", ".template", ".lastTransitionTime")), (
        "no description"
    )
    if schema.get("type") == "string" and "enum" not in schema and schema.get("format") != "date-time":
        assert "maxLength" in schema, "a string without maxLength"
    if schema.get("type") == "array":
        assert "maxItems" in schema, "a list without maxItems"
    if isinstance(schema.get("additionalProperties"), dict):
        assert "maxProperties" in schema, "a map without maxProperties"


def test_columns_of_a_run_are_those_of_the_specification() -> None:
    columns = _version(RUN)["additionalPrinterColumns"]
    assert [column["name"] for column in columns if not column.get("priority")] == [
        "Phase",
        "Ready",
        "Reason",
        "Runtime",
        "Pod",
        "Attempt",
        "Age",
    ]
    assert [column["name"] for column in columns if column.get("priority") == 1] == ["UID", "Pod UID", "URL"]


def test_columns_of_a_runtime_are_those_of_the_specification() -> None:
    columns = _version(RUNTIME)["additionalPrinterColumns"]
    assert [column["name"] for column in columns] == ["Replicas", "Ready", "Runs", "Image", "Age"]


def test_a_run_can_be_selected_by_runtime_phase_and_pod() -> None:
    fields = [field["jsonPath"] for field in _version(RUN)["selectableFields"]]
    assert fields == [".spec.runtime", ".status.phase", ".status.assignedPodUID"]


def test_both_kinds_have_a_status_and_runtimes_scale() -> None:
    assert "status" in _version(RUN)["subresources"]
    assert set(_version(RUNTIME)["subresources"]) == {"status", "scale"}
    assert RUNTIME["spec"]["names"]["shortNames"] == ["rt"]


def test_no_condition_has_an_observed_generation() -> None:
    assert not [path for path, _ in ALL if path.endswith(".observedGeneration")]


@pytest.mark.parametrize(
    ("crd", "kind", "spec"),
    [
        (RUN, RunObject, {"runtime": "python"}),
        (RUN, RunObject, {"runtime": "python", "mode": {"function": {"handler": "a.b"}}}),
        (RUN, RunObject, {"runtime": "python", "retryPolicy": {"maxAttempts": 2}, "resources": {}}),
        (RUNTIME, RuntimeObject, {"template": {"spec": {"containers": [{"name": "runtime"}]}}}),
    ],
)
def test_a_default_of_the_api_is_the_default_of_the_type(crd: dict[str, Any], kind: type, spec: dict[str, Any]) -> None:
    version = CompiledCRD.compile(crd).versions["v1alpha1"]
    bare = {"metadata": {"name": "a"}, "spec": spec}
    defaulted, unknown = version.prune_and_default(copy.deepcopy(bare))
    assert unknown == []
    assert msgspec.convert(defaulted, kind) == msgspec.convert(bare, kind)


@given(st.from_regex(QUANTITY_PATTERN, fullmatch=True))
def test_what_the_api_takes_as_a_quantity_reads_as_a_whole_number(text: str) -> None:
    assert whole_quantity(text) >= 1


@given(st.from_regex(DURATION_PATTERN, fullmatch=True))
def test_what_the_api_takes_as_a_duration_reads_as_one(text: str) -> None:
    run = {"metadata": {"name": "a"}, "spec": {"runtime": "python", "timeout": text}}
    taken = CompiledCRD.compile(RUN).versions["v1alpha1"].validate(run) == []
    try:
        read = 1000 <= parse_duration_ms(text) <= DURATION_MAX_MS
    except ValueError:
        read = False
    assert taken == read
