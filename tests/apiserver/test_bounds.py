"""Kubernetes' limits on names, sizes and values: refused with the field named."""

import pytest

from controlplane.embedded.apiserver import limits
from tests.apiserver.harness import CONFIG_MAPS, PODS, RUNS, Api, config_map, pod, run


@pytest.mark.parametrize("name", ["UPPER", "a_b", "-a", "a-", "a..b", "a" * 254, "a/b"])
async def test_a_bad_name_is_refused(api: Api, name: str) -> None:
    answer = await api.post(RUNS, run(name))
    answer.refused(422, "Invalid")
    assert answer.fields() == {"metadata.name"}


@pytest.mark.parametrize("name", ["a", "a.b-c", "1", "a" * 253])
async def test_a_good_name_is_taken(api: Api, name: str) -> None:
    (await api.post(RUNS, run(name))).ok()


async def test_kinds_have_their_own_rules_for_names(api: Api) -> None:
    (await api.post("/api/v1/namespaces", {"metadata": {"name": "a.b"}})).refused(422)
    (await api.post("/api/v1/namespaces", {"metadata": {"name": "a" * 64}})).refused(422)
    port = {"ports": [{"port": 80}]}
    (await api.post("/api/v1/namespaces/default/services", {"metadata": {"name": "1a"}, "spec": port})).refused(422)
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    (await api.post(roles, {"metadata": {"name": "system:Any_Thing"}, "rules": []})).ok()
    nameless = await api.post(RUNS, {**run("x"), "metadata": {}})
    nameless.refused(422)
    assert nameless.fields() == {"metadata.name"}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"a b": "c"}}, "metadata.labels"),
        ({"labels": {"a": "c d"}}, "metadata.labels"),
        ({"labels": {"a": "x" * 64}}, "metadata.labels"),
        ({"labels": {"/a": "x"}}, "metadata.labels"),
        ({"annotations": {"a b": ""}}, "metadata.annotations"),
        ({"annotations": {"a": "x" * limits.ANNOTATIONS_MAX_BYTES}}, "metadata.annotations"),
        ({"finalizers": ["a b"]}, "metadata.finalizers"),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}, "metadata.ownerReferences[0].uid"),
    ],
)
async def test_bad_metadata_is_refused_by_field(api: Api, metadata: dict[str, object], field: str) -> None:
    answer = await api.post(CONFIG_MAPS, config_map("c", **metadata))
    answer.refused(422, "Invalid")
    assert answer.fields() == {field}


async def test_annotations_may_be_as_large_as_kubernetes_allows(api: Api) -> None:
    annotations = {"a": "x" * (limits.ANNOTATIONS_MAX_BYTES - 1)}
    (await api.post(CONFIG_MAPS, config_map("c", annotations=annotations))).ok()


async def test_a_body_and_an_object_have_their_largest_size(api: Api) -> None:
    too_long = b" " * (limits.REQUEST_BODY_MAX_BYTES + 1)
    (await api.post(CONFIG_MAPS, too_long)).refused(413, "RequestEntityTooLarge")
    item = config_map("c")
    item["data"]["key"] = "x" * (limits.CONFIG_DATA_MAX_BYTES + 1)
    answer = await api.post(CONFIG_MAPS, item)
    answer.refused(422)
    assert answer.fields() == {"data"}
    event = {
        "metadata": {"name": "e"},
        "message": "x" * limits.OBJECT_MAX_BYTES,
        "involvedObject": {"namespace": "default"},
    }
    (await api.post("/api/v1/namespaces/default/events", event)).refused(413)
    (await api.get(CONFIG_MAPS)).ok()


