"""Finalizers, grace, owners, namespaces: how objects go."""

import pytest

from tests.apiserver.harness import CONFIG_MAPS, JSON_PATCH, PODS, RUNS, Api, config_map, owned_by, pod, run

FINALIZER = "kruntimes.io/cleanup"


async def test_an_object_without_finalizers_is_gone_at_once(api: Api) -> None:
    created = (await api.post(RUNS, run("a"))).ok()
    status = (await api.delete(f"{RUNS}/a")).ok()
    assert status["status"] == "Success"
    uid = created["metadata"]["uid"]
    assert status["details"] == {"name": "a", "kind": "runs", "uid": uid, "group": "kruntimes.io"}
    (await api.get(f"{RUNS}/a")).refused(404)
    (await api.delete(f"{RUNS}/a")).refused(404)


async def test_a_finalizer_holds_an_object_until_it_is_taken_off(api: Api) -> None:
    item = run("a")
    item["metadata"]["finalizers"] = [FINALIZER]
    (await api.post(RUNS, item)).ok()
    held = (await api.delete(f"{RUNS}/a")).ok()
    assert held["metadata"]["deletionTimestamp"]
    again = (await api.delete(f"{RUNS}/a")).ok()
    assert again["metadata"]["resourceVersion"] == held["metadata"]["resourceVersion"]
    added = {"metadata": {"finalizers": [FINALIZER, "example.com/other"]}}
    answer = await api.patch(f"{RUNS}/a", added)
    answer.refused(422, "Invalid")
    assert answer.fields() == {"metadata.finalizers"}
    (await api.patch(f"{RUNS}/a", {"metadata": {"labels": {"still": "here"}}})).ok()
    off = [
        {"op": "test", "path": "/metadata/finalizers/0", "value": FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]
    (await api.patch(f"{RUNS}/a", off, JSON_PATCH)).ok()
    (await api.get(f"{RUNS}/a")).refused(404)


async def test_a_finalizer_written_through_status_is_ignored(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    patched = (await api.patch(f"{RUNS}/a/status", {"metadata": {"finalizers": [FINALIZER]}})).ok()
    assert "finalizers" not in patched["metadata"]


async def test_preconditions_of_a_deletion_are_checked(api: Api) -> None:
    created = (await api.post(RUNS, run("a"))).ok()
    (await api.delete(f"{RUNS}/a", {"preconditions": {"uid": "other"}})).refused(409, "Conflict")
    (await api.delete(f"{RUNS}/a", {"preconditions": {"resourceVersion": "1"}})).refused(409, "Conflict")
    (await api.delete(f"{RUNS}/a", {"preconditions": {"uid": created["metadata"]["uid"]}})).ok()


async def test_a_running_pod_gets_its_grace_and_goes_with_grace_zero(api: Api) -> None:
    (await api.post(PODS, pod("p", nodeName="local", terminationGracePeriodSeconds=60))).ok()
    first = (await api.delete(f"{PODS}/p")).ok()
    assert first["metadata"]["deletionGracePeriodSeconds"] == 60
    shorter = (await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 5})).ok()
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    longer = (await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 50})).ok()
    assert longer["metadata"] == shorter["metadata"]
    (await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})).ok()
    (await api.get(f"{PODS}/p")).refused(404)


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
async def test_a_pod_that_does_not_run_goes_at_once(api: Api, phase: str) -> None:
    (await api.post(PODS, pod("p", **({} if phase == "Pending" else {"nodeName": "local"})))).ok()
    (await api.patch(f"{PODS}/p/status", {"status": {"phase": phase}})).ok()
    (await api.delete(f"{PODS}/p")).ok()
    (await api.get(f"{PODS}/p")).refused(404)


async def test_what_is_owned_goes_after_its_owner(api: Api) -> None:
    owner = (await api.post(RUNS, run("owner"))).ok()
    child = (await api.post(CONFIG_MAPS, config_map("child", ownerReferences=owned_by(owner)))).ok()
    (
        await api.post(CONFIG_MAPS, config_map("grandchild", ownerReferences=owned_by({**child, "kind": "ConfigMap"})))
    ).ok()
    (await api.delete(f"{RUNS}/owner")).ok()
    await api.until_gone(f"{CONFIG_MAPS}/child")
    await api.until_gone(f"{CONFIG_MAPS}/grandchild")


async def test_what_names_an_owner_that_never_was_goes_too(api: Api) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "no", "uid": "nobody"}}
    (await api.post(CONFIG_MAPS, config_map("child", ownerReferences=owned_by(owner)))).ok()
    await api.until_gone(f"{CONFIG_MAPS}/child")


