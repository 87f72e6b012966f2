"""What runtimed needs to fetch sources and to store artifacts: variables, mounts and volumes of its container. Pure.

User code gets none of it: the credentials are Secrets that only runtimed's container mounts. Next: `template` adds it
to the Pod.
"""

from typing import Any, Final

import msgspec

from controlplane.kube.types import RuntimeObject

ARTIFACTS_VOLUME: Final = "kruntimes-artifacts"
ARTIFACTS_SECRET_VOLUME: Final = "kruntimes-artifacts-credentials"
GIT_VOLUME: Final = "kruntimes-git-credentials"
CACHE_VOLUME: Final = "kruntimes-source-cache"
VOLUMES: Final = (ARTIFACTS_VOLUME, ARTIFACTS_SECRET_VOLUME, GIT_VOLUME, CACHE_VOLUME)

ARTIFACTS_DIR: Final = "/var/lib/kruntimes/artifacts"
ARTIFACTS_SECRET_DIR: Final = "/var/run/secrets/kruntimes-artifacts"
GIT_DIR: Final = "/var/run/secrets/kruntimes-git"
CACHE_DIR: Final = "/var/cache/kruntimes"
GIT_SECRET_KEYS: Final = ("username", "password", "ssh-privatekey", "known_hosts", "ca.crt")
"""Those of kubernetes.io/basic-auth and kubernetes.io/ssh-auth, whom to trust, and whose certificates."""


class Storage(msgspec.Struct, frozen=True):
    """Additions to runtimed's container, and to the Pod's volumes."""

    env: dict[str, str]
    mounts: list[dict[str, Any]]
    volumes: list[dict[str, Any]]

    @property
    def claims(self) -> bool:
        """Whether a volume claim is among them, whose folder the node gives to the Pod's group."""
        return any("persistentVolumeClaim" in volume for volume in self.volumes)


def storage(runtime: RuntimeObject, source_cache: str) -> Storage:
    """For one Runtime, as its spec says.

    In the node's folder for sources each Runtime has its own: what one has fetched with its credential is not for
    another.
    """
    name, namespace = runtime.metadata.name, runtime.metadata.namespace
    shared = {"hostPath": {"path": f"{source_cache}/{namespace}/{name}", "type": "DirectoryOrCreate"}}
    cache = {"name": CACHE_VOLUME, **(shared if source_cache else {"emptyDir": {}})}
    env = {"KRUNTIMES_SOURCE_CACHE_DIR": CACHE_DIR}
    found = Storage(env, [{"name": CACHE_VOLUME, "mountPath": CACHE_DIR}], [cache])
    _git(runtime, found)
    _artifacts(runtime, found)
    return found


def _git(runtime: RuntimeObject, found: Storage) -> None:
    """One volume; the folder `<n>` in it has what the Secret of the nth host holds of the known keys."""
    credentials = runtime.spec.git.credentials if runtime.spec.git is not None else ()
    if not credentials:
        return
    sources = [
        {
            "secret": {
                "name": entry.secret_name,
                "optional": True,  # a Secret, or a key, that is missing fails the fetches that need it, not the Pod
                "items": [{"key": key, "path": f"{number}/{key}"} for key in GIT_SECRET_KEYS],
            }
        }
        for number, entry in enumerate(credentials)
    ]
    found.volumes.append({"name": GIT_VOLUME, "projected": {"sources": sources}})
    found.mounts.append({"name": GIT_VOLUME, "mountPath": GIT_DIR, "readOnly": True})
    found.env["KRUNTIMES_GIT_HOSTS"] = ",".join(entry.host for entry in credentials)


def _artifacts(runtime: RuntimeObject, found: Storage) -> None:
    store = runtime.spec.artifact_store
    if store is None:
        return
    metadata = runtime.metadata
    found.env["KRUNTIMES_ARTIFACTS_KEY"] = f"{metadata.namespace}/{metadata.name}-{metadata.uid}"
    if store.filesystem is not None:
        claim, path = store.filesystem.volume_claim_name, store.filesystem.path or ""
        source: dict[str, Any] = (
            {"persistentVolumeClaim": {"claimName": claim}}
            if claim
            else {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
        )
        found.volumes.append({"name": ARTIFACTS_VOLUME, **source})
        found.mounts.append({"name": ARTIFACTS_VOLUME, "mountPath": ARTIFACTS_DIR})
        found.env["KRUNTIMES_ARTIFACTS_URI"] = f"file://{claim}" if claim else f"file://{path.rstrip('/')}"
        found.env["KRUNTIMES_ARTIFACTS_DIR"] = ARTIFACTS_DIR
    elif store.s3 is not None:
        s3 = store.s3
        prefix = (s3.prefix or "").strip("/")
        found.env["KRUNTIMES_ARTIFACTS_URI"] = f"s3://{s3.bucket}/{prefix}".rstrip("/")
        found.env["KRUNTIMES_ARTIFACTS_REGION"] = s3.region or ""
        found.env["KRUNTIMES_ARTIFACTS_ENDPOINT"] = s3.endpoint or ""
        if s3.credentials_secret_name:
            secret = {"secretName": s3.credentials_secret_name}
            found.volumes.append({"name": ARTIFACTS_SECRET_VOLUME, "secret": secret})
            mount = {"name": ARTIFACTS_SECRET_VOLUME, "mountPath": ARTIFACTS_SECRET_DIR, "readOnly": True}
            found.mounts.append(mount)
            found.env["KRUNTIMES_ARTIFACTS_CREDENTIALS_DIR"] = ARTIFACTS_SECRET_DIR
