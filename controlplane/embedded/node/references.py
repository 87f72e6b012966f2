"""Values of ConfigMap and Secret keys that a container's variables refer to.

Lives here: the reads. May not live here: what is done with the values (`environment` puts them in place, next).
"""

import base64

from controlplane.embedded.node.environment import references
from controlplane.kube.api import Kube
from controlplane.kube.errors import NotFound
from controlplane.kube.resources import CONFIGMAPS, SECRETS
from controlplane.kube.types import Container


async def resolve(kube: Kube, namespace: str, container: Container) -> dict[tuple[str, str, str], str]:
    """(kind, name, key) to value; what is not there is left out. Raises KubeError but NotFound."""
    wanted = references(container)
    values: dict[tuple[str, str, str], str] = {}
    for kind, name in {(kind, name) for kind, name, _key, _optional in wanted}:
        try:
            if kind == "ConfigMap":
                data = (await kube.get(CONFIGMAPS, namespace, name)).data
            else:
                secret = await kube.get(SECRETS, namespace, name)
                data = {key: base64.b64decode(value).decode() for key, value in secret.data.items()}
        except NotFound:
            continue
        values |= {(kind, name, key): value for key, value in data.items()}
    return values
