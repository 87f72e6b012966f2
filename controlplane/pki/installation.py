"""The installation's root as a Secret, for control planes on a cluster.

The chart makes the Secret, empty; the first control plane puts a root into it, and every other takes that one. Each
has an intermediate of its own, in memory: all chains end in the same root, so nothing else has to be shared.
"""

import base64
import logging
from pathlib import Path
from typing import Any, Final

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import Invalid
from controlplane.kube.resources import SECRETS
from controlplane.kube.types import Secret
from controlplane.pki.ca import PkiError, adopt_root, create_installation

_CERTIFICATE: Final = "root.crt"
_KEY: Final = "root.key"

_log = logging.getLogger(__name__)


async def open_installation(kube: Kube, namespace: str, name: str, folder: Path, *, clock: Clock) -> None:
    """Fill `folder` (empty, in memory) for `Authority.load`. Raises KubeError, PkiError, OSError."""
    secret = await kube.get(SECRETS, namespace, name)
    if not secret.data:
        secret = await _publish(kube, secret, folder, clock)
    try:
        certificate, key = (base64.b64decode(secret.data[part], validate=True) for part in (_CERTIFICATE, _KEY))
    except (KeyError, ValueError) as error:
        raise PkiError(f"Secret {namespace}/{name} holds no {_CERTIFICATE} and {_KEY}: {error}") from error
    adopt_root(folder, certificate, key, clock=clock)


async def _publish(kube: Kube, secret: Secret, folder: Path, clock: Clock) -> Secret:
    """Make a root and put it into the empty Secret; whose root is in it then, this one or another's."""
    create_installation(folder, clock=clock)
    data = {part: base64.b64encode((folder / part).read_bytes()).decode() for part in (_CERTIFICATE, _KEY)}
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
