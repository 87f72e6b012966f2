"""The patch algorithms alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.embedded.apiserver import fieldsets
from controlplane.embedded.apiserver.errors import ApiError
from controlplane.embedded.apiserver.jsonpatch import apply_json_patch, apply_merge_patch
from controlplane.embedded.apiserver.shapes import BuiltinShape
from controlplane.embedded.apiserver.strategic import apply_strategic_patch


@pytest.mark.parametrize(
    ("document", "operation", "expected"),
    [
        ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
        ({"a": [1, 3]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2, 3]}),
        ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
        ({"a": [1]}, {"op": "add", "path": "/a/1", "value": 2}, {"a": [1, 2]}),
        ({"a/b": 1, "c~d": 2}, {"op": "remove", "path": "/a~1b"}, {"c~d": 2}),
        ({"c~d": 2}, {"op": "replace", "path": "/c~0d", "value": 3}, {"c~d": 3}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a/b", "path": "/c"}, {"a": {}, "c": 1}),
        ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": None}, {"op": "test", "path": "/a", "value": None}, {"a": None}),
        ({}, {"op": "test", "path": "/a", "value": None}, {}),
        ({"a": {"x": [1]}}, {"op": "test", "path": "/a", "value": {"x": [1]}}, {"a": {"x": [1]}}),
    ],
)
def test_json_patch_operations(document: Any, operation: dict[str, Any], expected: Any) -> None:
    assert apply_json_patch(document, [operation]) == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/a", "value": True},
        {"op": "test", "path": "/absent", "value": 2},
        {"op": "replace", "path": "/absent", "value": 2},
        {"op": "remove", "path": "/absent"},
        {"op": "remove", "path": "/list/1"},
        {"op": "remove", "path": "/list/-"},
        {"op": "add", "path": "/list/2", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/absent/below", "value": 1},
        {"op": "add", "path": "/a/below", "value": 1},
        {"op": "move", "from": "/absent", "path": "/b"},
        {"op": "jump", "path": "/a"},
    ],
)
def test_a_json_patch_that_does_not_apply_is_422(operation: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        apply_json_patch({"a": 1, "list": [1]}, [operation])
    assert refused.value.code == 422


@pytest.mark.parametrize("patch", [{}, ["x"], [{"op": "add", "path": "a", "value": 1}], [{"op": "add", "path": "/a"}]])
def test_what_is_no_json_patch_is_400(patch: Any) -> None:
    with pytest.raises(ApiError) as refused:
        apply_json_patch({}, patch)
    assert refused.value.code == 400


def test_a_json_patch_has_a_bounded_number_of_operations() -> None:
    with pytest.raises(ApiError) as refused:
        apply_json_patch({}, [{"op": "add", "path": "/a", "value": 1}] * 10_001)
    assert refused.value.code == 413


def test_a_merge_patch_removes_by_null_and_replaces_lists() -> None:
    document = {"a": {"b": 1, "c": 2}, "list": [1, 2]}
    assert apply_merge_patch(document, {"a": {"b": None, "d": 3}, "list": [3]}) == {"a": {"c": 2, "d": 3}, "list": [3]}


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B", "value": "2"}]}, ["A", "B"]),
        ({"env": [{"name": "A"}, {"name": "B"}]}, {"env": [{"name": "A", "$patch": "delete"}]}, ["B"]),
        ({"env": [{"name": "A"}]}, {"env": [{"$patch": "replace"}, {"name": "C"}]}, ["C"]),
        (
            {"env": [{"name": "A"}, {"name": "B"}]},
            {"$setElementOrder/env": [{"name": "B"}, {"name": "A"}], "env": []},
            ["B", "A"],
        ),
    ],
)
def test_strategic_lists_merge_by_their_key(document: Any, patch: Any, expected: list[str]) -> None:
    assert [item["name"] for item in apply_strategic_patch(document, patch)["env"]] == expected


def test_strategic_directives_replace_retain_and_remove() -> None:
    assert apply_strategic_patch({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}) == {"a": {"c": 2}}
    assert apply_strategic_patch({"a": {"b": 1}}, {"a": {"$patch": "delete"}}) == {}
    strategy = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}
    patch = {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}
    assert apply_strategic_patch(strategy, patch) == {"strategy": {"type": "Recreate"}}
    removed = apply_strategic_patch({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]})
    assert removed == {"finalizers": ["b"]}
    assert apply_strategic_patch({"finalizers": ["a"]}, {"finalizers": ["b"]}) == {"finalizers": ["a", "b"]}
    assert apply_strategic_patch({"args": ["a"]}, {"args": ["b"]}) == {"args": ["b"]}
    with pytest.raises(ApiError):
        apply_strategic_patch({}, {"a": {"$patch": "explode"}})


SHAPE = BuiltinShape()
SCALARS = st.one_of(st.integers(0, 3), st.sampled_from(["x", "y"]), st.booleans())
NAMED = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from("ABC")}, optional={"value": SCALARS}), unique_by=lambda e: e["name"]
)
OBJECTS = st.recursive(
    st.dictionaries(st.sampled_from("pqr"), SCALARS, max_size=3),
    lambda inner: st.fixed_dictionaries({}, optional={"p": inner, "env": NAMED, "q": SCALARS}),
    max_leaves=6,
)


@given(OBJECTS, OBJECTS)
def test_field_sets_are_sets(left: Any, right: Any) -> None:
    a, b = fieldsets.of(left, SHAPE), fieldsets.of(right, SHAPE)

    def members(fields: fieldsets.Fields) -> set[fieldsets.Path]:
        return set(fieldsets.leaves(fields))

    assert members(fieldsets.difference(a, a)) == set()
    assert members(fieldsets.union(a, a)) == members(a)
    assert members(fieldsets.intersection(a, a)) == members(a)
    assert members(fieldsets.difference(a, b)) <= members(a)
    assert members(a) <= members(fieldsets.union(a, b)) | {path[:-1] for path in members(fieldsets.union(a, b))}


@given(OBJECTS, OBJECTS)
def test_a_configuration_laid_over_an_object_is_found_in_it(live: Any, config: Any) -> None:
    merged = fieldsets.merged(live, config, SHAPE)
    for path in fieldsets.leaves(fieldsets.of(config, SHAPE)):
        found = fieldsets.value_at(merged, path)
        wanted = fieldsets.value_at(config, path)
        assert found == wanted or isinstance(wanted, dict | list)


@given(OBJECTS, OBJECTS)
def test_a_change_is_told_by_what_is_set_and_what_is_gone(old: Any, new: Any) -> None:
    set_now, removed = fieldsets.changed(old, new, SHAPE)
    assert (set_now or removed) or old == new
    if old == new:
        assert not set_now
        assert not removed
