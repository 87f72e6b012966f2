"""Structural schemas as Kubernetes means them, beyond what our own CRDs use."""

from typing import Any

import pytest

from controlplane.embedded.apiserver.cel import RuleError
from controlplane.embedded.apiserver.schema import CompiledCRD, CompiledVersion


def compiled(spec: dict[str, Any], **version: Any) -> CompiledVersion:
    schema = {"type": "object", "properties": {"spec": spec}}
    named = {"name": "v1", "schema": {"openAPIV3Schema": schema}} | version
    return CompiledCRD.compile({"spec": {"versions": [named]}}).versions["v1"]


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def fields(version: CompiledVersion, spec: Any, old: Any = None) -> list[tuple[str, str]]:
    before = None if old is None else {"spec": old}
    return [(cause.field, cause.reason) for cause in version.validate({"spec": spec}, before)]


def test_unknown_fields_are_cut_at_every_depth_and_named() -> None:
    version = compiled(obj(a=obj(b=STRING), items={"type": "array", "items": obj(c=STRING)}))
    item, unknown = version.prune_and_default(
        {"x": 1, "spec": {"a": {"b": "1", "y": 2}, "items": [{"c": "1"}, {"c": "2", "z": 3}]}}
    )
    assert item == {"spec": {"a": {"b": "1"}, "items": [{"c": "1"}, {"c": "2"}]}}
    assert unknown == ["x", "spec.a.y", "spec.items[1].z"]


