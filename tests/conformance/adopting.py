"""A module of the suite as tests of pytest: its cases, with their values as parameters."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


def adopted(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The module's cases by name."""
    found = {}
    for name, case in vars(module).items():
        if name.startswith("test_"):
            values = getattr(case, "each", None)
            found[name] = case if values is None else pytest.mark.parametrize(*values)(case)
    return found
