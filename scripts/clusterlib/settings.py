"""Versions, names, addresses and folders of the cluster. Data only; every other module reads it."""

import os
from pathlib import Path
from typing import Final

KUBERNETES: Final = "v1.34.4"
ETCD: Final = "v3.6.13"
HELM: Final = "v4.3.1"
COREDNS: Final = "v1.12.4"
BINARIES: Final = {"kubernetes": KUBERNETES, "etcd": ETCD, "helm": HELM, "coredns": COREDNS}

NAME: Final = "kruntimes-cluster"
NODE_NAME: Final = "kruntimes-node"

HOST_LINK, NODE_LINK = "krt-host", "krt-node"
HOST_IP, NODE_IP, LINK_BITS = "10.250.0.1", "10.250.0.2", 24
POD_RANGE: Final = "10.244.0.0/24"
SERVICE_RANGE: Final = "10.96.0.0/16"
API_SERVICE_IP: Final = "10.96.0.1"
DNS_SERVICE_IP: Final = "10.96.0.10"
CLUSTER_DOMAIN: Final = "cluster.local"
API_PORT: Final = 6443
API_URL: Final = f"https://{NODE_IP}:{API_PORT}"

PAUSE_IMAGE: Final = "docker.io/kruntimes/pause:1"
BASE_IMAGE: Final = "localhost/kruntimes/base:bookworm"
BASE_SUITE: Final = "bookworm"
IMAGES: Final = ("controlplane", "gateway", "runtimed", "python-runtime", "bash-runtime")
IMAGE_PREFIX: Final = "docker.io/kruntimes"

CNI_PLUGINS: Final = Path("/usr/lib/cni")  # where Debian's containernetworking-plugins puts them

ROOT: Final = Path(__file__).resolve().parents[2]
STATE: Final = Path(os.environ.get("KRUNTIMES_CLUSTER_DIR") or "/var/lib/kruntimes-cluster")
CACHE: Final = Path(
    os.environ.get("KRUNTIMES_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "kruntimes/cluster")
).expanduser()
"""Binaries, base image and images, by version. It may be removed at any time."""
_READY_CACHE: Final = os.environ.get("KRUNTIMES_CLUSTER_CACHE")
READY_CACHE: Final = Path(_READY_CACHE) if _READY_CACHE else None
"""A folder of `<name>-<version>.xz` with SHA256SUMS that is only read."""

CONTAINERD_SOCKET: Final = STATE / "containerd.sock"
KUBECONFIG: Final = STATE / "kubeconfig"
AUDIT_LOG: Final = STATE / "logs" / "audit.log"

PRIVATE_FOLDERS: Final = ("/run/netns", "/run/containerd", "/var/lib/cni", "/var/log/containers", "/var/lib/kubelet")
"""Places that containerd, CNI and the kubelet have fixed: the node gets an empty one of its own over each."""

UP_TIMEOUT_S: Final = 60.0


class ClusterError(Exception):
    """Something that `scripts/cluster` cannot do; the message says what, and what would help."""
