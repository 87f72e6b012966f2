"""What the cluster needs of Debian: programs, the packages that bring them, and `install` for those that are missing.

`machine` and `images` say what is missing where they need it; only `scripts/cluster packages` changes the machine.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Final

from clusterlib.settings import CNI_PLUGINS, ClusterError

RUNNING: Final = {
    "containerd": ("containerd",),
    "runc": ("runc",),
    "iptables": ("iptables",),
    "conntrack": ("conntrack",),
    "nsenter": ("util-linux",),
    "ip": ("iproute2",),
}
"""Programs that a cluster runs, and the packages that bring each."""

BUILDING: Final = {
    "buildah": ("buildah",),
    "debootstrap": ("debootstrap",),
    "gcc": ("gcc", "libc6-dev"),
}
"""Programs that images are built with, where the cache does not have them."""

_APT: Final = ("apt-get", "--quiet", "--yes", "--no-install-recommends")


def missing(tools: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The packages of those programs that are not here; of a cluster's, the network plugins too."""
    found = {package for tool, packages in tools.items() if shutil.which(tool) is None for package in packages}
    if tools is RUNNING and not CNI_PLUGINS.exists():
        found.add("containernetworking-plugins")
    return sorted(found)


def check(tools: Mapping[str, tuple[str, ...]]) -> None:
    """Raise ClusterError, with what would help, when something is missing."""
    if packages := missing(tools):
        raise ClusterError(f"missing packages: {' '.join(packages)}; `scripts/cluster packages` installs them")


def install() -> list[str]:
    """Install what is missing, to run a cluster and to build its images; what that was. Raises ClusterError."""
    wanted = sorted({*missing(RUNNING), *missing(BUILDING)})
    if not wanted:
        return []
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ClusterError(f"missing packages: {' '.join(wanted)}; installing them needs root and apt-get")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ((*_APT, "update"), (*_APT, "install", *wanted)):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"`{' '.join(command)}` failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return wanted
