"""Pods: the part of spec and status that schedulers, runtimed, recovery and the embedded node read and write.

Only shapes and the small questions that one Pod answers about itself. `types.py` re-exports all of it.
"""

from typing import Any

import msgspec

from controlplane.kube.meta import ApiStruct, Condition, ObjectMeta


class ObjectFieldSelector(ApiStruct, frozen=True, kw_only=True):
    """A field of the Pod itself, such as `metadata.uid` or `status.podIP`."""

    field_path: str
    api_version: str = "v1"


class KeySelector(ApiStruct, frozen=True, kw_only=True):
    """One key of a ConfigMap or Secret."""

    name: str = ""
    key: str
    optional: bool | None = None


class EnvVarSource(ApiStruct, frozen=True, kw_only=True):
    """Where the value of a variable comes from."""

    field_ref: ObjectFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(ApiStruct, frozen=True, kw_only=True):
    """One environment variable of a container."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class ContainerPort(ApiStruct, frozen=True, kw_only=True):
    """A port that a container listens on."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"


class VolumeMount(ApiStruct, frozen=True, kw_only=True):
    """Where a volume of the Pod appears in a container."""

    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class ExecAction(ApiStruct, frozen=True, kw_only=True):
    """A command run in the container; status 0 is success."""

    command: tuple[str, ...] = ()


class Probe(ApiStruct, frozen=True, kw_only=True):
    """A health question asked of a container. Periods are seconds; Kubernetes' own defaults."""

    exec: ExecAction | None = None
    http_get: dict[str, Any] | None = None
    tcp_socket: dict[str, Any] | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class Container(ApiStruct, frozen=True, kw_only=True):
    """One container of a Pod; in `initContainers` with restartPolicy `Always` it is a sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None
    restart_policy: str | None = None
    image_pull_policy: str = ""
    resources: dict[str, Any] | None = None
    security_context: dict[str, Any] | None = None


class KeyToPath(ApiStruct, frozen=True, kw_only=True):
    """A key of a ConfigMap or Secret and the file it becomes."""

    key: str
    path: str
    mode: int | None = None


class ServiceAccountTokenProjection(ApiStruct, frozen=True, kw_only=True):
    """A token of the Pod's ServiceAccount, renewed by the node. No audience means the API server's own."""

    path: str
    audience: str = ""
    expiration_seconds: int = 3600


class ConfigMapProjection(ApiStruct, frozen=True, kw_only=True):
    """Keys of a ConfigMap or Secret as files; without `items`, all of them."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None


class DownwardFile(ApiStruct, frozen=True, kw_only=True):
    """A field of the Pod as a file."""

    path: str
    field_ref: ObjectFieldSelector | None = None


class DownwardProjection(ApiStruct, frozen=True, kw_only=True):
    """Fields of the Pod as files."""

    items: tuple[DownwardFile, ...] = ()


class VolumeProjection(ApiStruct, frozen=True, kw_only=True):
    """One source inside a projected volume; exactly one field is set."""

    service_account_token: ServiceAccountTokenProjection | None = None
    config_map: ConfigMapProjection | None = None
    secret: ConfigMapProjection | None = None
    downward_api: DownwardProjection | None = msgspec.field(default=None, name="downwardAPI")


class ProjectedVolume(ApiStruct, frozen=True, kw_only=True):
    """Several sources in one folder."""

    sources: tuple[VolumeProjection, ...] = ()
    default_mode: int | None = None


class ConfigMapVolume(ApiStruct, frozen=True, kw_only=True):
    """A ConfigMap as a folder."""

    name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None
    default_mode: int | None = None


class SecretVolume(ApiStruct, frozen=True, kw_only=True):
    """A Secret as a folder."""

    secret_name: str = ""
    items: tuple[KeyToPath, ...] = ()
    optional: bool | None = None
    default_mode: int | None = None


class Volume(ApiStruct, frozen=True, kw_only=True):
    """A volume of a Pod; exactly one source is set."""

    name: str
    empty_dir: dict[str, Any] | None = None
    projected: ProjectedVolume | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    host_path: dict[str, Any] | None = None
    persistent_volume_claim: dict[str, Any] | None = None


class PodSpec(ApiStruct, frozen=True, kw_only=True):
    """What should run. Reads may rely on the defaults below, which are the API server's own."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    service_account_name: str = ""
    automount_service_account_token: bool | None = None
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    share_process_namespace: bool | None = None
    tolerations: tuple[dict[str, Any], ...] = ()
    security_context: dict[str, Any] | None = None


class ContainerStateWaiting(ApiStruct, frozen=True, kw_only=True):
    """Not running yet, and why."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(ApiStruct, frozen=True, kw_only=True):
    """Running since."""

    started_at: str | None = None


class ContainerStateTerminated(ApiStruct, frozen=True, kw_only=True):
    """Ended, how and when."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(ApiStruct, frozen=True, kw_only=True):
    """Exactly one of the three is set; none means waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(ApiStruct, frozen=True, kw_only=True):
    """What the node last saw of one container."""

    name: str
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodIP(ApiStruct, frozen=True, kw_only=True):
    """One address of a Pod."""

    ip: str = ""


class PodStatus(ApiStruct, frozen=True, kw_only=True):
    """What the node last saw of the Pod. `phase` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    host_ip: str = msgspec.field(default="", name="hostIP")
    start_time: str | None = None
    qos_class: str = ""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiStruct, frozen=True, kw_only=True):
    """core/v1 Pod."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ready(self) -> bool:
        """Condition Ready is True and the Pod is not being deleted."""
        return not self.metadata.deleting and any(
            condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions
        )

    @property
    def finished(self) -> bool:
        """Phase Succeeded or Failed and every container terminated: nothing of it runs any more (L2 a)."""
        if self.status.phase not in ("Succeeded", "Failed"):
            return False
        statuses = self.status.init_container_statuses + self.status.container_statuses
        return all(s.state is not None and s.state.terminated is not None for s in statuses)
