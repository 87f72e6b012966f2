"""Options that several commands take, and the durations that they are given.

Light on imports: `krt invoke` is a process per call. Every command takes its annotated types from here.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from controlplane.cli.failure import USAGE, Failure

DURATION_MAX_S: Final = 8760 * 3600.0  # a year; longer is a slip of the finger

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ms|us|µs|ns|h|m|s)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_KINDS: Final = ("run", "runs", "run.kruntimes.io", "runs.kruntimes.io", "run.v1alpha1.kruntimes.io")
_NAME_MAX_CHARS: Final = 253


class Format(StrEnum):
    """What `-o` takes."""

    TABLE = ""
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def _runs(ctx: typer.Context, incomplete: str) -> Any:
    from controlplane.cli.completion import run_names

    return run_names(ctx, incomplete)


NamespaceOption = Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace; default: the context's.")]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig to use.")]
KubeconfigOption = Annotated[str | None, typer.Option("--kubeconfig", help="Path of the kubeconfig to use.")]
OutputOption = Annotated[
    Format,
    typer.Option("--output", "-o", help="One of json, yaml, name or wide.", show_default=False, metavar="FORMAT"),
]
TimeoutOption = Annotated[
    str | None, typer.Option("--timeout", help="Give up after this long, such as 30s or 2m.", metavar="DURATION")
]
SelectorOption = Annotated[
    str, typer.Option("--selector", "-l", help="Runs with these labels, such as app=web,tier!=db.", metavar="LABELS")
]
EveryOption = Annotated[bool, typer.Option("--all", help="Every Run of the namespace.")]
RunName = Annotated[
    str, typer.Argument(help="Name of the Run.", show_default=False, metavar="NAME", autocompletion=_runs)
]
RunNames = Annotated[
    list[str] | None,
    typer.Argument(help="Names of Runs.", show_default=False, metavar="NAME", autocompletion=_runs),
]


def seconds_of(text: str | None, option: str = "--timeout") -> float | None:
    """A duration as kubectl takes it (`1m30s`, `0.5s`, `0`), in seconds. None if absent or negative: no end."""
    if text is None or text.startswith("-"):
        return None
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        hint = f"; did you mean {text}s?" if text.isdigit() else ""
        raise Failure("InvalidOption", f"{option}: {text[:64]!r} is no duration such as 30s or 2m{hint}", USAGE)
    seconds: float = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > DURATION_MAX_S:
        raise Failure("InvalidOption", f"{option}: {text[:64]!r} is longer than a year", USAGE)
    return seconds


def run_name(text: str) -> str:
    """The name in `NAME`, `run/NAME` or `run.kruntimes.io/NAME`, as `-o name` prints it.

    What could not be one path segment is refused here: an empty name would mean every Run of the namespace."""
    kind, slash, name = text.rpartition("/")
    if slash and kind.lower() not in _KINDS:
        raise Failure("InvalidName", f"{text!r} is no name of a Run", USAGE)
    if not name or name in (".", "..") or len(name) > _NAME_MAX_CHARS or not name.isascii() or not name.isprintable():
        raise Failure("InvalidName", f"{name!r} is no name of a Run", USAGE)
    if set(name) & set(" %?#"):
        raise Failure("InvalidName", f"{name!r} is no name of a Run", USAGE)
    return name


def run_names_of(texts: list[str] | None) -> list[str]:
    """Every name once, in the order given."""
    return list(dict.fromkeys(run_name(text) for text in texts or ()))
