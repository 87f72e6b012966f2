"""Before an upgrade: the definitions of this version. Helm installs those of a chart once and never changes them.

They are applied by server-side apply, as `kubectl apply --server-side --force-conflicts` would.
"""

import logging
from pathlib import Path
from typing import Any, Final

from controlplane.kube.api import Kube
from controlplane.kube.resources import CUSTOMRESOURCEDEFINITIONS

MANAGER: Final = "helm"  # as Helm itself when it installs them: two names would be in conflict at the next installation

_log = logging.getLogger(__name__)


async def apply_crds(kube: Kube, folder: Path) -> None:
    """Apply every definition in `folder`. Raises KubeError, OSError."""
    for definition in definitions(folder):
        name = definition["metadata"]["name"]
        await kube.server_side_apply(CUSTOMRESOURCEDEFINITIONS, None, name, definition, manager=MANAGER)
        _log.info("applied", extra={"definition": name})


def definitions(folder: Path) -> list[dict[str, Any]]:
    """The definitions in a folder, by the names of their files. Raises OSError."""
    import yaml  # the hooks alone read YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [yaml.load(path.read_text(), Loader=loader) for path in sorted(folder.glob("*.yaml"))]
