"""What a data directory holds from the first start: credentials, namespaces, roles, kinds.

Lives here: creation of what is absent. May not live here: anything that changes what a user changed. `main.py` calls it
before it serves.
"""

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from controlplane.embedded.apiserver import errors, policy
from controlplane.embedded.apiserver.definitions import Definitions
from controlplane.embedded.apiserver.namespaces import Namespaces
from controlplane.embedded.apiserver.objects import Objects, WriteOptions
from controlplane.embedded.apiserver.registry import Registry

Object = dict[str, Any]

NAMESPACES: Final = ("default", "kube-system", "kube-public", "kruntimes-system")
_TOKEN_BYTES: Final = 32
_OPTIONS: Final = WriteOptions(manager="kruntimes-apiserver")


def private_directory(path: Path) -> Path:
    """A directory that only its owner enters."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def admin_token(directory: Path) -> str:
    """The administrator's token, made where it is absent, readable by its owner alone."""
    path = directory / "admin"
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES))
    return path.read_text().strip()


def packaged_crds(directory: Path) -> list[Object]:
    """The CRDs of a folder of YAML files. Raises ValueError naming a file that holds anything else."""
    found: list[Object] = []
    for path in sorted(directory.glob("*.yaml")):
        for document in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader):
            if document is None:
                continue
            if not isinstance(document, dict) or document.get("kind") != "CustomResourceDefinition":
                raise ValueError(f"{path} holds something that is no CustomResourceDefinition")
            found.append(document)
    return found


class Bootstrap:
    """Stores default objects through the same verbs as a client."""

    def __init__(self, objects: Objects, registry: Registry, definitions: Definitions, namespaces: Namespaces) -> None:
        self._objects = objects
        self._registry = registry
        self._definitions = definitions
        self._namespaces = namespaces

    def run(self, crds: Iterable[Object]) -> None:
        for name in NAMESPACES:
            self._ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            self._namespaces.fill(name)
        for item in (*policy.ROLES, *policy.BINDINGS):
            self._ensure(item)
        self._definitions.load()
        for crd in crds:
            self._definitions.install(crd, self._ensure, self._update)

    def _ensure(self, item: Object, namespace: str = "") -> None:
        resource = self._registry.by_kind(item["apiVersion"], item["kind"])
        if resource is None:
            raise ValueError(f"{item['apiVersion']} {item['kind']} is not served")
        with contextlib.suppress(errors.ApiError):
            self._objects.get(resource, namespace, item["metadata"]["name"])
            return
        copy = {**item, "metadata": {**item["metadata"]}}
        self._objects.create(resource, namespace, copy, _OPTIONS)

    def _update(self, item: Object) -> None:
        resource = self._registry.by_kind(item["apiVersion"], item["kind"])
        if resource is not None:
            self._objects.replace(resource, "", item["metadata"]["name"], item, _OPTIONS)