async def test_one_owner_left_keeps_an_object(api: Api) -> None:
    first = (await api.post(RUNS, run("first"))).ok()
    second = (await api.post(RUNS, run("second"))).ok()
    references = owned_by(first) + owned_by(second)
    (await api.post(CONFIG_MAPS, config_map("child", ownerReferences=references))).ok()
    async with api.watch(CONFIG_MAPS, "&fieldSelector=metadata.name%3Dchild") as watch:
        await watch.next()
        (await api.delete(f"{RUNS}/first")).ok()
        event = await watch.next()
    assert event["type"] == "MODIFIED"
    assert event["object"]["metadata"]["ownerReferences"] == owned_by(second)


async def test_foreground_deletion_waits_for_what_blocks_it(api: Api) -> None:
    owner = (await api.post(RUNS, run("owner"))).ok()
    references = owned_by(owner, blockOwnerDeletion=True)
    (await api.post(CONFIG_MAPS, config_map("child", ownerReferences=references, finalizers=[FINALIZER]))).ok()
    held = (await api.delete(f"{RUNS}/owner", {"propagationPolicy": "Foreground"})).ok()
    assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
    async with api.watch(CONFIG_MAPS, "&fieldSelector=metadata.name%3Dchild") as watch:
        while not (await watch.next())["object"]["metadata"].get("deletionTimestamp"):
            pass
    (await api.get(f"{RUNS}/owner")).ok()
    (await api.patch(f"{CONFIG_MAPS}/child", {"metadata": {"finalizers": None}})).ok()
    await api.until_gone(f"{RUNS}/owner")


async def test_orphaning_leaves_what_was_owned_without_its_owner(api: Api) -> None:
    owner = (await api.post(RUNS, run("owner"))).ok()
    (await api.post(CONFIG_MAPS, config_map("child", ownerReferences=owned_by(owner)))).ok()
    (await api.delete(f"{RUNS}/owner", {"propagationPolicy": "Orphan"})).ok()
    await api.until_gone(f"{RUNS}/owner")
    assert "ownerReferences" not in (await api.get(f"{CONFIG_MAPS}/child")).ok()["metadata"]


async def test_a_new_namespace_has_its_account_and_the_authority(api: Api) -> None:
    async with api.watch("/api/v1/serviceaccounts", "&fieldSelector=metadata.namespace%3Dn") as watch:
        (await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})).ok()
        assert await watch.take(1) == [("ADDED", "default")]
    async with api.watch("/api/v1/namespaces/n/configmaps") as watch:
        event = await watch.next()
    assert event["object"]["metadata"]["name"] == "kube-root-ca.crt"
    assert "BEGIN CERTIFICATE" in event["object"]["data"]["ca.crt"]


async def test_a_default_account_that_is_deleted_comes_back(api: Api) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    before = (await api.get(f"{accounts}/default")).ok()
    version = (await api.get(accounts)).ok()["metadata"]["resourceVersion"]
    async with api.watch(accounts, f"&resourceVersion={version}") as watch:
        (await api.delete(f"{accounts}/default")).ok()
        assert await watch.take(2) == [("DELETED", "default"), ("ADDED", "default")]
    assert (await api.get(f"{accounts}/default")).ok()["metadata"]["uid"] != before["metadata"]["uid"]


async def test_a_namespace_goes_when_everything_in_it_is_gone(api: Api) -> None:
    (await api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})).ok()
    runs = RUNS.replace("default", "n")
    item = run("a")
    item["metadata"]["finalizers"] = [FINALIZER]
    (await api.post(runs, item)).ok()
    (await api.post(runs, run("b"))).ok()
    async with api.watch("/api/v1/namespaces", "&fieldSelector=metadata.name%3Dn") as watch:
        await watch.next()
        deleting = (await api.delete("/api/v1/namespaces/n")).ok()
        assert deleting["status"]["phase"] == "Terminating"
        while not (event := await watch.next())["object"]["status"].get("conditions"):
            pass
        conditions = {each["type"]: each["message"] for each in event["object"]["status"]["conditions"]}
        assert FINALIZER in conditions["NamespaceFinalizersRemaining"]
        status = (await api.post(runs, run("c"))).refused(403, "Forbidden")
        assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        (await api.get("/api/v1/namespaces/n/serviceaccounts/default")).ok()
        (await api.patch(f"{runs}/a", {"metadata": {"finalizers": None}})).ok()
        while (await watch.next())["type"] != "DELETED":
            pass
    assert (await api.get("/api/v1/serviceaccounts?fieldSelector=metadata.namespace%3Dn")).ok()["items"] == []
