"""What a container's process is told: its variables, and container paths as paths of this machine.

Lives here: pure functions from a Pod's spec to variables and paths. May not live here: files and processes. `pod` calls
it next. A container here has no file system of its own, so the path variables that our images know are mapped through
its volumeMounts; every other variable is passed as it stands.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from controlplane.embedded.node.images import Image
from controlplane.kube.types import Container, EnvVar, Pod

SOCKET_VARIABLE: Final = "KRUNTIMES_SOCKET"

PATH_DEFAULTS: Final[dict[str, str]] = {
    SOCKET_VARIABLE: "/run/kruntimes/runtime.sock",
    "KRUNTIMES_WORK_DIR": "/work",
    "KRUNTIMES_CA_FILE": "/etc/kruntimes/ca.crt",
    "KRUNTIMES_TOKEN_FILE": "/var/run/secrets/kruntimes/token",
    "KRUNTIMES_SERVICEACCOUNT_DIR": "/var/run/secrets/kubernetes.io/serviceaccount",
    "KRUNTIMES_SOURCE_CACHE_DIR": "/var/cache/kruntimes",
    "KRUNTIMES_GIT_CREDENTIALS_DIR": "/var/run/secrets/kruntimes-git",
    "KRUNTIMES_ARTIFACTS_DIR": "/var/lib/kruntimes/artifacts",
    "KRUNTIMES_ARTIFACTS_CREDENTIALS_DIR": "/var/run/secrets/kruntimes-artifacts",
}
"""Path variables of our images, and the path that an image takes where none is given."""


class UnresolvedVariable(Exception):
    """A variable refers to something that is not there (yet)."""


def host_path(container: Container, volumes: Path, path: str) -> Path | None:
    """Where `path` of the container is on this machine, by its longest matching mount; None if no volume holds it."""
    best = None
    for mount in container.volume_mounts:
        base = mount.mount_path.rstrip("/")
        inside = path == base or path.startswith(f"{base}/")
        if inside and (best is None or len(base) > len(best.mount_path.rstrip("/"))):
            best = mount
    if best is None:
        return None
    rest = path[len(best.mount_path.rstrip("/")) :].lstrip("/")
    return volumes / best.name / best.sub_path / rest


def field_value(pod: Pod, ip: str, host_ip: str, path: str) -> str:
    """A downward API field. Raises UnresolvedVariable for one that this node does not know."""
    meta = pod.metadata
    values = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.podIP": ip,
        "status.podIPs": ip,
        "status.hostIP": host_ip,
    }
    if path in values:
        return values[path]
    for kind, source in (("labels", meta.labels), ("annotations", meta.annotations)):
        if path.startswith(f"metadata.{kind}['") and path.endswith("']"):
            return source.get(path[len(f"metadata.{kind}['") : -2], "")
    raise UnresolvedVariable(f"field {path} is not known on this node")


def variables(
    pod: Pod,
    container: Container,
    image: Image,
    *,
    ip: str,
    host_ip: str,
    volumes: Path,
    socket_volumes: Path,
    machine: Mapping[str, str],
    referenced: Mapping[tuple[str, str, str], str],
) -> dict[str, str]:
    """All variables of the container. `volumes` holds the Pod's volumes by name, `socket_volumes` is a shorter path to
    the same; `machine` is what every container here gets; `referenced` has the values of (kind, name, key).

    Raises UnresolvedVariable."""
    env = dict(machine) | image.env | {"HOSTNAME": pod.metadata.name}
    for variable in container.env:
        value = _value(pod, variable, ip, host_ip, referenced)
        if value is not None:
            env[variable.name] = value
    for name, default in PATH_DEFAULTS.items():
        base = socket_volumes if name == SOCKET_VARIABLE else volumes
        mapped = host_path(container, base, env.get(name, default))
        if mapped is not None:
            env[name] = str(mapped)
    return env


def references(container: Container) -> list[tuple[str, str, str, bool]]:
    """ConfigMap and Secret keys that the container's variables need: (kind, name, key, optional)."""
    found = []
    for variable in container.env:
        source = variable.value_from
        if source is not None and (key := source.config_map_key_ref) is not None:
            found.append(("ConfigMap", key.name, key.key, bool(key.optional)))
        if source is not None and (key := source.secret_key_ref) is not None:
            found.append(("Secret", key.name, key.key, bool(key.optional)))
    return found


def _value(
    pod: Pod, variable: EnvVar, ip: str, host_ip: str, referenced: Mapping[tuple[str, str, str], str]
) -> str | None:
    source = variable.value_from
    if source is None:
        return variable.value
    if source.field_ref is not None:
        return field_value(pod, ip, host_ip, source.field_ref.field_path)
    for kind, key in (("ConfigMap", source.config_map_key_ref), ("Secret", source.secret_key_ref)):
        if key is not None:
            value = referenced.get((kind, key.name, key.key))
            if value is None and not key.optional:
                raise UnresolvedVariable(f"{kind} {key.name} has no key {key.key}")
            return value
    raise UnresolvedVariable(f"variable {variable.name} has a source that this node does not know")
