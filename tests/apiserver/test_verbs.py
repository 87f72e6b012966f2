"""Create, read, update, patch and delete as a client sees them."""

import pytest

from tests.apiserver.harness import (
    CONFIG_MAPS,
    JSON_PATCH,
    PODS,
    RUNS,
    STRATEGIC_PATCH,
    Api,
    config_map,
    pod,
    run,
)


async def test_the_server_fills_in_identity_version_and_defaults(api: Api) -> None:
    created = (await api.post(RUNS, run("a"))).ok()
    metadata = created["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["uid"]
    assert metadata["generation"] == 1
    assert int(metadata["resourceVersion"]) > 0
    assert created["status"]["phase"] == "Pending"
    assert created["spec"]["mode"]["function"]["concurrency"] == 1
    assert (await api.get(f"{RUNS}/a")).ok() == created


async def test_a_second_object_of_the_same_name_is_already_exists(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    status = (await api.post(RUNS, run("a"))).refused(409, "AlreadyExists")
    assert status["details"] == {"name": "a", "group": "kruntimes.io", "kind": "runs"}
    assert status["message"] == 'runs.kruntimes.io "a" already exists'


async def test_a_status_sent_with_a_new_object_is_dropped(api: Api) -> None:
    created = (await api.post(RUNS, {**run("a"), "status": {"phase": "Ready"}})).ok()
    assert created["status"]["phase"] == "Pending"


async def test_generate_name_draws_a_free_name(api: Api) -> None:
    item = run("ignored")
    item["metadata"] = {"generateName": "job-"}
    names = {(await api.post(RUNS, item)).ok()["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("job-") and len(name) == len("job-") + 5 for name in names)


async def test_a_dry_run_answers_and_stores_nothing(api: Api) -> None:
    answer = await api.post(f"{RUNS}?dryRun=All", run("a"))
    assert answer.code == 201
    (await api.get(f"{RUNS}/a")).refused(404, "NotFound")
    (await api.post(RUNS, run("a"))).ok()
    (await api.delete(f"{RUNS}/a?dryRun=All")).ok()
    (await api.get(f"{RUNS}/a")).ok()
    answer = await api.post(f"{RUNS}?dryRun=Some", run("b"))
    answer.refused(422, "Invalid")
    assert answer.fields() == {"dryRun"}


async def test_an_update_needs_the_version_it_read(api: Api) -> None:
    first = (await api.post(RUNS, run("a"))).ok()
    first["metadata"]["labels"] = {"a": "b"}
    second = (await api.put(f"{RUNS}/a", first)).ok()
    assert second["metadata"]["generation"] == 1
    (await api.put(f"{RUNS}/a", first)).refused(409, "Conflict")
    del first["metadata"]["resourceVersion"]
    assert (await api.put(f"{RUNS}/a", first)).refused(422) and True


async def test_a_change_of_the_spec_counts_a_generation_and_one_of_status_does_not(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    patched = (await api.patch(f"{RUNS}/a", {"spec": {"ttlSecondsAfterFinished": 5}})).ok()
    assert patched["metadata"]["generation"] == 2
    status = (await api.patch(f"{RUNS}/a/status", {"status": {"phase": "Scheduled"}})).ok()
    assert status["metadata"]["generation"] == 2


async def test_status_and_the_rest_are_written_by_different_endpoints(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    both = {"spec": {"ttlSecondsAfterFinished": 5}, "status": {"phase": "Scheduled"}}
    by_main = (await api.patch(f"{RUNS}/a", both)).ok()
    assert (by_main["spec"]["ttlSecondsAfterFinished"], by_main["status"]["phase"]) == (5, "Pending")
    both["spec"]["ttlSecondsAfterFinished"] = 6
    by_status = (await api.patch(f"{RUNS}/a/status", both)).ok()
    assert (by_status["spec"]["ttlSecondsAfterFinished"], by_status["status"]["phase"]) == (5, "Scheduled")


async def test_a_write_that_changes_nothing_keeps_the_version(api: Api) -> None:
    created = (await api.post(RUNS, run("a"))).ok()
    assert (await api.patch(f"{RUNS}/a", {"spec": {"runtime": "python"}})).ok() == created


async def test_a_json_patch_with_a_failed_test_is_422_without_causes(api: Api) -> None:
    created = (await api.post(RUNS, run("a"))).ok()
    operations = [
        {"op": "test", "path": "/metadata/uid", "value": created["metadata"]["uid"]},
        {"op": "test", "path": "/status/phase", "value": "Pending"},
        {"op": "replace", "path": "/status/phase", "value": "Scheduled"},
    ]
    assert (await api.patch(f"{RUNS}/a/status", operations, JSON_PATCH)).ok()["status"]["phase"] == "Scheduled"
    status = (await api.patch(f"{RUNS}/a/status", operations, JSON_PATCH)).refused(422, "Invalid")
    assert "causes" not in status.get("details", {})


async def test_another_uid_is_refused_but_for_a_patch_of_the_status(api: Api) -> None:
    created = (await api.post(RUNS, run("a"))).ok()
    answer = await api.patch(f"{RUNS}/a", {"metadata": {"uid": "other", "labels": {"a": "b"}}})
    answer.refused(422, "Invalid")
    assert answer.fields() == {"metadata.uid"}
    patched = await api.patch(f"{RUNS}/a/status", {"metadata": {"uid": "other"}, "status": {"attempt": 1}})
    assert patched.ok()["metadata"]["uid"] == created["metadata"]["uid"]
    item = {**patched.json, "metadata": {**patched.json["metadata"], "uid": "other"}}
    assert "UID" in (await api.put(f"{RUNS}/a", item)).refused(409, "Conflict")["message"]


async def test_a_strategic_patch_is_for_built_in_kinds_only(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    (await api.patch(f"{RUNS}/a", {}, STRATEGIC_PATCH)).refused(415, "UnsupportedMediaType")
    (await api.post(PODS, pod("p"))).ok()
    patch = {"spec": {"containers": [{"name": "runtime", "image": "other"}]}}
    patched = (await api.patch(f"{PODS}/p", patch, STRATEGIC_PATCH)).ok()
    assert [(each["name"], each["image"]) for each in patched["spec"]["containers"]] == [("runtime", "other")]


async def test_a_patch_of_another_media_type_is_415(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    (await api.patch(f"{RUNS}/a", {}, "application/json")).refused(415, "UnsupportedMediaType")


@pytest.mark.parametrize(
    ("mode", "code"), [("Strict", 400), ("Warn", 201), ("Ignore", 201), ("", 201), ("Sometimes", 422)]
)
async def test_an_unknown_field_is_refused_warned_of_or_ignored(api: Api, mode: str, code: int) -> None:
    item = run("a", handler="main.invoke")
    answer = await api.post(f"{RUNS}?fieldValidation={mode}" if mode else RUNS, item)
    assert answer.code == code
    if mode == "Strict":
        assert 'unknown field "spec.handler"' in answer.refused(400)["message"]
    if code == 201:
        assert "handler" not in answer.json["spec"]
    expected = mode in {"Warn", ""}
    assert (answer.headers.get("Warning") == '299 - "unknown field \\"spec.handler\\""') is expected


async def test_what_does_not_parse_or_has_another_type_is_refused_by_name(api: Api) -> None:
    (await api.post(RUNS, b"{")).refused(400, "BadRequest")
    (await api.post(RUNS, [])).refused(400, "BadRequest")
    (await api.call("POST", RUNS, b"x", content_type="text/html")).refused(415)
    answer = await api.post(CONFIG_MAPS, {"metadata": {"name": "c", "labels": {"a": 1}}})
    assert "metadata.labels.a" in answer.refused(400)["message"]
    answer = await api.post(PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "env": "x"}]}})
    assert "spec.containers[0].env" in answer.refused(400)["message"]
    (await api.post(RUNS, {**run("a"), "kind": "Runtime"})).refused(400)
    (await api.post(RUNS, {**run("a"), "metadata": {"name": "a", "namespace": "other"}})).refused(400)


async def test_yaml_bodies_are_taken(api: Api) -> None:
    body = b"metadata: {name: c}\ndata: {when: '2026-01-01', at: \"yes\"}\n"
    created = (await api.call("POST", CONFIG_MAPS, body, content_type="application/yaml")).ok()
    assert created["data"] == {"when": "2026-01-01", "at": "yes"}


async def test_unknown_paths_resources_and_methods_are_refused(api: Api) -> None:
    (await api.get("/nothing")).refused(404, "NotFound")
    (await api.get("/api/v1/namespaces/default/things")).refused(404, "NotFound")
    (await api.get("/apis/none.example/v1/things")).refused(404, "NotFound")
    (await api.get(f"{RUNS}/a/nothing")).refused(404, "NotFound")
    (await api.call("PUT", RUNS, run("a"))).refused(400, "BadRequest")
    (await api.call("POST", f"{RUNS}/a", run("a"))).refused(405, "MethodNotAllowed")
    (await api.call("POST", "/api/v1/pods", pod("p"))).refused(405, "MethodNotAllowed")
    (await api.post(f"{PODS}/p/exec", {})).refused(501, "NotImplemented")


async def test_a_namespace_must_exist(api: Api) -> None:
    status = (await api.post(RUNS.replace("default", "absent"), run("a"))).refused(404, "NotFound")
    assert status["details"]["kind"] == "namespaces"


async def test_selectors_choose_by_labels_and_fields(api: Api) -> None:
    for name, label in (("a", "x"), ("b", "y"), ("c", "x")):
        item = run(name)
        item["metadata"]["labels"] = {"kind": label, name: ""}
        (await api.post(RUNS, item)).ok()
    (await api.patch(f"{RUNS}/b/status", {"status": {"phase": "Ready"}})).ok()

    async def names(query: str) -> list[str]:
        return [item["metadata"]["name"] for item in (await api.get(f"{RUNS}?{query}")).ok()["items"]]

    assert await names("labelSelector=kind%3Dx") == ["a", "c"]
    assert await names("labelSelector=kind%20in%20(x,y),!a") == ["b", "c"]
    assert await names("labelSelector=kind!%3Dx") == ["b"]
    assert await names("labelSelector=kind%20notin%20(y)") == ["a", "c"]
    assert await names("labelSelector=b") == ["b"]
    assert await names("fieldSelector=metadata.name%3Db") == ["b"]
    assert await names("fieldSelector=status.phase%3DPending") == ["a", "c"]
    assert await names("fieldSelector=spec.runtime%3Dpython,status.phase!%3DPending") == ["b"]
    (await api.get(f"{RUNS}?fieldSelector=spec.mode%3Dx")).refused(400)
    (await api.get(f"{RUNS}?labelSelector=a%20b")).refused(400)


async def test_events_and_pods_have_their_own_field_labels(api: Api) -> None:
    event = {"metadata": {"name": "e"}, "reason": "Bound", "type": "Normal"}
    event["involvedObject"] = {"kind": "Run", "name": "a", "namespace": "default", "uid": "u"}
    (await api.post("/api/v1/namespaces/default/events", event)).ok()
    query = "involvedObject.kind%3DRun,involvedObject.uid%3Du,involvedObject.name%3Da"
    assert len((await api.get(f"/api/v1/namespaces/default/events?fieldSelector={query}")).ok()["items"]) == 1
    other = (await api.get("/apis/events.k8s.io/v1/namespaces/default/events/e")).ok()
    assert (other["apiVersion"], other["regarding"]["name"]) == ("events.k8s.io/v1", "a")
    (await api.post(PODS, pod("p", nodeName="local"))).ok()
    assert len((await api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dlocal")).ok()["items"]) == 1
    assert (await api.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dother")).ok()["items"] == []


async def test_pages_hold_together_at_one_version_while_objects_change(api: Api) -> None:
    for name in "abcde":
        (await api.post(CONFIG_MAPS, config_map(name))).ok()
    first = (await api.get(f"{CONFIG_MAPS}?limit=2")).ok()
    assert [item["metadata"]["name"] for item in first["items"]] == ["a", "b"]
    assert first["metadata"]["remainingItemCount"] == 4
    (await api.delete(f"{CONFIG_MAPS}/c")).ok()
    (await api.patch(f"{CONFIG_MAPS}/d", {"data": {"key": "changed"}})).ok()
    (await api.post(CONFIG_MAPS, config_map("cc"))).ok()
    rest = (await api.get(f"{CONFIG_MAPS}?limit=10&continue={first['metadata']['continue']}")).ok()
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    found = {item["metadata"]["name"]: item["data"].get("key") for item in rest["items"]}
    assert found == {"c": "value", "d": "value", "e": "value", "kube-root-ca.crt": None}
    (await api.get(f"{CONFIG_MAPS}?continue=nonsense")).refused(400)
    future = int(first["metadata"]["resourceVersion"]) + 1000
    (await api.get(f"{CONFIG_MAPS}?resourceVersion={future}")).refused(504, "Timeout")


async def test_a_collection_is_deleted_by_selector(api: Api) -> None:
    for name in "abc":
        (await api.post(CONFIG_MAPS, config_map(name, labels={"keep": "no" if name != "b" else "yes"}))).ok()
    (await api.delete(f"{CONFIG_MAPS}?labelSelector=keep%3Dno")).ok()
    left = [item["metadata"]["name"] for item in (await api.get(CONFIG_MAPS)).ok()["items"]]
    assert left == ["b", "kube-root-ca.crt"]


async def test_scale_reads_and_writes_replicas(api: Api) -> None:
    path = "/apis/kruntimes.io/v1alpha1/namespaces/default/runtimes"
    template = {"spec": {"containers": [{"name": "runtime", "image": "kruntimes/python-runtime"}]}}
    runtime = {"apiVersion": "kruntimes.io/v1alpha1", "kind": "Runtime", "metadata": {"name": "python"}}
    (await api.post(path, {**runtime, "spec": {"template": template}})).ok()
    scale = (await api.get(f"{path}/python/scale")).ok()
    assert (scale["kind"], scale["spec"]["replicas"]) == ("Scale", 1)
    assert (await api.patch(f"{path}/python/scale", {"spec": {"replicas": 3}})).ok()["spec"]["replicas"] == 3
    assert (await api.get(f"{path}/python")).ok()["spec"]["replicas"] == 3
    (await api.put(f"{path}/python/scale", scale)).refused(409, "Conflict")
    assert (await api.patch(f"{path}/python/scale", {"spec": {"replicas": -1}})).refused(422)
