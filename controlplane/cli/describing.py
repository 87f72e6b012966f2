"""A Run from the options of `krt run`, as its manifest would say it."""

import re
from pathlib import Path
from typing import Any, Final

from controlplane.cli.failure import USAGE, Failure
from controlplane.cli.manifest import read_bounded
from controlplane.cli.options import run_name
from controlplane.kube.types_kruntimes import API_VERSION

SOURCE_MAX_BYTES: Final = 128 * 1024  # of spec.source.inline; more belongs into a Git repository
_STEM_MAX_CHARS: Final = 40  # of a made-up name: kubectl's columns stay readable


def described(
    runtime: str,
    handler: str | None,
    file: Path | None,
    name: str | None,
    env: list[str] | None,
    idle_timeout: int | None,
    concurrency: int | None,
    lifetime: str | None,
    args: list[str] | None,
) -> dict[str, Any]:
    """The manifest. Failure, exit code 2, for options that do not go together."""
    spec: dict[str, Any] = {"runtime": runtime}
    if file is not None:
        spec["source"] = {"inline": _source(str(file))}
    named = file.name if file is not None and str(file) != "-" else None
    if handler is not None:
        if file is None:
            raise Failure("InvalidUsage", "--handler needs --file", USAGE)
        if args:
            raise Failure("InvalidUsage", "a function takes no arguments; they are for tasks", USAGE)
        spec["source"]["inlinePath"] = named or _file_of(handler, runtime)
        function = {"handler": handler, "idleTimeoutSeconds": idle_timeout, "concurrency": concurrency}
        spec["mode"] = {"function": {key: value for key, value in function.items() if value is not None}}
    else:
        if idle_timeout is not None or concurrency is not None:
            raise Failure("InvalidUsage", "--idle-timeout and --concurrency are for functions; add --handler", USAGE)
        task: dict[str, Any] = {"entrypoint": named} if named else {}
        spec["mode"] = {"task": task | ({"args": args} if args else {})}
    if env:
        spec["env"] = [_variable(text) for text in env]
    if lifetime is not None:
        spec["timeout"] = lifetime
    metadata = {"name": run_name(name)} if name is not None else {"generateName": f"{_stem(named or runtime)}-"}
    return {"apiVersion": API_VERSION, "kind": "Run", "metadata": metadata, "spec": spec}


def _source(where: str) -> str:
    raw = read_bounded(where, SOURCE_MAX_BYTES, "Source")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Failure("SourceInvalid", f"{where} is not UTF-8 at byte {error.start}", USAGE) from error


def _file_of(handler: str, runtime: str) -> str:
    """The file that a handler is in, for source without a file name."""
    stem = handler.rpartition(".")[0].replace(".", "/")
    if not stem:
        raise Failure("InvalidUsage", f"--handler: {handler!r} is not file.function", USAGE)
    return f"{stem}.{'sh' if runtime == 'bash' else 'py'}"


def _stem(text: str) -> str:
    """What a made-up name begins with."""
    stem = re.sub(r"[^a-z0-9]+", "-", text.rpartition(".")[0].lower() or text.lower()).strip("-")
    return stem[:_STEM_MAX_CHARS].rstrip("-") or "run"


def _variable(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Failure("InvalidOption", f"--env: {text!r} is not NAME=VALUE", USAGE)
    return {"name": name, "value": value}
