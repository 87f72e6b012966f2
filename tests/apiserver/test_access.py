"""Who may do what: tokens, reviews, roles, impersonation."""

import json
from pathlib import Path

import pytest

from controlplane.embedded.apiserver.identity import StaticTokens
from controlplane.embedded.apiserver.main import Running
from tests.apiserver.harness import CONFIG_MAPS, PODS, RUNS, Api, Object, pod, run

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def token_of(api: Api, account: str = "default", **spec: object) -> str:
    answer = await api.post(f"{ACCOUNTS}/{account}/token", {"spec": spec})
    return str(answer.ok()["status"]["token"])


async def allow(api: Api, *rules: Object, account: str = "default", name: str = "grant") -> None:
    (await api.post(f"{RBAC}/namespaces/default/roles", {"metadata": {"name": name}, "rules": list(rules)})).ok()
    await bind(api, "Role", name, account)


async def bind(api: Api, kind: str, role: str, account: str = "default") -> None:
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": account}
    binding = {
        "metadata": {"name": f"{role}-{account}"},
        "roleRef": {"kind": kind, "name": role},
        "subjects": [subject],
    }
    (await api.post(f"{RBAC}/namespaces/default/rolebindings", binding)).ok()


READ_RUNS = {"apiGroups": ["kruntimes.io"], "resources": ["runs"], "verbs": ["get", "list", "watch"]}


async def test_nobody_is_anonymous_and_sees_only_health_and_version(api: Api) -> None:
    nobody = api.with_token("")
    assert (await nobody.get("/healthz")).body == b"ok"
    assert (await nobody.get("/readyz")).code == 200
    assert (await nobody.get("/version")).ok()["major"] == "1"
    assert "system:anonymous" in (await nobody.get(RUNS)).refused(403, "Forbidden")["message"]
    (await nobody.get("/apis")).refused(403)


async def test_a_wrong_token_is_401_and_says_how_to_authenticate(api: Api) -> None:
    answer = await api.with_token("wrong").get(RUNS)
    answer.refused(401, "Unauthorized")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    (await api.with_token("").call("GET", RUNS, headers={"Authorization": "Basic eDp5"})).refused(401)


async def test_a_service_account_may_do_what_its_roles_say(api: Api) -> None:
    account = api.with_token(await token_of(api))
    status = (await account.get(RUNS)).refused(403, "Forbidden")
    assert status["message"] == (
        'runs.kruntimes.io is forbidden: User "system:serviceaccount:default:default" cannot list resource "runs"'
        ' in API group "kruntimes.io" in the namespace "default"'
    )
    await allow(api, READ_RUNS)
    (await account.get(RUNS)).ok()
    (await account.post(RUNS, run("a"))).refused(403)
    (await account.get("/apis/kruntimes.io/v1alpha1/runs")).refused(403)
    (await api.delete(f"{RBAC}/namespaces/default/rolebindings/grant-default")).ok()
    (await account.get(RUNS)).refused(403)


async def test_rules_can_name_objects_and_subresources(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    (await api.post(RUNS, run("b"))).ok()
    named = {"apiGroups": ["kruntimes.io"], "resources": ["runs"], "verbs": ["get", "list"], "resourceNames": ["a"]}
    status = {"apiGroups": ["kruntimes.io"], "resources": ["*/status"], "verbs": ["patch"]}
    await allow(api, named, status)
    account = api.with_token(await token_of(api))
    (await account.get(f"{RUNS}/a")).ok()
    (await account.get(f"{RUNS}/b")).refused(403)
    (await account.get(f"{RUNS}?fieldSelector=metadata.name%3Da")).ok()
    (await account.get(RUNS)).refused(403)
    (await account.patch(f"{RUNS}/b/status", {"status": {"attempt": 1}})).ok()
    (await account.patch(f"{RUNS}/b", {"metadata": {"labels": {"a": "b"}}})).refused(403)


async def test_the_view_role_sees_runs_and_no_secrets(api: Api) -> None:
    await bind(api, "ClusterRole", "view")
    account = api.with_token(await token_of(api))
    (await account.get(RUNS)).ok()
    (await account.get(PODS)).ok()
    (await account.get("/api/v1/namespaces/default/secrets")).refused(403)
    (await account.post(RUNS, run("a"))).refused(403)
    (await account.get("/apis")).ok()


async def test_labelled_cluster_roles_add_to_the_default_ones(api: Api) -> None:
    await bind(api, "ClusterRole", "view")
    account = api.with_token(await token_of(api))
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    (await account.get(leases)).refused(403)
    labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]}
    (await api.post(f"{RBAC}/clusterroles", {"metadata": {"name": "more", "labels": labels}, "rules": [rule]})).ok()
    (await account.get(leases)).ok()


