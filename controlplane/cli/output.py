"""What commands print: Tables as the API server makes them, JSON, YAML and names. Colours only on a terminal."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

TABLE_ACCEPT: Final = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

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


class Format(StrEnum):
    """What `-o` takes."""

    TABLE = ""
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


OutputOption = Annotated[
    Format, typer.Option("--output", "-o", help="One of json, yaml, name or wide.", show_default=False)
]


def emit(text: str) -> None:
    """A line of result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for the human beside the result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def colour(text: str, stream: Any = None) -> str:
    """A phase in its colour, when `stream` (stdout) is a terminal."""
    code = _PHASE_COLOURS.get(text.strip())
    out = stream or sys.stdout
    if code is None or not out.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, header: bool = True) -> None:
    """Columns three spaces apart, as kubectl does."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(columns, *lines, strict=True)]
    if header:
        emit("   ".join(name.ljust(width) for name, width in zip(columns, widths, strict=True)).rstrip())
    for line in lines:
        cells = [colour(cell.ljust(width)) for cell, width in zip(line, widths, strict=True)]
        emit("   ".join(cells).rstrip())


def print_server_table(table: Mapping[str, Any], *, wide: bool, namespaces: bool) -> None:
    """A `meta.k8s.io/v1` Table."""
    shown = [number for number, column in enumerate(table["columnDefinitions"]) if wide or not column.get("priority")]
    columns = [table["columnDefinitions"][number]["name"].upper() for number in shown]
    rows = []
    for row in table.get("rows") or ():
        cells = ["" if row["cells"][number] is None else str(row["cells"][number]) for number in shown]
        if namespaces:
            cells.insert(0, row.get("object", {}).get("metadata", {}).get("namespace", ""))
        rows.append([cell or "<none>" if wide else cell for cell in cells])
    print_table((["NAMESPACE", *columns] if namespaces else columns), rows)


def print_object(value: Any, form: Format) -> None:
    """An object (or List) as JSON or YAML."""
    if form is Format.YAML:
        import yaml

        emit(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False).rstrip())
    else:
        emit(msgspec.json.format(msgspec.json.encode(value), indent=4).decode())