def test_metadata_is_the_servers_own_and_never_cut() -> None:
    version = compiled(obj())
    whole = {"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "a", "anything": {"x": 1}}, "spec": {}}
    item, unknown = version.prune_and_default(dict(whole))
    assert (item, unknown) == (whole, [])


def test_what_keeps_unknown_fields_still_cuts_below_what_it_knows() -> None:
    version = compiled(obj(known=obj(a=STRING)) | {"x-kubernetes-preserve-unknown-fields": True})
    item, unknown = version.prune_and_default({"spec": {"other": {"b": 1}, "known": {"a": "1", "b": 2}}})
    assert item == {"spec": {"other": {"b": 1}, "known": {"a": "1"}}}
    assert unknown == ["spec.known.b"]


def test_nulls_are_dropped_unless_they_may_be_there() -> None:
    version = compiled(obj(a=STRING, b=STRING | {"nullable": True}, c=STRING | {"default": "x"}))
    item, _ = version.prune_and_default({"spec": {"a": None, "b": None, "c": None}})
    assert item == {"spec": {"b": None, "c": "x"}}
    assert version.validate(item) == []


def test_defaults_reach_into_defaults_lists_and_maps() -> None:
    inner = obj(a=INTEGER | {"default": 1})
    version = compiled(
        obj(
            made=inner | {"default": {}},
            listed={"type": "array", "items": inner},
            mapped={"type": "object", "additionalProperties": inner},
        )
    )
    item, _ = version.prune_and_default({"spec": {"listed": [{}, {"a": 2}], "mapped": {"k": {}}}})
    assert item == {"spec": {"made": {"a": 1}, "listed": [{"a": 1}, {"a": 2}], "mapped": {"k": {"a": 1}}}}


def test_a_default_is_not_shared_between_objects() -> None:
    version = compiled(obj(a={"type": "array", "items": STRING, "default": ["x"]}))
    first, _ = version.prune_and_default({"spec": {}})
    first["spec"]["a"].append("y")
    second, _ = version.prune_and_default({"spec": {}})
    assert second == {"spec": {"a": ["x"]}}


@pytest.mark.parametrize(
    ("value", "good"), [(1, True), ("1", True), ("10%", True), (1.5, False), (True, False), ([], False)]
)
def test_int_or_string_is_either(value: Any, good: bool) -> None:
    version = compiled(obj(a={"x-kubernetes-int-or-string": True}))
    assert (fields(version, {"a": value}) == []) == good


def test_a_whole_float_becomes_an_integer() -> None:
    version = compiled(obj(a=INTEGER, b={"type": "number"}))
    item, _ = version.prune_and_default({"spec": {"a": 2.0, "b": 2.0}})
    assert (type(item["spec"]["a"]), type(item["spec"]["b"])) == (int, float)


@pytest.mark.parametrize("schema", [INTEGER, {"x-kubernetes-int-or-string": True}])
def test_a_whole_number_fits_64_bits(schema: dict[str, Any]) -> None:
    version = compiled(obj(a=schema))
    verdicts = []
    for value in (2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1e300):
        item, _ = version.prune_and_default({"spec": {"a": value}})
        verdicts.append(version.validate(item) == [])
    assert verdicts == [True, False, True, False, False]


def test_items_of_a_map_list_are_objects() -> None:
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    version = compiled(obj(a={"type": "array", "items": obj(name=STRING)} | keyed))
    assert ("spec.a[0]", "FieldValueInvalid") in fields(version, {"a": ["x"]})


def test_exclusive_bounds_are_flags() -> None:
    version = compiled(
        obj(a=INTEGER | {"minimum": 1, "exclusiveMinimum": True, "maximum": 3, "exclusiveMaximum": True})
    )
    assert [value for value in (1, 2, 3) if not fields(version, {"a": value})] == [2]


def test_items_of_a_set_are_unique() -> None:
    version = compiled(obj(a={"type": "array", "items": STRING, "x-kubernetes-list-type": "set"}))
    assert fields(version, {"a": ["x", "y", "x"]}) == [("spec.a[2]", "FieldValueDuplicate")]


def test_a_map_list_may_have_several_keys() -> None:
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"]}
    version = compiled(obj(a={"type": "array", "items": obj(port=INTEGER, protocol=STRING)} | keyed))
    tcp, udp = {"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "UDP"}
    assert fields(version, {"a": [tcp, udp]}) == []
    assert fields(version, {"a": [tcp, udp, tcp]}) == [("spec.a[2]", "FieldValueDuplicate")]


def test_what_was_wrong_before_and_is_unchanged_is_forgiven() -> None:
    version = compiled(obj(a=STRING | {"maxLength": 1}, b=INTEGER))
    assert fields(version, {"a": "long", "b": 2}, {"a": "long", "b": 1}) == []
    assert fields(version, {"a": "longer", "b": 2}, {"a": "long", "b": 1})[0] == ("spec.a", "FieldValueTooLong")


def rule(expression: str, **more: Any) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": expression, "message": "no"} | more]}


def test_a_rule_names_the_place_and_the_reason() -> None:
    version = compiled(obj(a=STRING) | rule("self.a != 'x'", fieldPath=".a", reason="FieldValueForbidden"))
    (cause,) = version.validate({"spec": {"a": "x"}})
    assert (cause.field, cause.reason, cause.message) == ("spec.a", "FieldValueForbidden", "Forbidden: no")


def test_a_rule_may_compute_its_message() -> None:
    version = compiled(obj(a=INTEGER | rule("self < 3", messageExpression="'not ' + string(self)")))
    (cause,) = version.validate({"spec": {"a": 3}})
    assert cause.message == 'Invalid value: "integer": not 3'


def test_a_rule_that_cannot_be_evaluated_does_not_hold() -> None:
    version = compiled(obj(a=INTEGER, b=INTEGER) | rule("self.a < self.b"))
    (cause,) = version.validate({"spec": {"a": 3}})
    assert cause.field == "spec"
    assert "evaluating rule: no" in cause.message


def test_words_of_cel_are_escaped_in_rules() -> None:
    version = compiled(obj(function=STRING) | rule("has(self.__function__) && self.__function__ == 'f'"))
    assert fields(version, {"function": "f"}) == []
    assert fields(version, {}) == [("spec", "FieldValueInvalid")]


def test_a_transition_rule_waits_for_a_change() -> None:
    version = compiled(obj(a=INTEGER | rule("self >= oldSelf")))
    assert fields(version, {"a": 1}) == []
    assert fields(version, {"a": 2}, {"a": 1}) == []
    assert fields(version, {"a": 1}, {"a": 2}) == [("spec.a", "FieldValueInvalid")]


def test_a_transition_rule_on_an_optional_field_does_not_see_it_appear() -> None:
    version = compiled(obj(a=INTEGER | rule("self == oldSelf")))
    assert fields(version, {"a": 1}, {}) == []
    assert fields(version, {}, {"a": 1}) == []


def test_a_transition_rule_may_ask_for_an_old_value_that_is_not_there() -> None:
    version = compiled(obj(a=INTEGER | rule("oldSelf.hasValue() || self == 0", optionalOldSelf=True)))
    assert fields(version, {"a": 0}) == []
    assert fields(version, {"a": 1}) == [("spec.a", "FieldValueInvalid")]
    assert fields(version, {"a": 1}, {"a": 0}) == []


def test_items_of_a_map_list_are_compared_by_their_key() -> None:
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    item = obj(name=STRING, n=INTEGER | rule("self >= oldSelf"))
    version = compiled(obj(a={"type": "array", "items": item} | keyed))
    old = {"a": [{"name": "x", "n": 5}, {"name": "y", "n": 1}]}
    assert fields(version, {"a": [{"name": "y", "n": 2}, {"name": "x", "n": 5}]}, old) == []
    assert fields(version, {"a": [{"name": "y", "n": 0}, {"name": "x", "n": 5}]}, old) == [
        ("spec.a[0].n", "FieldValueInvalid")
    ]


def test_times_and_bytes_have_their_types_in_rules() -> None:
    times = obj(a=STRING | {"format": "date-time"}, b=STRING | {"format": "date-time"}) | rule("self.a < self.b")
    assert fields(compiled(times), {"a": "2026-01-01T00:00:00.5Z", "b": "2026-01-01T00:00:00.6Z"}) == []
    assert fields(compiled(times), {"a": "2026-01-01T00:00:00.7Z", "b": "2026-01-01T00:00:00.6Z"}) != []
    octets = STRING | {"format": "byte"} | rule("size(self) <= 3")
    assert fields(compiled(obj(a=octets)), {"a": "YWJj"}) == []
    assert fields(compiled(obj(a=octets)), {"a": "YWJjZA=="}) == [("spec.a", "FieldValueInvalid")]


@pytest.mark.parametrize("expression", ["self.", "self.frobnicate()", "quantity(self).isGreaterThan(quantity('1'))"])
def test_a_rule_that_cannot_run_here_is_refused_with_the_crd(expression: str) -> None:
    with pytest.raises(RuleError, match="compilation failed"):
        compiled(obj(a=STRING | rule(expression)))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("self.split(',').size() == 2", "a,b"),
        ("self.lowerAscii() == 'ab'", "AB"),
        ("[self, 'x'].join('-') == 'a-x'", "a"),
        ("[size(self), 1].sum() == 3", "ab"),
        ("self.replace('a', 'b') == 'bb'", "ab"),
        ("self.contains('b') && self.trim().indexOf('b') == 1", " ab "),
    ],
)
def test_string_and_list_functions_of_kubernetes_are_there(expression: str, value: str) -> None:
    assert fields(compiled(obj(a=STRING | rule(expression))), {"a": value}) == []
