"""Server-side apply: ownership, conflicts, removal."""

from typing import Any

import pytest

from tests.apiserver.harness import CONFIG_MAPS, RUNS, Api, Object, config_map, run

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def configuration(**data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}


def deployment(*containers: Object) -> Object:
    labels = {"app": "a"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": list(containers)}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def managers(item: Object) -> dict[str, Any]:
    return {entry["manager"]: entry["fieldsV1"] for entry in item["metadata"].get("managedFields", [])}


async def test_apply_creates_and_then_changes_only_what_it_names(api: Api) -> None:
    path = f"{CONFIG_MAPS}/c"
    first = await api.apply(path, configuration(a="1"), "one")
    assert first.code == 201
    assert managers(first.json) == {"one": {"f:data": {"f:a": {}}}}
    again = await api.apply(path, configuration(a="1"), "one")
    assert (again.code, again.json) == (200, first.json)
    (await api.patch(f"{path}?fieldManager=user", {"data": {"b": "2"}})).ok()
    changed = (await api.apply(path, configuration(a="3"), "one")).ok()
    assert changed["data"] == {"a": "3", "b": "2"}
    assert managers(changed) == {"one": {"f:data": {"f:a": {}}}, "user": {"f:data": {"f:b": {}}}}


async def test_what_a_manager_no_longer_names_is_removed_unless_shared(api: Api) -> None:
    path = f"{CONFIG_MAPS}/c"
    (await api.apply(path, configuration(a="1", b="2", c="3"), "one")).ok()
    (await api.apply(path, configuration(b="2"), "two")).ok()
    left = (await api.apply(path, configuration(a="1"), "one")).ok()
    assert left["data"] == {"a": "1", "b": "2"}


async def test_another_value_of_another_managers_field_is_a_conflict(api: Api) -> None:
    path = f"{CONFIG_MAPS}/c"
    (await api.apply(path, configuration(a="1"), "one")).ok()
    answer = await api.apply(path, configuration(a="2"), "two")
    status = answer.refused(409, "Conflict")
    assert status["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}
    ]
    forced = (await api.apply(path, configuration(a="2"), "two", force=True)).ok()
    assert forced["data"] == {"a": "2"}
    assert managers(forced) == {"two": {"f:data": {"f:a": {}}}}


async def test_an_object_that_was_created_otherwise_is_owned_by_who_came_before(api: Api) -> None:
    (await api.post(CONFIG_MAPS, config_map("c"))).ok()
    path = f"{CONFIG_MAPS}/c"
    status = (await api.apply(path, configuration(key="other"), "one")).refused(409)
    assert "before-first-apply" in status["message"]
    (await api.apply(path, configuration(key="value", more="x"), "one")).ok()
    kept = (await api.apply(path, configuration(), "one")).ok()
    assert kept["data"] == {"key": "value"}


async def test_going_over_from_client_side_apply_is_no_conflict(api: Api) -> None:
    last = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"key":"value","old":"x"}}'
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": last}
    item = config_map("c", annotations=annotations)
    item["data"]["old"] = "x"
    (await api.post(CONFIG_MAPS, item)).ok()
    applied = (await api.apply(f"{CONFIG_MAPS}/c", configuration(key="new"), "kubectl")).ok()
    assert applied["data"] == {"key": "new"}


async def test_lists_of_containers_merge_by_name(api: Api) -> None:
    path = f"{DEPLOYMENTS}/d"
    first, second = {"name": "a", "image": "x"}, {"name": "b", "image": "y"}
    (await api.apply(path, deployment(first), "one")).ok()
    both = (await api.apply(path, deployment(second), "two")).ok()
    containers = both["spec"]["template"]["spec"]["containers"]
    assert [container["name"] for container in containers] == ["a", "b"]
    answer = await api.apply(path, deployment({"name": "a", "image": "z"}), "three")
    status = answer.refused(409)
    assert status["details"]["causes"][0]["field"] == '.spec.template.spec.containers[name="a"].image'
    with_env = {**first, "env": [{"name": "K", "value": "v"}]}
    (await api.apply(path, deployment(with_env), "one")).ok()
    gone = (await api.apply(path, deployment(first), "one")).ok()
    assert "env" not in gone["spec"]["template"]["spec"]["containers"][0]


async def test_lists_of_custom_kinds_merge_as_their_schema_says(api: Api) -> None:
    path = f"{RUNS}/a"
    (await api.apply(path, run("a"), "one")).ok()
    (await api.patch(f"{path}/status?fieldManager=daemon", {"status": {"phase": "Ready"}})).ok()
    labelled = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": "a", "labels": {"x": "y"}}}
    both = (await api.apply(path, labelled, "two")).ok()
    assert both["status"]["phase"] == "Ready"
    assert both["spec"]["mode"]["function"]["handler"] == "main.invoke"
    assert managers(both)["daemon"] == {"f:status": {"f:phase": {}}}
    assert set(managers(both)) == {"one", "two", "daemon"}


async def test_status_can_be_applied_on_its_own(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    status = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Run", "metadata": {"name": "a"}, "status": {"attempt": 1}}
    applied = (await api.apply(f"{RUNS}/a/status", status, "one", force=True)).ok()
    assert applied["status"]["attempt"] == 1
    (await api.apply(f"{RUNS}/absent/status", {**status, "metadata": {"name": "absent"}}, "one")).refused(404)


async def test_malformed_applies_are_refused(api: Api) -> None:
    path = f"{CONFIG_MAPS}/c"
    answer = await api.patch(path, configuration(a="1"), "application/apply-patch+yaml")
    answer.refused(422, "Invalid")
    assert answer.fields() == {"fieldManager"}
    (await api.apply(path, {**configuration(), "kind": "Secret"}, "one")).refused(400)
    (await api.apply(path, {**configuration(), "metadata": {"name": "other"}}, "one")).refused(400)
    (await api.apply(path, b": {", "one")).refused(400)
    dry = await api.apply(path, configuration(a="1"), "one", query="&dryRun=All")
    assert dry.code == 201
    (await api.get(path)).refused(404)


@pytest.mark.parametrize("fields", [1, {"f:data": 1}, {"k:x": {}}, {"v:{": {}}, {"data": {}}, {"k:[1]": {}}])
async def test_ownership_that_a_client_made_up_is_forgotten(api: Api, fields: Any) -> None:
    entry = {"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields}
    (await api.apply(f"{CONFIG_MAPS}/c", configuration(a="1"), "one")).ok()
    (await api.patch(f"{CONFIG_MAPS}/c", {"metadata": {"managedFields": [entry]}, "data": {"b": "2"}})).ok()
    assert (await api.apply(f"{CONFIG_MAPS}/c", configuration(a="1"), "one")).ok()["data"] == {"a": "1", "b": "2"}


async def test_objects_that_nobody_applies_carry_no_ownership(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    patched = (await api.patch(f"{RUNS}/a/status", {"status": {"phase": "Ready"}})).ok()
    assert "managedFields" not in patched["metadata"]