async def test_a_body_that_is_announced_is_asked_for(api: Api) -> None:
    body = b'{"metadata": {"name": "c"}}'
    assert (await api.call("POST", CONFIG_MAPS, body, headers={"Expect": "100-continue"})).code == 201


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "a"}]}, "spec.containers[0].image"),
        ({"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]}, "spec.containers[1].name"),
        (
            {"containers": [{"name": "a", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "spec.containers[0].volumeMounts[0].name",
        ),
    ],
)
async def test_a_pod_that_cannot_run_is_refused_by_field(api: Api, spec: dict[str, object], field: str) -> None:
    answer = await api.post(PODS, {"metadata": {"name": "p"}, "spec": spec})
    answer.refused(422, "Invalid")
    assert field in answer.fields()


async def test_a_pods_spec_is_fixed_but_for_its_node_and_images(api: Api) -> None:
    (await api.post(PODS, pod("p"))).ok()
    (await api.patch(f"{PODS}/p", {"spec": {"nodeName": "local"}})).ok()
    answer = await api.patch(f"{PODS}/p", {"spec": {"hostname": "x"}})
    answer.refused(422, "Invalid")
    assert answer.fields() == {"spec"}


async def test_a_deployments_selector_matches_its_template_and_stays(api: Api) -> None:
    path = "/apis/apps/v1/namespaces/default/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = (await api.post(path, {"metadata": {"name": "d"}, "spec": spec})).ok()
    assert made["spec"]["replicas"] == 1
    other = {"selector": {"matchLabels": {"a": "c"}}, "template": template}
    answer = await api.post(path, {"metadata": {"name": "e"}, "spec": other})
    answer.refused(422)
    assert answer.fields() == {"spec.template.metadata.labels"}
    labels = {"metadata": {"labels": {"a": "c"}}}
    changed = await api.patch(f"{path}/d", {"spec": {"selector": {"matchLabels": {"a": "c"}}, "template": labels}})
    changed.refused(422)
    assert changed.fields() == {"spec.selector"}


async def test_secrets_take_plain_strings_and_keep_base64(api: Api) -> None:
    path = "/api/v1/namespaces/default/secrets"
    made = (await api.post(path, {"metadata": {"name": "s"}, "stringData": {"a": "b"}})).ok()
    assert (made["data"], made["type"]) == ({"a": "Yg=="}, "Opaque")
    assert "data.a" in (await api.post(path, {"metadata": {"name": "t"}, "data": {"a": "!"}})).refused(400)["message"]
    (await api.post(path, {"metadata": {"name": "u"}, "immutable": True, "data": {}})).ok()
    (await api.patch(f"{path}/u", {"data": {"a": "Yg=="}})).refused(422)


async def test_nulls_and_other_json_never_reach_our_code_as_an_error(api: Api) -> None:
    shapes = [None, 1, "x", [], [None], {"spec": None}, {"metadata": None}, {"metadata": {"name": None}}]
    shapes += [
        {"metadata": {"name": "p"}, "spec": value} for value in (1, [], {"containers": {}}, {"containers": [None]})
    ]
    for path in (PODS, RUNS, CONFIG_MAPS, "/apis/apps/v1/namespaces/default/deployments"):
        for shape in shapes:
            answer = await api.post(path, shape)
            assert answer.code in {201, 400, 409, 422}, (path, shape, answer.body)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
    for spec in (
        None,
        1,
        {},
        {"names": 1},
        {"names": {}, "versions": 1},
        {"versions": [None]},
        {"versions": [{"schema": 1}]},
    ):
        assert (await api.post(definitions, {"metadata": {"name": "a.b"}, "spec": spec})).code in {400, 422}
        assert (await api.post(f"{roles}/roles", {"metadata": {"name": "r"}, "rules": spec})).code in {201, 400, 409}
        answer = await api.post(f"{roles}/rolebindings", {"metadata": {"name": "r"}, "roleRef": spec})
        assert answer.code in {400, 422}, answer.body
        for review in ("authentication.k8s.io/v1/tokenreviews", "authorization.k8s.io/v1/subjectaccessreviews"):
            assert (await api.post(f"/apis/{review}", {"spec": spec})).code in {201, 400, 422}
