"""The cluster's binaries: from the cache, from a ready cache that the environment names, or built from Go modules.

Built binaries carry their version in the name, so a new version never meets an old file. Needs `go` only to build.
"""

import hashlib
import lzma
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from clusterlib.settings import BINARIES, CACHE, COREDNS, ETCD, HELM, KUBERNETES, READY_CACHE, ClusterError

_STAGING: Final = [
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kms",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
    "sample-cli-plugin",
    "sample-controller",
]

_MODULES: Final = {
    "etcd": ("go.etcd.io/etcd/server/v3", ETCD, ""),
    "helm": ("helm.sh/helm/v4", HELM, "/cmd/helm"),
    "coredns": ("github.com/coredns/coredns", COREDNS, ""),
}
"""Module, version, and the package in it that is the program."""

_MAIN: Final = """// One binary for every component of Kubernetes: the first argument says which.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"context"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllermanager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
		"kube-proxy":              proxy.NewProxyCommand,
	}
	if len(os.Args) > 1 && commands[os.Args[1]] != nil {
		command := commands[os.Args[1]]
		os.Args = os.Args[1:]
		os.Exit(cli.Run(command()))
	}
	os.Stderr.WriteString("name a component first: kube-apiserver, kube-controller-manager, …\\n")
	os.Exit(2)
}
"""


def path(name: str) -> Path:
    """Where a binary is once `ensure` has returned."""
    return CACHE / f"{name}-{BINARIES[name]}"


def ensure(*names: str) -> None:
    """Have these binaries (all of them by default) in the cache. Raises ClusterError."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in names or tuple(BINARIES):
        if not path(name).exists() and not _unpack(name):
            print(f"building {path(name).name} (minutes) …", flush=True)
            _build(name)


def _unpack(name: str) -> bool:
    """Take it from the ready cache, if there is one that has it and its checksum is right."""
    target = path(name)
    packed = READY_CACHE / f"{target.name}.xz" if READY_CACHE is not None else None
    if packed is None or not packed.exists():
        return False
    assert READY_CACHE is not None
    lines = (READY_CACHE / "SHA256SUMS").read_text().splitlines()
    sums = {file.lstrip("*"): digest for digest, _, file in (line.partition("  ") for line in lines)}
    content = packed.read_bytes()
    if sums.get(packed.name) != hashlib.sha256(content).hexdigest():
        raise ClusterError(f"{packed} does not have the checksum that SHA256SUMS gives it")
    _install(lzma.decompress(content), target)
    return True


def _install(content: bytes, target: Path) -> None:
    beside = target.with_suffix(".new")
    beside.write_bytes(content)
    beside.chmod(0o755)
    beside.replace(target)


def _build(name: str) -> None:
    if shutil.which("go") is None:
        raise ClusterError(f"{name} is not cached, and building it needs Go (`go` is not on the PATH)")
    with tempfile.TemporaryDirectory(prefix="kruntimes-go-") as text:
        folder = Path(text)
        package = _kubernetes(folder) if name == "kubernetes" else _module(folder, *_MODULES[name])
        flags = ["-trimpath", "-ldflags", _ldflags(name), "-o", str(folder / "built")]
        _go(folder, "build", *flags, package)
        _install((folder / "built").read_bytes(), path(name))


def _kubernetes(folder: Path) -> str:
    staging = "v0." + KUBERNETES.removeprefix("v1.")
    replaced = "".join(f"replace k8s.io/{module} => k8s.io/{module} {staging}\n" for module in _STAGING)
    (folder / "go.mod").write_text(f"module node\n\ngo 1.24\n\nrequire k8s.io/kubernetes {KUBERNETES}\n\n{replaced}")
    (folder / "main.go").write_text(_MAIN)
    _go(folder, "mod", "tidy")
    return "."


def _module(folder: Path, module: str, version: str, package: str) -> str:
    (folder / "go.mod").write_text(f"module build\n\ngo 1.24\n\nrequire {module} {version}\n")
    (folder / "tools.go").write_text(f'//go:build tools\n\npackage build\n\nimport _ "{module}{package}"\n')
    _go(folder, "mod", "tidy")
    return f"{module}{package}"


def _ldflags(name: str) -> str:
    if name != "kubernetes":
        return "-s -w"
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s -w", *(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())]
    )


def _go(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["nice", "go", *arguments],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"},
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"`go {arguments[0]}` failed in {folder}")
