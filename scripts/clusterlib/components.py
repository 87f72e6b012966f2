"""What the node runs: each component's files and command line. Text in, files and lists out; nothing starts here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from clusterlib import binaries
from clusterlib.certificates import Authority, service_account_key
from clusterlib.settings import (
    API_PORT,
    API_SERVICE_IP,
    API_URL,
    AUDIT_LOG,
    CLUSTER_DOMAIN,
    CNI_PLUGINS,
    CONTAINERD_SOCKET,
    DNS_SERVICE_IP,
    KUBECONFIG,
    NAME,
    NODE_IP,
    NODE_NAME,
    PAUSE_IMAGE,
    POD_RANGE,
    SERVICE_RANGE,
    STATE,
)

PKI: Final = STATE / "pki"
CONFIG: Final = STATE / "config"
ETCD_URL: Final = "http://127.0.0.1:2379"

_ADMISSION: Final = "NodeRestriction,OwnerReferencesPermissionEnforcement"

_AUDIT_POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {
            "level": "Request",
            "verbs": ["create", "update", "patch", "delete", "deletecollection"],
            "resources": [{"group": "kruntimes.io"}],
        },
        {"level": "Metadata", "resources": [{"group": "kruntimes.io"}]},
        {"level": "None"},
    ],
}
"""Every write to a Run with its body: tests count writes with it."""


@dataclass(frozen=True)
class Component:
    """A daemon of the node: its name is that of its log, too."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def write_files() -> None:
    """Certificates, kubeconfigs and configuration files, all new."""
    for folder in (PKI, CONFIG, CONFIG / "cni", STATE / "logs", STATE / "kubelet" / "plugins"):
        folder.mkdir(parents=True, exist_ok=True)
    cluster, front_proxy = Authority(PKI, "ca"), Authority(PKI, "front-proxy-ca")
    service_account_key(PKI)
    service = "kubernetes.default.svc"
    names = ("kubernetes", "kubernetes.default", service, f"{service}.{CLUSTER_DOMAIN}", "localhost")
    cluster.issue("apiserver", user="kube-apiserver", hosts=(*names, API_SERVICE_IP, NODE_IP, "127.0.0.1"))
    cluster.issue("apiserver-kubelet", user="kube-apiserver-kubelet-client", groups=("system:masters",))
    front_proxy.issue("front-proxy-client", user="front-proxy-client")
    cluster.issue("kubelet-server", user=f"system:node:{NODE_NAME}", hosts=(NODE_NAME, NODE_IP))
    _kubeconfig(cluster, "kubelet", user=f"system:node:{NODE_NAME}", groups=("system:nodes",))
    for component in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
        _kubeconfig(cluster, component, user=f"system:{component}")
    _kubeconfig(cluster, "coredns", user="system:coredns")
    _kubeconfig(cluster, "admin", user="admin", groups=("system:masters",), path=KUBECONFIG)
    _write("audit-policy.yaml", _AUDIT_POLICY)
    _write("kubelet.yaml", _kubelet())
    _write("kube-proxy.yaml", _kube_proxy())
    (CONFIG / "containerd.toml").write_text(_containerd())
    (CONFIG / "cni" / "10-bridge.conflist").write_text(json.dumps(_cni(), indent=1))
    (CONFIG / "Corefile").write_text(_corefile())


def etcd() -> Component:
    """Without fsync: a test cluster's state may be lost with the machine."""
    command = (
        str(binaries.path("etcd")),
        f"--name={NODE_NAME}",
        f"--data-dir={STATE / 'etcd'}",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
        f"--initial-cluster={NODE_NAME}=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--log-level=warn",
    )
    return Component("etcd", command)


def containerd() -> Component:
    return Component("containerd", ("containerd", "--config", str(CONFIG / "containerd.toml")))


def apiserver() -> Component:
    pairs = {
        "advertise-address": NODE_IP,
        "secure-port": API_PORT,
        "etcd-servers": ETCD_URL,
        "service-cluster-ip-range": SERVICE_RANGE,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": _ADMISSION,
        "allow-privileged": "true",
        "client-ca-file": PKI / "ca.crt",
        "tls-cert-file": PKI / "apiserver.crt",
        "tls-private-key-file": PKI / "apiserver.key",
        "kubelet-client-certificate": PKI / "apiserver-kubelet.crt",
        "kubelet-client-key": PKI / "apiserver-kubelet.key",
        "kubelet-certificate-authority": PKI / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}",
        "service-account-key-file": PKI / "sa.pub",
        "service-account-signing-key-file": PKI / "sa.key",
        "requestheader-client-ca-file": PKI / "front-proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-uid-headers": "X-Remote-Uid",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": PKI / "front-proxy-client.crt",
        "proxy-client-key-file": PKI / "front-proxy-client.key",
        "enable-aggregator-routing": "true",
        "audit-policy-file": CONFIG / "audit-policy.yaml",
        "audit-log-path": AUDIT_LOG,
        "audit-log-mode": "batch",
        "audit-log-batch-max-wait": "100ms",
    }
    # Memory for time: its heap is small, and collecting it took a fifth of the processors that all share here.
    return replace(_kubernetes("kube-apiserver", pairs), env={"GOGC": "400", "GOMEMLIMIT": "2GiB"})


