"""The product on the cluster: images loaded, chart installed or upgraded, each Pod new whose image is."""

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from clusterlib import binaries, images
from clusterlib.settings import IMAGES, KUBECONFIG, ROOT, ClusterError

RELEASE: Final = "kruntimes"
NAMESPACE: Final = "kruntimes-system"
TIMEOUT: Final = "120s"
UNINSTALL_TIMEOUT: Final = "300s"  # Runtime Pods end their calls first
RUNTIME_IMAGES: Final = ("runtimed", "python-runtime", "bash-runtime")


def install(arguments: Sequence[str]) -> None:
    """Install or upgrade; `arguments` go to helm. Raises ClusterError."""
    images.load()
    # Every build has the same tag, so what tells Pods apart is a digest of what their images are made of.
    digests = {name: images.digest(name) for name in IMAGES}
    runtimes = "-".join(digests[name] for name in RUNTIME_IMAGES)
    built = {
        "controlplane.podAnnotations.built": digests["controlplane"],
        "gateway.podAnnotations.built": digests["gateway"],
        "defaultRuntimes.podAnnotations.built": runtimes,
    }
    values = [part for name, value in built.items() for part in ("--set-string", f"{name}={value}")]
    chart = ("upgrade", "--install", RELEASE, str(ROOT / "deploy" / "chart"), "--create-namespace")
    helm(*chart, "--namespace", NAMESPACE, "--wait", "--timeout", TIMEOUT, *values, *arguments)


def uninstall() -> None:
    """Remove the release; CRDs and the installation's root stay."""
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", UNINSTALL_TIMEOUT, "--ignore-not-found")


def helm(*arguments: str) -> str:
    """Run helm against the cluster; what it prints. Raises ClusterError."""
    binaries.ensure("helm")
    env = {**os.environ, "KUBECONFIG": str(KUBECONFIG)}
    command = [str(binaries.path("helm")), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`helm {arguments[0]}` failed: {done.stderr.strip()}")
    return done.stdout
