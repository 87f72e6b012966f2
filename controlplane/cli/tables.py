"""Tables for people: as the API server makes them, or our own, columns three spaces apart as kubectl has them."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from controlplane.cli.failure import printable
from controlplane.cli.output import colour, emit

WATCHED_WIDTHS: Final = {"PHASE": 11, "READY": 5, "REASON": 18, "POD": 31, "AGE": 5}
"""Of columns whose cells change while somebody looks on: the longest phase and reason, a Pod's usual name."""


class Table:
    """Prints a heading and then rows, also as they come: a column keeps the width it has once had."""

    def __init__(self, columns: Sequence[str], least: Mapping[str, int] | None = None) -> None:
        self._columns = list(columns)
        self._widths = [max(width(name), (least or {}).get(name, 0)) for name in columns]
        self._headed = False

    def print(self, rows: Iterable[Sequence[Any]]) -> None:
        """The heading, if it was not there yet, and these rows."""
        cells = [[printable(str(cell)) for cell in row] for row in rows]
        for row in cells:
            self._widths = [max(have, width(cell)) for have, cell in zip(self._widths, row, strict=True)]
        lines = [] if self._headed else [self._line(self._columns, paint=False)]
        self._headed = True
        lines += [self._line(row, paint=True) for row in cells]
        if lines:
            emit("\n".join(lines))

    def without_heading(self) -> "Table":
        """The same table, rows only."""
        self._headed = True
        return self

    def _line(self, cells: Sequence[str], *, paint: bool) -> str:
        padded = [cell + " " * (wide - width(cell)) for cell, wide in zip(cells, self._widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        return "   ".join(colour(cell) if paint else cell for cell in padded).rstrip()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A whole table."""
    Table(columns).print(rows)


class ServerTable:
    """`meta.k8s.io/v1` Tables of one request, pages and watch events alike: the first one names the columns."""

    def __init__(self, *, wide: bool, namespaces: bool, heading: bool = True, watched: bool = False) -> None:
        self._wide = wide
        self._namespaces = namespaces
        self._heading = heading
        self._least = WATCHED_WIDTHS if watched else {}
        self._shown: list[int] = []
        self._number: dict[str, int] = {}
        """Of each column, by its name."""
        self._table: Table | None = None

    def print(self, tables: Sequence[Mapping[str, Any]]) -> None:
        """The rows of these tables."""
        for table in tables:
            if self._table is None and table.get("columnDefinitions"):
                self._begin(table["columnDefinitions"])
        if self._table is not None:
            self._table.print([self._cells(row) for table in tables for row in table.get("rows") or ()])

    def _begin(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        self._number = {str(one["name"]): number for number, one in enumerate(definitions)}
        self._shown = [number for number, one in enumerate(definitions) if self._wide or not one.get("priority")]
        names = [str(definitions[number]["name"]).upper() for number in self._shown]
        self._table = Table(["NAMESPACE", *names] if self._namespaces else names, self._least)
        if not self._heading:
            self._table.without_heading()

    def _cells(self, row: Mapping[str, Any]) -> list[str]:
        all_cells = ["" if cell is None else str(cell) for cell in row["cells"]]
        self._say_why(all_cells, row)
        cells = [all_cells[number] for number in self._shown]
        cells = [cell or "<none>" for cell in cells] if self._wide else cells
        metadata = (row.get("object") or {}).get("metadata") or {}
        return [metadata.get("namespace", ""), *cells] if self._namespaces else cells

    def _say_why(self, cells: list[str], row: Mapping[str, Any]) -> None:
        """A Run that waits for a Pod has no reason of its own: where its object is in the row, that of its Scheduled
        condition stands there."""
        number = self._number.get("Reason")
        if number is None or cells[number]:
            return
        status = (row.get("object") or {}).get("status") or {}
        for condition in status.get("conditions") or ():
            if condition["type"] == "Scheduled" and condition["status"] == "False":
                cells[number] = str(condition["reason"])


def width(text: str) -> int:
    """Columns that a terminal gives to `text`: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_columns(ch) for ch in text)


def _columns(ch: str) -> int:
    if unicodedata.combining(ch) or unicodedata.category(ch) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(ch) in ("W", "F") else 1
