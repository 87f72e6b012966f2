"""Volumes of a Pod as folders of this machine: emptyDir, projected, configMap, secret, hostPath.

Lives here: making, filling and renewing the folders. May not live here: when (`pod` decides, next).
Tokens are bound to the Pod, readable by the owner only, replaced in one step.
"""

import base64
import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from controlplane.embedded.datadir import write_file
from controlplane.embedded.node.environment import UnresolvedVariable, field_value
from controlplane.embedded.node.limits import TOKEN_RENEW_AT
from controlplane.embedded.node.podstatus import HOST_IP
from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import NotFound
from controlplane.kube.resources import CONFIGMAPS, SECRETS
from controlplane.kube.types import Pod, Volume, VolumeProjection
from controlplane.kube.types_pod import KeyToPath, ServiceAccountTokenProjection


class VolumeUnavailable(Exception):
    """A volume cannot be filled (yet); the message names it and what is missing."""


class Volumes:
    """The volumes of one Pod below `folder` (its folder of the data directory). Filling it twice renews it."""

    def __init__(self, kube: Kube, clock: Clock, folder: Path) -> None:
        self._kube = kube
        self._clock = clock
        self.path = folder / "volumes"

    async def fill(self, pod: Pod, ip: str) -> float | None:
        """Make and fill all volumes. Returns the monotonic second at which to do it again (tokens), None for never.
        Raises VolumeUnavailable, KubeError; what was made stays."""
        renew_at: list[float] = []
        for volume in pod.spec.volumes:
            path = self.path / volume.name
            try:
                if volume.host_path is None:
                    path.mkdir(mode=0o700, parents=True, exist_ok=True)
                await self._fill_one(pod, ip, volume, path, renew_at)
            except OSError as exc:
                raise VolumeUnavailable(f"volume {volume.name}: {exc.strerror or exc}") from exc
        return min(renew_at, default=None)

    def remove(self) -> None:
        """Delete everything, also what user code made unreadable."""
        shutil.rmtree(self.path.parent, ignore_errors=True)

    async def _fill_one(self, pod: Pod, ip: str, volume: Volume, path: Path, renew_at: list[float]) -> None:
        if volume.projected is not None:
            for source in volume.projected.sources:
                await self._project(pod, ip, volume.name, source, path, renew_at)
        elif volume.config_map is not None:
            data = await self._config_map(pod, volume.config_map.name, bool(volume.config_map.optional))
            _write_keys(path, volume.name, data, volume.config_map.items)
        elif volume.secret is not None:
            data = await self._secret(pod, volume.secret.secret_name, bool(volume.secret.optional))
            _write_keys(path, volume.name, data, volume.secret.items)
        elif volume.host_path is not None:
            _link_to_host(path, volume.host_path)
        elif volume.empty_dir is None and volume.persistent_volume_claim is not None:
            raise VolumeUnavailable(f"volume {volume.name}: this machine has no persistent volumes; use hostPath")

    async def _project(
        self, pod: Pod, ip: str, volume: str, source: VolumeProjection, path: Path, renew_at: list[float]
    ) -> None:
        if source.service_account_token is not None:
            renew_at.append(await self._write_token(pod, source.service_account_token, path))
        elif source.config_map is not None:
            data = await self._config_map(pod, source.config_map.name, bool(source.config_map.optional))
            _write_keys(path, volume, data, source.config_map.items)
        elif source.secret is not None:
            data = await self._secret(pod, source.secret.name, bool(source.secret.optional))
            _write_keys(path, volume, data, source.secret.items, optional=bool(source.secret.optional))
        elif source.downward_api is not None:
            for item in source.downward_api.items:
                field = item.field_ref.field_path if item.field_ref else ""
                try:
                    _write(path, volume, item.path, field_value(pod, ip, HOST_IP, field).encode())
                except UnresolvedVariable as exc:
                    raise VolumeUnavailable(f"volume {volume}: {exc}") from exc

    async def _write_token(self, pod: Pod, wanted: ServiceAccountTokenProjection, path: Path) -> float:
        began = self._clock.monotonic()
        try:
            answer = await self._kube.create_token(
                pod.metadata.namespace,
                pod.spec.service_account_name or "default",
                audiences=(wanted.audience,) if wanted.audience else (),
                expiration_seconds=wanted.expiration_seconds,
                pod_name=pod.metadata.name,
                pod_uid=pod.metadata.uid,
            )
        except NotFound as exc:
            raise VolumeUnavailable(f"token of ServiceAccount {pod.spec.service_account_name}: {exc}") from exc
        _write(path, "token", wanted.path, answer.token.encode())
        life: float = wanted.expiration_seconds
        if answer.expires_us is not None:
            life = max(0, min(life, (answer.expires_us - self._clock.now_us()) // 1_000_000))
        return began + max(1.0, life * TOKEN_RENEW_AT)

    async def _config_map(self, pod: Pod, name: str, optional: bool) -> Mapping[str, bytes]:
        try:
            found = await self._kube.get(CONFIGMAPS, pod.metadata.namespace, name)
        except NotFound as exc:
            if optional:
                return {}
            raise VolumeUnavailable(f"ConfigMap {name} is not there") from exc
        texts = {key: value.encode() for key, value in found.data.items()}
        return texts | {key: base64.b64decode(value) for key, value in found.binary_data.items()}

    async def _secret(self, pod: Pod, name: str, optional: bool) -> Mapping[str, bytes]:
        try:
            found = await self._kube.get(SECRETS, pod.metadata.namespace, name)
        except NotFound as exc:
            if optional:
                return {}
            raise VolumeUnavailable(f"Secret {name} is not there") from exc
        return {key: base64.b64decode(value) for key, value in found.data.items()}


def _link_to_host(path: Path, host_path: Mapping[str, Any]) -> None:
    target = Path(str(host_path.get("path", "")))
    if host_path.get("type") == "DirectoryOrCreate":
        target.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.symlink_to(target)


def _write_keys(
    path: Path, volume: str, data: Mapping[str, bytes], items: Sequence[KeyToPath], *, optional: bool = False
) -> None:
    for item in items or tuple(KeyToPath(key=key, path=key) for key in data):
        if item.key not in data:
            if optional:
                continue
            raise VolumeUnavailable(f"volume {volume}: key {item.key} is not there")
        _write(path, volume, item.path, data[item.key])


def _write(folder: Path, volume: str, relative: str, content: bytes) -> None:
    """One file of a volume, only if it changed; a path that leaves the volume is refused."""
    inside = PurePosixPath(relative)
    if inside.is_absolute() or ".." in inside.parts or not inside.parts:
        raise VolumeUnavailable(f"volume {volume}: path {relative!r} leaves the volume")
    target = folder / inside
    with contextlib.suppress(FileNotFoundError):
        if target.read_bytes() == content:
            return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(target, content)
