"""Kubeconfigs are read as kubectl reads them, and what is wrong with one is said in a sentence."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.kube.kubeconfig import ConfigError, from_kubeconfig, in_cluster, load_access


def write(path: Path, **changes: Any) -> str:
    document: dict[str, Any] = {
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c1", "user": "u1", "namespace": "team"}},
            {"name": "there", "context": {"cluster": "c2", "user": "u2"}},
        ],
        "clusters": [
            {"name": "c1", "cluster": {"server": "https://one:6443/"}},
            {"name": "c2", "cluster": {"server": "https://two:6443", "insecure-skip-tls-verify": True}},
        ],
        "users": [{"name": "u1", "user": {"token": "t1"}}, {"name": "u2", "user": {"tokenFile": "files/token"}}],
    }
    path.write_text(yaml.safe_dump(document | changes))
    return str(path)


def test_the_current_context_counts(tmp_path: Path) -> None:
    access = from_kubeconfig((write(tmp_path / "config"),))
    assert (access.server, access.namespace, access.context) == ("https://one:6443", "team", "here")
    assert access.bearer() == "t1"


def test_a_context_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "token").write_text("from-file\n")
    access = from_kubeconfig((write(tmp_path / "config"),), "there")
    assert (access.server, access.namespace, access.insecure) == ("https://two:6443", "default", True)
    assert access.bearer() == "from-file"


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    assert "t1" not in repr(from_kubeconfig((write(tmp_path / "config"),)))


def test_json_is_read_without_a_yaml_parser(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        '{"current-context":"x","contexts":[{"name":"x","context":{"cluster":"x"}}],'
        '"clusters":[{"name":"x","cluster":{"server":"https://one"}}]}'
    )
    program = (
        "import sys; from controlplane.kube.kubeconfig import from_kubeconfig; "
        f"print(from_kubeconfig(({str(path)!r},)).server, 'yaml' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert out.stdout.split() == ["https://one", "False"]


def test_data_wins_over_a_file_and_paths_are_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    pem = base64.b64encode(b"PEM").decode()
    clusters = [
        {
            "name": "c1",
            "cluster": {"server": "https://one", "certificate-authority": "ca", "certificate-authority-data": pem},
        },
        {"name": "c2", "cluster": {"server": "https://two", "certificate-authority": "certs/ca"}},
    ]
    path = write(tmp_path / "config", clusters=clusters)
    first, second = from_kubeconfig((path,)), from_kubeconfig((path,), "there")
    assert (first.ca_pem, first.ca_file) == (b"PEM", None)
    assert (second.ca_pem, second.ca_file) == (None, str(tmp_path / "certs" / "ca"))


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "a", users=[], **{"current-context": ""})
    second = write(tmp_path / "b", clusters=[{"name": "c1", "cluster": {"server": "https://never"}}])
    access = load_access(None, environ={"KUBECONFIG": f"{first}:{second}:{tmp_path}/absent"})
    assert (access.server, access.token, access.context) == ("https://one:6443", "t1", "here")


def test_home_is_the_default(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config")
    assert load_access(None, environ={"HOME": str(tmp_path)}).server == "https://one:6443"


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    for name, text in (("token", "tok\n"), ("ca.crt", "PEM"), ("namespace", "team")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOME": "/nowhere"}
    access = load_access(None, service_account_dir=str(tmp_path), environ=environ)
    assert (access.server, access.namespace, access.bearer()) == ("https://[fd00::1]:443", "team", "tok")


def test_a_named_kubeconfig_beats_the_service_account(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1", "KUBECONFIG": write(tmp_path / "c")}
    assert load_access(None, environ=environ).server == "https://one:6443"


def test_in_cluster_without_a_cluster_says_so() -> None:
    with pytest.raises(ConfigError, match="not in a cluster"):
        in_cluster("/nowhere", {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"current-context": ""}, "no current-context"),
        ({"current-context": "nope"}, "no context named 'nope'"),
        ({"clusters": []}, "no cluster named 'c1'"),
        ({"users": []}, "no user named 'u1'"),
        ({"clusters": [{"name": "c1", "cluster": {}}]}, "no http"),
        (
            {"clusters": [{"name": "c1", "cluster": {"server": "https://x", "certificate-authority-data": "!"}}]},
            "base64",
        ),
        ({"users": [{"name": "u1", "user": ["no"]}]}, "no mapping"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_kubeconfig((write(tmp_path / "config", **changes),))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "not YAML"),
        (b"- 1", "no kubeconfig"),
        (b"\xff", "not UTF-8"),
        (b"{", "not YAML"),
        (b"", "no current-context"),
    ],
)
def test_what_is_no_kubeconfig_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        from_kubeconfig((str(path),))


def test_an_absent_file_is_said() -> None:
    with pytest.raises(ConfigError, match="cannot read /nowhere/config"):
        from_kubeconfig(("/nowhere/config",))
    with pytest.raises(ConfigError, match="none of"):
        from_kubeconfig(("/nowhere/a", "/nowhere/b"))
