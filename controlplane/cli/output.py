"""What commands print: lines, objects as JSON and YAML, and colours, which stand on a terminal only."""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

from controlplane.cli.options import Format

RUN_KIND: Final = "run.kruntimes.io"

_PHASE_COLOURS: Final = {
    "Ready": "32",
    "Succeeded": "32",
    "Running": "36",
    "Registering": "36",
    "Scheduled": "36",
    "Pending": "33",
    "Releasing": "33",
    "Failed": "31",
    "Timeout": "31",
    "Cancelled": "35",
}


def emit(text: str) -> None:
    """A line of result, there at once for whoever reads along."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for the human beside the result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def colour(text: str, stream: TextIO | None = None) -> str:
    """A phase in its colour, when `stream` (stdout) is a terminal that wants colours."""
    code = _PHASE_COLOURS.get(text.strip())
    if code is None or os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m" if (stream or sys.stdout).isatty() else text


def emit_name(name: str) -> None:
    """`run.kruntimes.io/NAME`, which every command that takes names takes too."""
    emit(f"{RUN_KIND}/{name}")


def print_object(value: Any, form: Format) -> None:
    """An object (or List) as JSON or YAML."""
    if form is Format.YAML:
        emit(as_yaml(value).rstrip("\n"))
    else:
        import msgspec

        emit(msgspec.json.format(msgspec.json.encode(value), indent=4).decode())


def as_yaml(value: Any) -> str:
    """Block style, texts of several lines as blocks, keys in the order they came in."""
    import yaml

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        block = "\n" in data and all(line == line.rstrip() for line in data.split("\n")) and "\t" not in data
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style="|" if block else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000))


def shown(value: Mapping[str, Any]) -> dict[str, Any]:
    """An object as kubectl shows it: without managedFields."""
    metadata = {key: part for key, part in value.get("metadata", {}).items() if key != "managedFields"}
    return {**value, "metadata": metadata}
