"""CRDs that users apply: served at once, changed, and gone with their objects."""

from pathlib import Path

import pytest

from tests.apiserver.harness import TABLE, Api, Object, serving

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GADGETS = "/apis/example.com/v1/namespaces/default/gadgets"


def definition(**version: object) -> Object:
    properties: Object = {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {"size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"}},
        }
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": properties}}
    one = {"name": "v1", "served": True, "storage": True, "schema": schema, **version}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["gd"]},
            "versions": [one],
        },
    }


def gadget(name: str, **spec: object) -> Object:
    return {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": {"size": 1, **spec}}


async def test_a_definition_is_established_and_served_at_once(api: Api) -> None:
    (await api.get(GADGETS)).refused(404)
    created = (await api.post(DEFINITIONS, definition())).ok()
    conditions = {each["type"]: each["status"] for each in created["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert created["status"]["acceptedNames"]["listKind"] == "GadgetList"
    made = (await api.post(GADGETS, gadget("a"))).ok()
    assert made["spec"] == {"size": 1, "color": "red"}
    answer = await api.post(GADGETS, gadget("b", size=0))
    answer.refused(422, "Invalid")
    assert answer.fields() == {"spec.size"}
    assert (await api.get(GADGETS)).ok()["kind"] == "GadgetList"
    found = (await api.get("/apis/example.com/v1")).ok()["resources"][0]
    assert found["shortNames"] == ["gd"]


async def test_a_changed_definition_judges_anew(api: Api) -> None:
    (await api.post(DEFINITIONS, definition())).ok()
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
    path = f"{DEFINITIONS}/gadgets.example.com"
    versions = definition(additionalPrinterColumns=columns, subresources={"status": {}})["spec"]["versions"]
    (await api.patch(path, {"spec": {"versions": versions}})).ok()
    (await api.post(GADGETS, gadget("a"))).ok()
    row = (await api.get(GADGETS, accept=TABLE)).ok()["rows"][0]
    assert row["cells"] == ["a", 1]
    (await api.get(f"{GADGETS}/a/status")).ok()


async def test_a_definition_goes_with_its_objects_and_waits_for_their_finalizers(api: Api) -> None:
    (await api.post(DEFINITIONS, definition())).ok()
    held = gadget("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    (await api.post(GADGETS, held)).ok()
    (await api.post(GADGETS, gadget("free"))).ok()
    async with api.watch(GADGETS) as watch:
        await watch.take(2)
        going = (await api.delete(f"{DEFINITIONS}/gadgets.example.com")).ok()
        assert going["metadata"]["deletionTimestamp"]
        assert ("DELETED", "free") in await watch.take(2)
    (await api.post(GADGETS, gadget("new"))).refused(405)
    (await api.patch(f"{GADGETS}/held", {"metadata": {"finalizers": None}})).ok()
    await api.until_gone(f"{DEFINITIONS}/gadgets.example.com")
    (await api.get(GADGETS)).refused(404)


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("metadata", "name"), "other.example.com", "metadata.name"),
        (("spec", "scope"), "Everywhere", "spec.scope"),
        (("spec", "group"), "", "spec.group"),
        (("spec", "versions"), [], "spec.versions"),
        (("spec", "conversion"), {"strategy": "Webhook"}, "spec.conversion.strategy"),
    ],
)
async def test_a_wrong_definition_is_refused_by_field(
    api: Api, path: tuple[str, str], value: object, field: str
) -> None:
    item = definition()
    item[path[0]][path[1]] = value
    answer = await api.post(DEFINITIONS, item)
    answer.refused(422, "Invalid")
    assert field in answer.fields()


async def test_a_rule_that_does_not_compile_is_refused(api: Api) -> None:
    item = definition()
    schema = item["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["x-kubernetes-validations"] = [{"rule": "self.((", "message": "x"}]
    (await api.post(DEFINITIONS, item)).refused(422, "Invalid")


async def test_versions_of_one_definition_share_their_objects(api: Api) -> None:
    item = definition()
    older = {**item["spec"]["versions"][0], "name": "v1beta1", "storage": False}
    item["spec"]["versions"].append(older)
    (await api.post(DEFINITIONS, item)).ok()
    made = (
        await api.post(GADGETS.replace("v1/", "v1beta1/"), {**gadget("a"), "apiVersion": "example.com/v1beta1"})
    ).ok()
    assert made["apiVersion"] == "example.com/v1beta1"
    assert (await api.get(f"{GADGETS}/a")).ok()["apiVersion"] == "example.com/v1"
    patched = (await api.patch(f"{GADGETS.replace('v1/', 'v1beta1/')}/a", {"spec": {"size": 2}})).ok()
    assert (patched["apiVersion"], patched["spec"]["size"]) == ("example.com/v1beta1", 2)


async def test_definitions_are_served_again_after_a_restart(data: Path) -> None:
    async with serving(data) as (_, api):
        (await api.post(DEFINITIONS, definition())).ok()
        made = (await api.post(GADGETS, gadget("a"))).ok()
    async with serving(data) as (_, api):
        assert (await api.get(f"{GADGETS}/a")).ok() == made
