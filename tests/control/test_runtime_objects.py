"""What a Runtime becomes: compared with golden objects, and templates that use what is reserved."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.kube.types import Pod, RuntimeObject
from controlplane.kube.types_runtime import ArtifactStoreObject, GitCredentialObject, GitObject
from controlplane.runtimecontroller.objects import unwanted_objects, wanted_objects
from controlplane.runtimecontroller.status import RuntimeReason, Trouble, shown_status, wanted_status
from controlplane.runtimecontroller.template import problems
from tests.control.support import SETTINGS
from tests.kit.builders import runtime_object, runtime_pod

GOLDEN = Path(__file__).parent / "golden"
NOW = 1_767_225_600_000_000


def with_template(template: dict[str, Any]) -> RuntimeObject:
    runtime = runtime_object("python", replicas=2)
    return msgspec.structs.replace(runtime, spec=msgspec.structs.replace(runtime.spec, template=template))


def rendered(runtime: RuntimeObject) -> str:
    objects = [wanted.body for wanted in wanted_objects(runtime, SETTINGS)]
    return json.dumps(objects, indent=2, ensure_ascii=False) + "\n"


RICH: dict[str, Any] = {
    "metadata": {"labels": {"team": "ops"}, "annotations": {"example.com/a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "runtime",
                "image": "example.com/py:1",
                "env": [{"name": "A", "value": "1"}],
                "resources": {"limits": {"memory": "1Gi"}},
                "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
                "livenessProbe": {"tcpSocket": {"port": 1}},
            },
            {"name": "helper", "image": "example.com/helper"},
        ],
        "initContainers": [{"name": "fetch", "image": "example.com/fetch"}],
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 60}],
        "terminationGracePeriodSeconds": 60,
        "futureField": {"kept": True},
    },
}


@pytest.mark.parametrize(
    ("name", "runtime"), [("plain", runtime_object("python", replicas=2)), ("rich", with_template(RICH))]
)
def test_a_runtime_becomes_these_objects(name: str, runtime: RuntimeObject):
    assert rendered(runtime) == (GOLDEN / f"{name}.json").read_text()


def test_the_template_of_the_user_is_not_changed_in_place():
    before = json.dumps(RICH)
    rendered(with_template(RICH))
    assert json.dumps(RICH) == before


STORES: list[tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = [
    (
        {"filesystem": {"path": "/data/a/"}},
        {"KRUNTIMES_ARTIFACTS_URI": "file:///data/a", "KRUNTIMES_ARTIFACTS_DIR": "/var/lib/kruntimes/artifacts"},
        {"hostPath": {"path": "/data/a/", "type": "DirectoryOrCreate"}},
    ),
    (
        {"filesystem": {"volumeClaimName": "claim"}},
        {"KRUNTIMES_ARTIFACTS_URI": "file://claim"},
        {"persistentVolumeClaim": {"claimName": "claim"}},
    ),
    (
        {"s3": {"bucket": "b", "prefix": "/p/", "endpoint": "https://s3.example.com", "credentialsSecretName": "keys"}},
        {
            "KRUNTIMES_ARTIFACTS_URI": "s3://b/p",
            "KRUNTIMES_ARTIFACTS_ENDPOINT": "https://s3.example.com",
            "KRUNTIMES_ARTIFACTS_CREDENTIALS_DIR": "/var/run/secrets/kruntimes-artifacts",
        },
        {"secret": {"secretName": "keys"}},
    ),
]


@pytest.mark.parametrize(("store", "expected", "volume"), STORES)
def test_runtimed_alone_is_told_of_the_artifact_store(
    store: dict[str, Any], expected: dict[str, str], volume: dict[str, Any]
):
    plain = runtime_object("python")
    runtime = msgspec.convert(msgspec.to_builtins(plain), RuntimeObject)
    spec = msgspec.structs.replace(runtime.spec, artifact_store=msgspec.convert(store, ArtifactStoreObject))
    pod = wanted_objects(msgspec.structs.replace(runtime, spec=spec), SETTINGS)[-1].body["spec"]["template"]["spec"]
    daemon, user = pod["initContainers"][0], pod["containers"][0]
    env = {variable["name"]: variable.get("value") for variable in daemon["env"]}
    assert env | expected == env and env["KRUNTIMES_ARTIFACTS_KEY"] == "default/python-uid-runtime-python"
    [mounted] = [v for v in pod["volumes"] if v["name"].startswith("kruntimes-artifacts")]
    assert mounted | volume == mounted
    assert mounted["name"] in {mount["name"] for mount in daemon["volumeMounts"]}
    assert mounted["name"] not in {mount["name"] for mount in user["volumeMounts"]}
    assert not any(name["name"].startswith("KRUNTIMES_ARTIFACTS") for name in user.get("env", ()))
    written = pod.get("securityContext", {}).get("fsGroup")
    assert written == (65532 if "persistentVolumeClaim" in volume else None), "runtimed may write to a claim"


def test_runtimed_runs_as_the_user_of_the_runtime_server():
    context = {"runAsUser": 1000, "runAsGroup": 1001, "runAsNonRoot": False}
    runtime = with_template(template(containers=[{"name": "runtime", "image": "i", "securityContext": context}]))
    pod = wanted_objects(runtime, SETTINGS)[-1].body["spec"]["template"]["spec"]
    security = pod["initContainers"][0]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["runAsNonRoot"]) == (1000, 1001, True)
    assert pod["containers"][0]["securityContext"] == context


def test_a_templates_own_group_of_volumes_is_kept():
    claim = msgspec.convert({"filesystem": {"volumeClaimName": "claim"}}, ArtifactStoreObject)
    runtime = with_template(template(securityContext={"fsGroup": 7, "runAsUser": 8}))
    runtime = msgspec.structs.replace(runtime, spec=msgspec.structs.replace(runtime.spec, artifact_store=claim))
    pod = wanted_objects(runtime, SETTINGS)[-1].body["spec"]["template"]["spec"]
    assert (pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsUser"]) == (7, 8)


def test_the_nodes_cache_of_sources_is_a_folder_for_each_runtime():
    settings = msgspec.structs.replace(SETTINGS, source_cache="/var/cache/k")
    pod = wanted_objects(runtime_object("python"), settings)[-1].body["spec"]["template"]["spec"]
    [volume] = [v for v in pod["volumes"] if v["name"] == "kruntimes-source-cache"]
    assert volume["hostPath"] == {"path": "/var/cache/k/default/python", "type": "DirectoryOrCreate"}
    assert volume["name"] not in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}


def test_git_credentials_are_mounted_by_host_for_runtimed_alone():
    runtime = runtime_object("python")
    git = GitObject(credentials=(GitCredentialObject(host="git.example.com:8443", secret_name="s"),))
    spec = msgspec.structs.replace(runtime.spec, git=git)
    pod = wanted_objects(msgspec.structs.replace(runtime, spec=spec), SETTINGS)[-1].body["spec"]["template"]["spec"]
    env = {variable["name"]: variable.get("value") for variable in pod["initContainers"][0]["env"]}
    assert env["KRUNTIMES_GIT_HOSTS"] == "git.example.com:8443"
    [volume] = [v for v in pod["volumes"] if v["name"] == "kruntimes-git-credentials"]
    [source] = volume["projected"]["sources"]
    assert source["secret"]["optional"] and source["secret"]["items"][0] == {"key": "username", "path": "0/username"}
    assert volume["name"] not in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}


def test_user_code_gets_no_credential():
    deployment = wanted_objects(with_template(RICH), SETTINGS)[-1].body
    spec = deployment["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    secret = {"api-access", "identity"}
    for container in spec["containers"]:
        assert not secret & {mount["name"] for mount in container.get("volumeMounts", ())}, container["name"]


def test_without_a_gateway_runtimed_is_told_of_none():
    settings = msgspec.structs.replace(SETTINGS, gateway_url="")
    deployment = wanted_objects(runtime_object(), settings)[-1].body
    daemon = deployment["spec"]["template"]["spec"]["initContainers"][0]
    assert "KRUNTIMES_GATEWAY_URL" not in {variable["name"] for variable in daemon["env"]}


def test_an_image_of_its_own_replaces_the_installations():
    runtime = runtime_object()
    own = msgspec.structs.replace(runtime, spec=msgspec.structs.replace(runtime.spec, daemon_image="mine/runtimed:2"))
    daemon = wanted_objects(own, SETTINGS)[-1].body["spec"]["template"]["spec"]["initContainers"][0]
    assert daemon["image"] == "mine/runtimed:2"


def test_a_network_policy_lets_gateways_control_planes_and_pods_of_the_same_runtime_in_and_nobody_else():
    settings = msgspec.structs.replace(SETTINGS, network_policy="on", system_namespace="kruntimes-system")
    runtime = runtime_object("python")
    (policy,) = [wanted.body for wanted in wanted_objects(runtime, settings) if wanted.kind.kind == "NetworkPolicy"]
    assert policy["metadata"]["name"] == "runtime-python"
    assert policy["metadata"]["ownerReferences"][0]["kind"] == "Runtime"
    same = {"matchLabels": {"kruntimes.io/runtime": "python"}}
    system = {"matchLabels": {"kubernetes.io/metadata.name": "kruntimes-system"}}
    assert policy["spec"]["podSelector"] == same
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["ports"] == [{"port": 8443, "protocol": "TCP"}]
    *ours, peers = rule["from"]
    assert peers == {"podSelector": same}
    assert [each["namespaceSelector"] for each in ours] == [system, system]
    components = [each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in ours]
    assert components == ["gateway", "controlplane"]


@pytest.mark.parametrize(("switch", "made", "removed"), [("on", 1, 0), ("off", 0, 1), ("", 0, 0)])
def test_the_network_policy_can_be_switched_off_and_then_goes(switch: Any, made: int, removed: int):
    settings = msgspec.structs.replace(SETTINGS, network_policy=switch)
    runtime = runtime_object("python")
    policies = [wanted for wanted in wanted_objects(runtime, settings) if wanted.kind.kind == "NetworkPolicy"]
    assert len(policies) == made
    assert [name for _, name in unwanted_objects(runtime, settings)] == ["runtime-python"] * removed


def template(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "runtime", "image": "i"}], **spec}}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"spec": {"containers": []}}, "spec.template.spec.containers[0].name must be runtime"),
        ({"spec": {"containers": [{"name": "web"}]}}, "spec.template.spec.containers[0].name must be runtime"),
        (
            template(containers=[{"name": "runtime"}, {"name": "runtimed"}]),
            "spec.template.spec.containers[1].name: runtimed is reserved",
        ),
        (
            template(initContainers=[{"name": "runtimed"}]),
            "spec.template.spec.initContainers[0].name: runtimed is reserved",
        ),
        (
            template(initContainers=[{"name": "runtime"}]),
            "spec.template.spec.initContainers[0].name: runtime is reserved",
        ),
        (
            template(volumes=[{"name": "data"}, {"name": "identity"}]),
            "spec.template.spec.volumes[1].name: identity is reserved",
        ),
        (
            template(containers=[{"name": "runtime", "volumeMounts": [{"name": "api-access", "mountPath": "/x"}]}]),
            "spec.template.spec.containers[0].volumeMounts: volume api-access is reserved",
        ),
        (
            template(containers=[{"name": "runtime", "volumeMounts": [{"name": "d", "mountPath": "/work/data"}]}]),
            "spec.template.spec.containers[0].volumeMounts: /work/data is reserved",
        ),
        (
            template(containers=[{"name": "runtime", "volumeMounts": [{"name": "d", "mountPath": "/run/"}]}]),
            "spec.template.spec.containers[0].volumeMounts: /run/ is reserved",
        ),
        (
            {**template(), "metadata": {"labels": {"kruntimes.io/runtime": "x"}}},
            "spec.template.metadata.labels: kruntimes.io/runtime is reserved",
        ),
        (
            template(serviceAccountName="admin"),
            "spec.template.spec.serviceAccountName must be runtime-python, or absent",
        ),
        (
            template(automountServiceAccountToken=True),
            "spec.template.spec.automountServiceAccountToken must be false: user code gets no API token",
        ),
        (
            template(shareProcessNamespace=True),
            "spec.template.spec.shareProcessNamespace must be false: user code could read runtimed's memory",
        ),
        (template(hostPID=True), "spec.template.spec.hostPID must be false: user code could read runtimed's memory"),
        (template(restartPolicy="Never"), "spec.template.spec.restartPolicy must be Always"),
        (
            template(securityContext={"runAsUser": 0}),
            "spec.template.spec.securityContext.runAsUser must not be 0: runtimed runs as that user",
        ),
        (
            template(containers=[{"name": "runtime", "securityContext": {"runAsUser": 0}}]),
            "spec.template.spec.containers[0].securityContext.runAsUser must not be 0: runtimed runs as that user",
        ),
        *(
            (
                template(volumes=[{"name": "t", "projected": {"sources": [{"serviceAccountToken": token}]}}]),
                "spec.template.spec.volumes[0].projected: a token must have an audience that is neither the API's own "
                "nor kruntimes: user code is not to be taken for runtimed",
            )
            for token in ({"path": "t"}, {"path": "t", "audience": "kruntimes"})
        ),
    ],
)
def test_a_template_that_uses_what_is_reserved_is_refused_by_name(bad: dict[str, Any], sentence: str):
    assert problems(bad, "runtime-python") == [sentence]


def test_a_template_that_uses_nothing_reserved_is_taken():
    assert problems(RICH, "runtime-python") == []
    assert problems(template(serviceAccountName="runtime-python"), "runtime-python") == []
    vault = {"serviceAccountToken": {"path": "t", "audience": "vault"}}
    assert problems(template(volumes=[{"name": "t", "projected": {"sources": [vault]}}]), "runtime-python") == []


def status(runtime: RuntimeObject, *pods: Pod, trouble: Trouble | None = None) -> dict[str, Any]:
    return wanted_status(runtime, pods, ({"runs": 4}, {"runs": 1}), trouble, NOW)


def test_the_status_says_what_stands_ready():
    pods = (runtime_pod(), runtime_pod("runtime-python-2", uid="pod-2", ready=False))
    assert status(runtime_object(replicas=2), *pods) == {
        "replicas": 2,
        "readyReplicas": 1,
        "selector": "kruntimes.io/runtime=python",
        "conditions": [
            {
                "type": "Available",
                "status": "True",
                "reason": "PodsReady",
                "message": "1 of 2 Pods are ready",
                "lastTransitionTime": "2026-01-01T00:00:00.000000Z",
            }
        ],
        "capacity": {"total": {"runs": 4}, "used": {"runs": 1}, "runs": "1/4"},
    }


@pytest.mark.parametrize(
    ("replicas", "trouble", "reason"),
    [
        (2, None, "NoPodReady"),
        (0, None, "ScaledToZero"),
        (2, Trouble(RuntimeReason.TEMPLATE_INVALID, "no"), "TemplateInvalid"),
    ],
)
def test_a_runtime_without_ready_pods_says_why(replicas: int, trouble: Trouble | None, reason: str):
    condition = status(runtime_object(replicas=replicas), trouble=trouble)["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", reason)


def test_a_written_status_reads_back_as_the_same():
    runtime = runtime_object()
    wanted = status(runtime, runtime_pod())
    content = msgspec.to_builtins(runtime) | {"status": wanted}
    written = msgspec.convert(content, RuntimeObject)
    assert shown_status(written) == wanted
    later = wanted_status(written, (runtime_pod(),), ({"runs": 4}, {"runs": 1}), None, NOW + 10**9)
    assert later == wanted, "time alone changes nothing"