async def test_nobody_grants_what_they_do_not_hold(api: Api) -> None:
    manage = {
        "apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["roles", "rolebindings"],
        "verbs": ["create", "patch"],
    }
    await allow(api, manage, READ_RUNS)
    account = api.with_token(await token_of(api))
    roles = f"{RBAC}/namespaces/default/roles"
    (await account.post(roles, {"metadata": {"name": "less"}, "rules": [{**READ_RUNS, "verbs": ["get"]}]})).ok()
    more = {"metadata": {"name": "more"}, "rules": [{**READ_RUNS, "verbs": ["delete"]}]}
    assert "not currently held" in (await account.post(roles, more)).refused(403, "Forbidden")["message"]
    (await account.patch(f"{roles}/less", {"rules": more["rules"]})).refused(403)
    binding = {"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}}
    binding["subjects"] = [{"kind": "User", "name": "me"}]
    (await account.post(f"{RBAC}/namespaces/default/rolebindings", binding)).refused(403)


async def test_a_binding_keeps_its_role_for_ever(api: Api) -> None:
    await bind(api, "ClusterRole", "view")
    path = f"{RBAC}/namespaces/default/rolebindings/view-default"
    answer = await api.patch(path, {"roleRef": {"name": "edit"}})
    answer.refused(422)
    assert answer.fields() == {"roleRef"}


async def test_a_token_request_is_bound_to_a_pod_and_ends_with_it(api: Api) -> None:
    (await api.post(PODS, pod("p"))).ok()
    uid = (await api.get(f"{PODS}/p")).ok()["metadata"]["uid"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid}
    answer = await api.post(
        f"{ACCOUNTS}/default/token", {"spec": {"boundObjectRef": bound, "audiences": ["kruntimes"]}}
    )
    assert answer.code == 201
    assert answer.json["status"]["expirationTimestamp"]
    token = answer.json["status"]["token"]

    async def review(audiences: list[str]) -> Object:
        spec = {"token": token, "audiences": audiences}
        return dict((await api.post(TOKEN_REVIEWS, {"spec": spec})).ok()["status"])

    status = await review(["kruntimes", "other"])
    assert status["authenticated"]
    assert status["audiences"] == ["kruntimes"]
    user = status["user"]
    assert user["username"] == "system:serviceaccount:default:default"
    assert "system:serviceaccounts:default" in user["groups"]
    assert user["extra"]["authentication.kubernetes.io/pod-uid"] == [uid]
    assert user["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
    assert not (await review([])).get("authenticated")
    (await api.with_token(token).get("/version")).refused(401)
    (await api.delete(f"{PODS}/p")).ok()
    assert not (await review(["kruntimes"])).get("authenticated")


async def test_a_token_ends_with_its_account(api: Api) -> None:
    (await api.post(ACCOUNTS, {"metadata": {"name": "a"}})).ok()
    token = await token_of(api, "a")
    (await api.with_token(token).get("/api")).ok()
    (await api.delete(f"{ACCOUNTS}/a")).ok()
    (await api.post(ACCOUNTS, {"metadata": {"name": "a"}})).ok()
    (await api.with_token(token).get("/api")).refused(401)


@pytest.mark.parametrize("tampered", ["a", ".", "a.b.c", "payload"])
async def test_a_token_that_was_changed_is_refused(api: Api, tampered: str) -> None:
    token = await token_of(api)
    head, payload, signature = token.split(".")
    changed = tampered if tampered != "payload" else f"{head}.{payload[:-4]}AAAA.{signature}"
    spec = {"token": changed}
    assert not (await api.post(TOKEN_REVIEWS, {"spec": spec})).ok()["status"].get("authenticated")


async def test_bad_token_requests_say_what_is_wrong(api: Api) -> None:
    answer = await api.post(f"{ACCOUNTS}/default/token", {"spec": {"expirationSeconds": 5}})
    answer.refused(422)
    assert answer.fields() == {"spec.expirationSeconds"}
    (await api.post(f"{ACCOUNTS}/absent/token", {})).refused(404)
    for bound, code in (({"kind": "Secret", "name": "x"}, 400), ({"kind": "Pod", "name": "absent"}, 404)):
        (await api.post(f"{ACCOUNTS}/default/token", {"spec": {"boundObjectRef": bound}})).refused(code)


async def test_access_reviews_answer_for_others_and_for_oneself(api: Api) -> None:
    await allow(api, READ_RUNS)
    attributes = {"verb": "get", "group": "kruntimes.io", "resource": "runs", "namespace": "default", "name": "a"}
    spec = {"user": "system:serviceaccount:default:default", "resourceAttributes": attributes}
    assert (await api.post(ACCESS_REVIEWS, {"spec": spec})).ok()["status"]["allowed"]
    spec["resourceAttributes"] = {**attributes, "verb": "delete"}
    assert not (await api.post(ACCESS_REVIEWS, {"spec": spec})).ok()["status"]["allowed"]
    (await api.post(ACCESS_REVIEWS, {"spec": {"user": "x"}})).refused(422)
    (await api.post(ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}})).refused(422)
    account = api.with_token(await token_of(api))
    base = "/apis/authorization.k8s.io/v1"
    mine = await account.post(f"{base}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": attributes}})
    assert mine.ok()["status"]["allowed"]
    rules = (await account.post(f"{base}/selfsubjectrulesreviews", {"spec": {"namespace": "default"}})).ok()
    assert {"apiGroups": ["kruntimes.io"], "resources": ["runs"], "verbs": ["get", "list", "watch"]} in (
        rules["status"]["resourceRules"]
    )
    me = (await account.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})).ok()
    assert me["status"]["userInfo"]["username"] == "system:serviceaccount:default:default"
    (await account.post(ACCESS_REVIEWS, {"spec": spec})).refused(403)


