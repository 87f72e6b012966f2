"""`krt` outside the cluster: each kind of credential that a kubeconfig holds, through a port-forward to the gateway."""

import base64
import json
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.kube.resources import RUNS
from tests.cluster.kit import GATEWAY_HOST, KUBECONFIG, SYSTEM, Cluster, fresh, settled
from tests.e2e.stack import ECHO, function, krt

RBAC = "rbac.authorization.k8s.io"
FORWARDING = [
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]},
]
READING = [{"apiGroups": ["kruntimes.io"], "resources": ["runs"], "verbs": ["get"]}]
MIB = 1 << 20


def _granted(namespace: str, account: str, rules: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    metadata = {"name": f"{account}-krt", "namespace": namespace}
    return (
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "default"}],
        },
    )


@pytest.fixture
def tokens(cluster: Cluster) -> dict[str, str]:
    """Tokens of one who may read Runs and forward ports to the gateway, and of one who may only read Runs."""
    found = {}
    for account in ("outside", "inside"):
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
        cluster.apply(*_granted("default", account, READING))
        found[account] = cluster.token(account)
    cluster.apply(*_granted(SYSTEM, "outside", FORWARDING), namespace=SYSTEM)
    return found


@pytest.fixture
async def echo(cluster: Cluster) -> AsyncIterator[str]:
    """The name of a ready function that returns what it is given."""
    name = fresh("outside")
    async with cluster.client() as client:
        await client.create(RUNS, "default", function(name, ECHO, mode={"concurrency": 8}))
        await settled(lambda: client.get(RUNS, "default", name), lambda run: run.status.phase == "Ready")
        yield name
        await client.delete(RUNS, "default", name)


def _kubeconfig(folder: Path, user: dict[str, Any]) -> Path:
    config = yaml.safe_load(KUBECONFIG.read_text())
    context = {"cluster": config["clusters"][0]["name"], "user": "u", "namespace": "default"}
    config |= {"users": [{"name": "u", "user": user}], "contexts": [{"name": "c", "context": context}]}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config | {"current-context": "c"}))
    return path


def _certificate(_: str, __: Path) -> dict[str, Any]:
    user: dict[str, Any] = yaml.safe_load(KUBECONFIG.read_text())["users"][0]["user"]
    return user


def _certificate_within(token: str, folder: Path) -> dict[str, Any]:
    paths = _certificate(token, folder)
    return {f"{key}-data": base64.b64encode(Path(path).read_bytes()).decode() for key, path in paths.items()}


def _token(token: str, _: Path) -> dict[str, Any]:
    return {"token": token}


def _token_file(token: str, folder: Path) -> dict[str, Any]:
    (folder / "token").write_text(token)
    return {"tokenFile": str(folder / "token")}


def _plugin(token: str, folder: Path) -> dict[str, Any]:
    version = "client.authentication.k8s.io/v1"
    said = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": token}}
    (folder / "said").write_text(json.dumps(said))
    return {
        "exec": {
            "apiVersion": version,
            "command": "cat",
            "args": [str(folder / "said")],
            "interactiveMode": "Never",
        }
    }


USERS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "certificate": _certificate,
    "certificate within": _certificate_within,
    "token": _token,
    "token file": _token_file,
    "plugin": _plugin,
}


@pytest.mark.parametrize("user", USERS)
async def test_any_credential_of_a_kubeconfig_can_invoke_from_outside_the_cluster(
    echo: str, tokens: dict[str, str], tmp_path: Path, user: str
) -> None:
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo(GATEWAY_HOST, 443)  # or nothing here would go through a port-forward
    kubeconfig = _kubeconfig(tmp_path, USERS[user](tokens["outside"], tmp_path))
    done = krt("invoke", echo, "-d", '{"a": 1}', "-v", kubeconfig=kubeconfig)
    assert (done.code, done.out) == (0, '{"outputs":{"echo":{"a":1}}}'), done.err
    assert "TLSv1.3" in done.err


async def test_large_and_concurrent_calls_go_through_a_port_forward(
    echo: str, tokens: dict[str, str], tmp_path: Path
) -> None:
    kubeconfig = _kubeconfig(tmp_path, _token(tokens["outside"], tmp_path))
    large = json.dumps({"x": "ä" * (MIB // 2 - 64)}, ensure_ascii=False)

    def call(_: int) -> Any:
        return krt("invoke", echo, "-d", "-", kubeconfig=kubeconfig, stdin=large)

    with ThreadPoolExecutor(4) as pool:
        for done in pool.map(call, range(8)):
            assert done.code == 0, done.err
            assert done.json["outputs"]["echo"] == json.loads(large)


async def test_who_may_not_forward_a_port_is_told_so_in_one_line(
    echo: str, tokens: dict[str, str], tmp_path: Path
) -> None:
    kubeconfig = _kubeconfig(tmp_path, _token(tokens["inside"], tmp_path))
    done = krt("invoke", echo, kubeconfig=kubeconfig)
    assert (done.code, done.out) == (9, "")
    assert len(done.err.splitlines()) == 1
    assert "runtime-gateway" in done.err
    assert "--gateway-url" in done.err


async def test_the_other_commands_work_with_a_clusters_kubeconfig(echo: str, tmp_path: Path) -> None:
    kubeconfig = _kubeconfig(tmp_path, _certificate("", tmp_path))

    def ok(*arguments: str, **options: Any) -> str:
        done = krt(*arguments, kubeconfig=kubeconfig, **options)
        assert done.code == 0, (arguments, done.err)
        return done.out

    assert echo in ok("list")
    assert json.loads(ok("get", echo, "-o", "json"))["status"]["phase"] == "Ready"
    assert "FunctionRegistered" in ok("explain", echo)
    assert ok("token", "--serviceaccount", "default").count(".") == 2
    assert krt("token", kubeconfig=kubeconfig).err.startswith("NoToken: ")
    assert "v1.34" in ok("version")
    name = fresh("made")
    ok(
        "run",
        "--runtime",
        "bash",
        "--name",
        name,
        "--file",
        "-",
        "--wait",
        stdin="echo made; echo a=b >> $KRUNTIME_OUTPUTS\n",
    )
    assert ok("logs", name) == "made\n"
    assert ok("diagram", name).rstrip().endswith("Succeeded")
    assert "Succeeded" in ok("replay", name, "-o", "name")
    ok("wait", name, "--for=phase=Succeeded")
    ok("cancel", echo)
    ok("wait", echo, "--for=phase=Cancelled")
    ok("delete", name)
    assert krt("get", name, kubeconfig=kubeconfig).code == 3
