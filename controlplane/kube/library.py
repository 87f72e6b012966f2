"""The pieces of kubernetes_asyncio that are used: its configuration, its credential plugins, its transport.

Importing the package whole loads a thousand generated model classes: 0.4 to 1.1 s and 40 MiB a process. `pieces()`
imports the four modules alone (35 ms, 2 MiB) and leaves `sys.modules` as if the package had not been imported, so that
anyone else may still import all of it. Called on first use, never at import time.
"""

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

from controlplane.kube.kubeconfig import ConfigError

_ROOT: Final = "kubernetes_asyncio"


@dataclass(frozen=True, slots=True)
class Pieces:
    """Classes of kubernetes_asyncio, as that package names them."""

    Configuration: Any
    RESTClientObject: Any
    KubeConfigLoader: Any
    ConfigException: type[Exception]


@cache
def pieces() -> Pieces:
    """The classes, from the whole package if something has imported it already."""
    if _ROOT in sys.modules:
        return _collect()
    spec = importlib.util.find_spec(_ROOT)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the Python package kubernetes_asyncio is not installed")
    root = next(iter(spec.submodule_search_locations))
    try:
        for name, folder in (
            (_ROOT, root),
            (f"{_ROOT}.client", f"{root}/client"),
            (f"{_ROOT}.config", f"{root}/config"),
        ):
            _stand_in(name, folder)
        configuration = importlib.import_module(f"{_ROOT}.client.configuration")
        client: Any = sys.modules[f"{_ROOT}.client"]
        client.Configuration, client.ApiClient = configuration.Configuration, None
        return _collect()
    finally:
        for name in [name for name in sys.modules if name == _ROOT or name.startswith(f"{_ROOT}.")]:
            del sys.modules[name]


def _collect() -> Pieces:
    return Pieces(
        Configuration=importlib.import_module(f"{_ROOT}.client.configuration").Configuration,
        RESTClientObject=importlib.import_module(f"{_ROOT}.client.rest").RESTClientObject,
        KubeConfigLoader=importlib.import_module(f"{_ROOT}.config.kube_config").KubeConfigLoader,
        ConfigException=importlib.import_module(f"{_ROOT}.config.config_exception").ConfigException,
    )


def _stand_in(name: str, folder: str) -> None:
    """A package without its `__init__`: its modules can be imported by name."""
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package
