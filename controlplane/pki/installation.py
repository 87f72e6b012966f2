"""The installation's root as a Secret, for control planes on a cluster.

The chart makes the Secret, empty; the first control plane puts a root into it, and every other takes that one. Each
has an intermediate of its own, in memory: all chains end in the same root, so nothing else has to be shared.
"""

import base64
import logging
from pathlib import Path
from typing import Any

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import Invalid
from controlplane.kube.resources import SECRETS
from controlplane.kube.types import Secret
from controlplane.pki.building import PkiError
from controlplane.pki.ca import ROOT_FILE, ROOT_KEY_FILE, adopt_root, create_installation

_log = logging.getLogger(__name__)


async def open_installation(kube: Kube, namespace: str, name: str, folder: Path, *, clock: Clock) -> None:
    """Fill `folder` (empty, in memory) for `Authority.load`. Raises KubeError, PkiError, OSError."""
    secret = await kube.get(SECRETS, namespace, name)
    if not secret.data:
        secret = await _publish(kube, secret, folder, clock)
    adopt_root(folder, *material(secret), clock=clock)


def material(secret: Secret) -> tuple[bytes, bytes]:
    """The text of `root.crt` and of `root.key`. Raises PkiError."""
    try:
        certificate, key = (base64.b64decode(secret.data[part], validate=True) for part in (ROOT_FILE, ROOT_KEY_FILE))
    except (KeyError, ValueError) as error:
        where = f"{secret.metadata.namespace}/{secret.metadata.name}"
        raise PkiError(f"Secret {where} holds no {ROOT_FILE} and {ROOT_KEY_FILE}: {error}") from error
    return certificate, key


async def _publish(kube: Kube, secret: Secret, folder: Path, clock: Clock) -> Secret:
    """Make a root and put it into the empty Secret; whose root is in it then, this one or another's."""
    create_installation(folder, clock=clock)
    data = {part: base64.b64encode((folder / part).read_bytes()).decode() for part in (ROOT_FILE, ROOT_KEY_FILE)}
    metadata = secret.metadata
    ops: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
        {"op": "add", "path": "/data", "value": data},
    ]
    try:
        published = await kube.json_patch(SECRETS, metadata.namespace, metadata.name, ops)
    except Invalid:
        return await kube.get(SECRETS, metadata.namespace, metadata.name)
    _log.info("made the root of this installation", extra={"secret": metadata.name})
    return published
