# ruff: noqa: PTH113, PTH118
# No worker has pathlib in memory for our sake.
"""A handler's file: found by its place in the source, imported under its dotted name, and what it may be called with.

Loaded by `zygote.py` under the *user's* interpreter: standard library only. Next: `function.py` calls what is found.
"""

from __future__ import annotations  # This runs on Python 3.9.

import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from runtimes.python.channel import Failure, describe
else:
    from kruntimes_channel import Failure, describe


def load(root: str, handler: str) -> tuple[Callable[..., Any], bool]:
    """Import the handler's file under its dotted name; return (callable, whether it takes the context)."""
    module_name, _, attribute = handler.rpartition(".")
    parts = module_name.split(".")
    if not attribute or not all(part and "/" not in part and "\0" not in part for part in parts):
        raise Failure("SourceInvalid", f"handler {handler!r} is not file.function")
    path = os.path.join(root, *parts) + ".py"
    looked_for = os.path.join(*parts) + ".py"
    if not os.path.isfile(path):
        raise Failure("SourceInvalid", f"no file {looked_for} in the source (handler {handler})")
    if not (os.path.realpath(path) + os.sep).startswith(os.path.realpath(root) + os.sep):
        raise Failure("SourceInvalid", f"{looked_for} leads out of the source")
    try:
        module = _import_path(root, parts, path)
    except BaseException as error:
        described = describe(error)
        described["message"] = f"importing {looked_for}: " + described["message"]
        raise Failure("ImportFailed", **described) from None
    try:
        function = getattr(module, attribute)
    except AttributeError:
        raise Failure("HandlerNotFound", f"{looked_for} has no attribute {attribute!r} (handler {handler})") from None
    if not callable(function):
        kind = type(function).__name__
        raise Failure("HandlerNotFound", f"{attribute} in {looked_for} is of type {kind}, not callable")
    return function, takes_context(function, handler)


def _import_path(root: str, parts: list[str], path: str) -> types.ModuleType:
    """Import by place, not by search: no installed package of the same name can come before it."""
    folder = root
    for depth, part in enumerate(parts[:-1], 1):
        folder = os.path.join(folder, part)
        name = ".".join(parts[:depth])
        init = os.path.join(folder, "__init__.py")
        if os.path.isfile(init):
            package = _execute(name, init, [folder])
        else:
            package = types.ModuleType(name)
            package.__path__ = [folder]
            package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
            sys.modules[name] = package
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], part, package)
    module = _execute(".".join(parts), path, None)
    if len(parts) > 1:
        setattr(sys.modules[".".join(parts[:-1])], parts[-1], module)
    return module


def _execute(name: str, path: str, search: list[str] | None) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return sys.modules[name]


def takes_context(function: Callable[..., Any], handler: str) -> bool:
    """Whether to call it with (request, context): its second parameter has no default, or is named `context`."""
    if type(function) is types.FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        if code.co_argcount == 1 and not code.co_kwonlyargcount:
            return False  # The usual case, known without a signature.
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(needed) > 2 or keywords or not (places or starred):
        signature = f"{handler} takes {inspect.signature(function)}"
        raise Failure("HandlerNotFound", signature + "; expected invoke(request) or invoke(request, context)")
    return len(needed) == 2 or (len(places) > 1 and places[1].name == "context")
