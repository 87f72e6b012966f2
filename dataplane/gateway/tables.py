"""Runs as Tables without objects: what the gateway learns of a Run, and that source and env never reach it.

Here: the Table of the Kubernetes API as Structs, and rows as `RunFact`s. Pure. Not here: the watch (`runfeed`).
The columns are those of the Run's CRD; they are found by name, so their order does not matter.
"""

import logging
from collections.abc import Iterator, Sequence
from sys import intern
from typing import Any, Final

import msgspec
from msgspec import Struct

from controlplane.kube.meta import ListMeta, Status
from runtimes.contract.calls import UNDECODABLE
from statemachine.ownership import RunFact
from statemachine.run import Phase, PodUID, RunUID

ACCEPT: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
NEEDED: Final = ("Name", "UID", "Runtime", "Phase", "Attempt", "Pod", "Pod UID")

log = logging.getLogger(__name__)


class BadTable(Exception):
    """The answer is no Table of Runs with the columns that are needed."""


class ColumnDefinition(Struct, frozen=True):
    name: str


class Row(Struct, frozen=True):
    cells: tuple[Any, ...] = ()


class Table(Struct, frozen=True, rename="camel"):
    """One page of a list, or the object of one watch event."""

    metadata: ListMeta = ListMeta()
    column_definitions: tuple[ColumnDefinition, ...] | None = None
    rows: tuple[Row, ...] | None = None


class Line(Struct, frozen=True):
    """One line of a watch: `object` is a Table, or a Status when `type` is ERROR."""

    type: str
    object: msgspec.Raw


_TABLE: Final = msgspec.json.Decoder(Table)
_LINE: Final = msgspec.json.Decoder(Line)
_STATUS: Final = msgspec.json.Decoder(Status)
_PHASES: Final = {phase.value: phase for phase in Phase}


def decode_table(raw: bytes | msgspec.Raw) -> Table:
    """Raises BadTable."""
    try:
        return _TABLE.decode(raw)
    except UNDECODABLE as error:
        raise BadTable(f"the answer is no Table: {error}") from error


def decode_line(raw: bytes) -> tuple[str, Table | Status]:
    """(type, object) of one watch line. Raises BadTable."""
    try:
        line = _LINE.decode(raw)
        return line.type, _STATUS.decode(line.object) if line.type == "ERROR" else _TABLE.decode(line.object)
    except UNDECODABLE as error:
        raise BadTable(f"the watch sent what is no Table: {error}") from error


def columns_of(table: Table) -> tuple[int, ...] | None:
    """Where the needed columns stand; None when the Table names no columns (later events of a watch).

    Raises BadTable when one is missing.
    """
    if not table.column_definitions:
        return None
    names = [column.name for column in table.column_definitions]
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise BadTable(f"Runs are listed without the columns {', '.join(missing)}: the CRD is another one's")
    return tuple(names.index(name) for name in NEEDED)


def facts(table: Table, columns: Sequence[int], namespace: str) -> Iterator[RunFact]:
    """The Runs of a Table. A row that cannot be one (no UID, a phase of a later version) is logged and left out."""
    for row in table.rows or ():
        fact = _fact(row.cells, columns, namespace)
        if fact is not None:
            yield fact


def _fact(cells: tuple[Any, ...], columns: Sequence[int], namespace: str) -> RunFact | None:
    try:
        name, uid, runtime, phase, attempt, pod, pod_uid = (cells[column] for column in columns)
    except IndexError:
        log.error("a row of the Runs' Table is too short", extra={"namespace": namespace})
        return None
    known = _PHASES.get(phase or Phase.PENDING.value)
    if not uid or not runtime or known is None:
        log.error("a row of the Runs' Table cannot be read", extra={"namespace": namespace, "phase": phase})
        return None
    return RunFact(
        uid=RunUID(uid),
        namespace=namespace,
        runtime=runtime,
        name=name,
        phase=known,
        attempt=int(attempt or 0),
        pod_name=intern(pod) if pod else None,
        pod_uid=PodUID(intern(pod_uid)) if pod_uid else None,
    )
