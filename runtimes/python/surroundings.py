# ruff: noqa: PTH208
# No worker has pathlib in memory for our sake.
"""What every job begins with: environment, folder, limits, and imports as if this interpreter had just been started.

Loaded by `zygote.py` under the *user's* interpreter: standard library only. Next: `function.py` and `jobs.py`.
"""

from __future__ import annotations  # This runs on Python 3.9.

import builtins
import os
import resource
import sys
import time
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_warm: dict[str, list[str]] = {}
"""Modules that a fresh interpreter would not have, by the first part of their names."""


def note_warm_modules(at_start: frozenset[str]) -> None:
    """What is here beside `at_start`, what a fresh interpreter has."""
    _warm.clear()
    for name in set(sys.modules).difference(at_start, sys.builtin_module_names):
        _warm.setdefault(name.split(".", 1)[0], []).append(name)


def set_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    time.tzset()


def prepare(job: dict[str, Any], enclosure: Any) -> None:
    """Environment, folder and limits of this job; from here on nothing is seen of other jobs."""
    for name, (soft, hard) in job["limits"].items():
        which = getattr(resource, name)
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))
    set_environment(job["env"])
    os.chdir(job["root"])
    enclosure.enter(job["private"], job["readable"])


def prepare_imports(first: list[str]) -> types.ModuleType:
    """sys.path and sys.modules as they would be if this interpreter had been started for the user's files."""
    extra = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = first + extra
    sys.path_importer_cache.clear()
    mine = {name.split(".", 1)[0] for folder in first for name in os.listdir(folder)}
    for top in mine.intersection(_warm):
        for name in _warm[top]:  # Here by chance; the user's file of that name is the one that an import means.
            sys.modules.pop(name, None)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main