def controller_manager() -> Component:
    kubeconfig = CONFIG / "kube-controller-manager.kubeconfig"
    pairs = {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": "127.0.0.1",
        "root-ca-file": PKI / "ca.crt",
        "service-account-private-key-file": PKI / "sa.key",
        "cluster-signing-cert-file": PKI / "ca.crt",
        "cluster-signing-key-file": PKI / "ca.key",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
    }
    return _kubernetes("kube-controller-manager", pairs)


def scheduler() -> Component:
    kubeconfig = CONFIG / "kube-scheduler.kubeconfig"
    pairs = {"kubeconfig": kubeconfig, "bind-address": "127.0.0.1", "leader-elect": "false"}
    return _kubernetes("kube-scheduler", pairs)


def kubelet() -> Component:
    pairs = {
        "config": CONFIG / "kubelet.yaml",
        "kubeconfig": CONFIG / "kubelet.kubeconfig",
        "root-dir": STATE / "kubelet",
        "hostname-override": NODE_NAME,
        "node-ip": NODE_IP,
    }
    return _kubernetes("kubelet", pairs)


def kube_proxy() -> Component:
    return _kubernetes("kube-proxy", {"config": CONFIG / "kube-proxy.yaml"})


def coredns() -> Component:
    return Component("coredns", (str(binaries.path("coredns")), "-conf", str(CONFIG / "Corefile")))


def components() -> dict[str, Component]:
    """All of them, in the order of their start."""
    made = (etcd, containerd, apiserver, controller_manager, scheduler, kubelet, kube_proxy, coredns)
    return {component.name: component for component in (make() for make in made)}


def _kubernetes(name: str, pairs: Mapping[str, object]) -> Component:
    flags = tuple(f"--{flag}={value}" for flag, value in pairs.items())
    return Component(name, (str(binaries.path("kubernetes")), name, *flags))


def _kubeconfig(
    authority: Authority, name: str, *, user: str, groups: tuple[str, ...] = (), path: Path | None = None
) -> None:
    certificate = authority.issue(name, user=user, groups=groups)
    path = path or CONFIG / f"{name}.kubeconfig"
    credential = {"client-certificate": str(certificate), "client-key": str(certificate.with_suffix(".key"))}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": API_URL, "certificate-authority": str(authority.path)}}],
        "users": [{"name": name, "user": credential}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": name}}],
        "current-context": NAME,
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content))


def _write(name: str, content: Mapping[str, Any]) -> None:
    (CONFIG / name).write_text(yaml.safe_dump(dict(content)))


def _kubelet() -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(PKI / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(PKI / "kubelet-server.key"),
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [DNS_SERVICE_IP],
        "clusterDomain": CLUSTER_DOMAIN,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{NAME}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "oomScoreAdj": 0,  # a lower one needs CAP_SYS_RESOURCE
        "imageGCHighThresholdPercent": 100,  # images are loaded by hand
        "serializeImagePulls": False,
        "podLogsDir": str(STATE / "pod-logs"),
        "volumePluginDir": str(STATE / "kubelet" / "plugins"),
        "maxPods": 200,
    }


def _kube_proxy() -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(CONFIG / "kube-proxy.kubeconfig")},
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE_NAME,
        "conntrack": {"maxPerCore": 0, "min": 0},  # a network namespace may not write the limit
        "iptables": {"minSyncPeriod": "100ms"},
        "oomScoreAdj": 0,
    }


def _containerd() -> str:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{STATE / "containerd"}"
state = "/run/containerd"

[grpc]
  address = "{CONTAINERD_SOCKET}"

[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true

[{cri}.cni]
  bin_dir = "{CNI_PLUGINS}"
  conf_dir = "{CONFIG / "cni"}"

[{cri}.containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def _cni() -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": POD_RANGE}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return {"cniVersion": "1.0.0", "name": NAME, "plugins": [bridge]}


def _corefile() -> str:
    kubeconfig = CONFIG / "coredns.kubeconfig"
    return f"""{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {NODE_IP}
    errors
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 5
    }}
}}
"""