async def test_impersonation_is_a_right_of_its_own(api: Api) -> None:
    await allow(api, READ_RUNS)
    headers = {"Impersonate-User": "system:serviceaccount:default:default"}
    assert (await api.call("GET", RUNS, headers=headers)).code == 200
    (await api.call("GET", CONFIG_MAPS, headers=headers)).refused(403)
    account = api.with_token(await token_of(api))
    (await account.call("GET", RUNS, headers={"Impersonate-User": "admin"})).refused(403)
    (await api.call("GET", RUNS, headers={"Impersonate-Group": "system:masters"})).refused(400)
    grouped = {"Impersonate-User": "someone", "Impersonate-Group": "system:masters"}
    assert (await api.call("GET", RUNS, headers=grouped)).code == 200
    whole = {**headers, "Impersonate-Uid": "u", "Impersonate-Extra-Scopes": "some"}
    answer = await api.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=whole)
    user = answer.ok()["status"]["userInfo"]
    assert (user["uid"], user["extra"]) == ("u", {"scopes": ["some"]})
    await bind(api, "ClusterRole", "edit")
    assert (await account.call("GET", RUNS, headers=headers)).code == 200
    (await account.call("GET", RUNS, headers=whole)).refused(403, "Forbidden")


async def test_tokens_of_files_are_found_as_they_are_written(api: Api, running: Running, data: Path) -> None:
    (await api.with_token("later").get("/version")).refused(401)
    entry = {"token": "later", "user": "someone", "groups": ["system:masters"]}
    (data / "tokens" / "later.json").write_text(json.dumps(entry))
    (await api.with_token("later").get(RUNS)).ok()


def test_a_damaged_token_file_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"token": "t", "user": "u"}')
    (tmp_path / "note.txt").write_text("t2")
    tokens = StaticTokens(tmp_path)
    user = tokens.find("t")
    assert user is not None
    assert (user.name, user.groups) == ("u", ("system:authenticated",))
    assert tokens.find("t2") is None


async def test_credentials_of_the_data_directory_are_private(running: Running, data: Path) -> None:
    assert (data / "tokens" / "admin").stat().st_mode & 0o077 == 0
    assert (data / "pki" / "sa.key").stat().st_mode & 0o077 == 0
    assert (data / "tokens").stat().st_mode & 0o077 == 0
