"""Kubeconfigs, good and bad: which one counts, what is wrong with it, and every kind of credential."""

import base64
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.harness import run as a_run
from tests.cli.stage import Krt, Kubernetes

BOTH = [("wait", "x"), ("invoke", "x")]


@pytest.fixture(params=BOTH, ids=["client", "plain"])
def command(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The two ways that requests are made."""
    return tuple(request.param)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", "is not YAML"),
        (b"5", "is no kubeconfig"),
        (b"", "no current-context"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"current-context: x\ncontexts: 7", "is no kubeconfig"),
        (b"current-context: x\ncontexts: [5]", "no context named 'x'"),
        (b"current-context: [x]\ncontexts: []", "kubeconfig"),
        (b"{" * 5000, "kubeconfig"),
    ],
)
def test_what_is_no_kubeconfig_is_told_with_its_path(
    content: bytes, words: str, command: tuple[str, ...], krt: Krt, tmp_path: Path
) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    message = krt(*command, "--kubeconfig", str(path)).failed(1, "ConfigInvalid")
    assert str(path) in message
    assert words in message


def test_a_path_that_cannot_be_read_is_told(command: tuple[str, ...], krt: Krt, tmp_path: Path) -> None:
    for path, words in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        message = krt(*command, "--kubeconfig", str(path)).failed(1, "ConfigInvalid")
        assert words in message


def test_with_nothing_at_all_the_way_out_is_told(command: tuple[str, ...], krt: Krt) -> None:
    assert "krt up" in krt(*command).failed(1, "ConfigInvalid")


@pytest.mark.parametrize(
    ("changes", "code", "reason", "words"),
    [
        ({"server": "https://127.0.0.1:1"}, 9, "CannotConnect", "cannot connect to 127.0.0.1:1: Connection refused"),
        ({"server": "https://nowhere.invalid:6443"}, 9, "CannotConnect", "nowhere.invalid"),
        ({"server": "https://127.0.0.1:port"}, 1, "ConfigInvalid", "port"),
        ({"server": "ftp://127.0.0.1"}, 1, "ConfigInvalid", "http"),
        ({"certificate-authority": "/absent"}, 1, "ConfigInvalid", "No such file"),
        ({"certificate-authority-data": "bm8="}, 1, "ConfigInvalid", "certificate"),
        ({"certificate-authority-data": "%%%"}, 1, "ConfigInvalid", "base64"),
        ({"certificate-authority": ""}, 9, "CannotConnect", "issuer"),
        ({"tls-server-name": "other.test"}, 9, "CannotConnect", "other.test"),
        ({"user": {"token": "nonsense"}}, 4, "Unauthorized", "credential"),
        ({"user": {}}, 4, None, ""),
        ({"user": {"token": "a\nb"}}, 1, "ConfigInvalid", "characters"),
        ({"user": {"tokenFile": "/absent"}}, 1, "ConfigInvalid", "/absent"),
        ({"user": {"client-certificate-data": "bm8=", "client-key-data": "bm8="}}, 1, "ConfigInvalid", "certificates"),
        ({"user": {"exec": {"command": "/bin/false"}}}, 4, "Unauthenticated", "plugin"),
    ],
)
def test_each_thing_that_can_be_wrong_has_its_exit_code(
    changes: dict[str, Any],
    code: int,
    reason: str | None,
    words: str,
    command: tuple[str, ...],
    krt: Krt,
    kubernetes: Kubernetes,
    tmp_path: Path,
) -> None:
    if exec_ := changes.get("user", {}).get("exec"):
        exec_ |= {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    path = kubernetes.kubeconfig(tmp_path / "config", **changes)
    done = krt(*command, "--kubeconfig", str(path))
    assert words in done.failed(code, reason or done.err.partition(":")[0])
    assert len(done.err.splitlines()) == 1


def _plugin(folder: Path, token: str) -> dict[str, Any]:
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
    script = folder / "plugin"
    script.write_text(f"#!/bin/sh\necho '{json.dumps(credential)}'\n")
    script.chmod(0o755)
    return {"exec": {"apiVersion": credential["apiVersion"], "command": "./plugin", "interactiveMode": "Never"}}


def test_tokens_files_and_plugins_are_credentials(
    command: tuple[str, ...], krt: Krt, kubernetes: Kubernetes, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(f"{kubernetes.token}\n")
    for user in ({"token": kubernetes.token}, {"tokenFile": "token"}, _plugin(tmp_path, kubernetes.token)):
        path = kubernetes.kubeconfig(tmp_path / "config", user=user)
        done = krt(*command, "--kubeconfig", str(path))
        assert done.code == 3, done
        assert krt("token", "--kubeconfig", str(path)).out == f"{kubernetes.token}\n"


def test_insecure_and_the_name_of_the_server_are_heeded(
    command: tuple[str, ...], krt: Krt, kubernetes: Kubernetes, tmp_path: Path
) -> None:
    good = 3  # there is no such Run, says the API
    path = kubernetes.kubeconfig(
        tmp_path / "insecure", **{"insecure-skip-tls-verify": True, "certificate-authority": ""}
    )
    assert krt(*command, "--kubeconfig", str(path)).code == good
    path = kubernetes.kubeconfig(tmp_path / "named", **{"tls-server-name": "localhost"})
    assert krt(*command, "--kubeconfig", str(path)).code == good
    pem = (kubernetes.directory / "pki" / "root.crt").read_bytes()
    data = {"certificate-authority-data": base64.b64encode(pem).decode()}
    assert krt(*command, "--kubeconfig", str(kubernetes.kubeconfig(tmp_path / "data", **data))).code == good


def test_context_namespace_and_the_variable_are_as_in_kubectl(
    krt: Krt, kubernetes: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.put(a_run("here"))
    first = json.loads(kubernetes.kubeconfig(tmp_path / "first").read_text())
    first["contexts"].append({"name": "far", "context": {"cluster": "k", "user": "u", "namespace": "kube-system"}})
    (tmp_path / "first").write_text(json.dumps(first))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{tmp_path / 'first'}")
    assert krt("get", "-o", "name").out == "run.kruntimes.io/here\n"
    assert krt("list", "--context", "far").err == "No Runs found in namespace kube-system\n"
    assert krt("get", "-o", "name", "--context", "far", "-n", "default").out == "run.kruntimes.io/here\n"
    krt("list", "--context", "absent").failed(1, "ConfigInvalid")
    assert krt("get", "nobody", "--kubeconfig", str(tmp_path / "first")).code == 3


@pytest.fixture
def up(kubernetes: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory as a running `krt up` holds it."""
    directory = tmp_path / "up"
    directory.mkdir()
    kubernetes.kubeconfig(directory / "kubeconfig")
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    monkeypatch.setenv("KRUNTIMES_DATA_DIR", str(directory))
    monkeypatch.delenv("KUBECONFIG")
    yield directory
    os.close(lock)


def test_a_running_system_is_found_by_itself(krt: Krt, up: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert krt("list").code == 0
    assert krt("invoke", "nobody").code == 3
    assert krt("kubeconfig", "--path").out == f"{up / 'kubeconfig'}\n"
    assert json.loads(krt("kubeconfig").out)["kind"] == "Config"
    monkeypatch.setenv("KUBECONFIG", "/absent")  # what is asked for comes first
    krt("list").failed(1, "ConfigInvalid")


def test_one_that_is_stopped_is_not_used(krt: Krt, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(os.environ["HOME"])
    (home / ".kruntimes").mkdir(parents=True)
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KRUNTIMES_DATA_DIR")
    kubernetes.kubeconfig(home / ".kruntimes" / "kubeconfig", server="https://127.0.0.1:1")
    (home / ".kruntimes" / "lock").touch()
    (home / ".kube").mkdir()
    kubernetes.kubeconfig(home / ".kube" / "config")
    assert krt("list").code == 0
    done = krt("kubeconfig", "--path")
    assert (done.code, "nothing runs" in done.err) == (0, True)


def test_no_kubeconfig_of_ours_is_told(krt: Krt, tmp_path: Path) -> None:
    krt("kubeconfig", "--data-dir", str(tmp_path / "absent")).failed(3, "NotRunning")
