"""What clients find out about the server."""

from tests.apiserver.harness import Api

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


async def test_legacy_discovery_lists_groups_and_resources(api: Api) -> None:
    assert (await api.get("/api")).ok()["versions"] == ["v1"]
    groups = {group["name"] for group in (await api.get("/apis")).ok()["groups"]}
    assert {"kruntimes.io", "apps", "logs.kruntimes.io", "rbac.authorization.k8s.io"} <= groups
    resources = {each["name"]: each for each in (await api.get("/apis/kruntimes.io/v1alpha1")).ok()["resources"]}
    assert resources["runs"]["kind"] == "Run"
    assert resources["runtimes"]["shortNames"] == ["rt"]
    assert resources["runs/status"]["verbs"] == ["get", "patch", "update"]
    assert resources["runtimes/scale"]["group"] == "autoscaling"
    pods = {each["name"] for each in (await api.get("/api/v1")).ok()["resources"]}
    assert {"pods", "pods/log", "serviceaccounts/token"} <= pods
    (await api.get("/apis/none.example")).refused(404)


async def test_aggregated_discovery_is_given_where_it_is_asked_for(api: Api) -> None:
    for version in ("v2", "v2beta1"):
        accept = f"{AGGREGATED.format(version)},application/json"
        answer = await api.get("/apis", accept=accept)
        assert answer.headers["Content-Type"] == AGGREGATED.format(version)
        found = {item["metadata"]["name"]: item for item in answer.ok()["items"]}
        resources = found["kruntimes.io"]["versions"][0]["resources"]
        runs = next(each for each in resources if each["resource"] == "runs")
        assert runs["scope"] == "Namespaced"
        assert {each["subresource"] for each in runs["subresources"]} == {"status"}
    core = (await api.get("/api", accept=AGGREGATED.format("v2"))).ok()["items"][0]
    assert core["metadata"].get("name", "") == ""
    assert (await api.get("/apis", accept="application/json")).ok()["kind"] == "APIGroupList"


async def test_openapi_is_served_with_tags_that_save_a_transfer(api: Api) -> None:
    index = (await api.get("/openapi/v3")).ok()["paths"]
    assert "apis/kruntimes.io/v1alpha1" in index
    answer = await api.get(index["apis/kruntimes.io/v1alpha1"]["serverRelativeURL"])
    assert "io.kruntimes.v1alpha1.Run" in answer.ok()["components"]["schemas"]
    again = await api.call(
        "GET", "/openapi/v3/apis/kruntimes.io/v1alpha1", headers={"If-None-Match": answer.headers["ETag"]}
    )
    assert (again.code, again.body) == (304, b"")
    assert (await api.get("/openapi/v2")).ok()["swagger"] == "2.0"
    binary = await api.get("/openapi/v2", accept="application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
    assert "protobuf" in binary.headers["Content-Type"]
    (await api.get("/openapi/v3/apis/none/v1")).refused(404)
