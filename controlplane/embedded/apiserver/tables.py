"""Objects as bytes in the form that the client asked for: themselves, rows of a Table, or metadata alone.

Lives here: encoding of single objects, lists and watch frames. May not live here: the columns (`columns.py`, CRDs).
`endpoints.py` and `watching.py` call it.
"""

import datetime
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from controlplane.embedded.apiserver import jsonpath
from controlplane.embedded.apiserver.kinds import Column, Object, Resource, metadata_name
from controlplane.embedded.apiserver.meta import parse_timestamp
from controlplane.embedded.apiserver.representation import View

_NAME: Final = Column(
    "Name", lambda item, now: metadata_name(item), format="name", description="Name must be unique within a namespace."
)


def human_duration(seconds: float) -> str:
    """The age of an object in kubectl's words: two units at most, fewer the older it is."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10:
        rest = whole % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        rest = hours % 24
        return f"{days}d{rest}h" if rest else f"{days}d"
    if days < 730:
        return f"{days}d"
    years, rest = divmod(days, 365)
    return f"{years}y{rest}d" if rest and years < 8 else f"{years}y"


def age_of(path: str) -> Callable[[Object, datetime.datetime], str]:
    """A cell that says how long ago the time at a JSONPath was."""

    def cell(item: Object, now: datetime.datetime) -> str:
        text = jsonpath.first(path, item)
        at = parse_timestamp(text) if isinstance(text, str) else None
        return human_duration((now - at).total_seconds()) if at else "<unknown>"

    return cell


_AGE: Final = Column(
    "Age",
    age_of(".metadata.creationTimestamp"),
    description="CreationTimestamp is a timestamp representing the server time when this object was created.",
)


class Presenter:
    """Encodes for one resource and view. `now` is read once a response, so all ages of a list agree."""

    def __init__(self, resource: Resource, view: View, now: Callable[[], datetime.datetime]) -> None:
        self._resource = resource
        self._view = view
        self._now = now

    @property
    def verbatim(self) -> bool:
        """Whether stored bytes are served as they are."""
        return self._view.form == "object" and self._resource.decoded is None

    def one(self, value: bytes) -> bytes:
        match self._view.form:
            case "table":
                return self._table([self._item(value)], {"resourceVersion": self._version(value)}, columns=True)
            case "metadata":
                return msgspec.json.encode(self._partial(self._item(value)))
            case _:
                return value if self.verbatim else msgspec.json.encode(self._item(value))

    def many(self, values: Sequence[bytes], list_metadata: Object) -> bytes:
        match self._view.form:
            case "table":
                return self._table([self._item(value) for value in values], list_metadata, columns=True)
            case "metadata":
                api_version, kind = f"meta.k8s.io/{self._view.version}", "PartialObjectMetadataList"
                encoded = [msgspec.json.encode(self._partial(self._item(value))) for value in values]
            case _:
                api_version, kind = self._resource.api_version, self._resource.list_name
                encoded = list(values)
                if not self.verbatim:
                    encoded = [msgspec.json.encode(self._item(value)) for value in values]
        head = msgspec.json.encode({"kind": kind, "apiVersion": api_version, "metadata": list_metadata})
        return b"".join((head[:-1], b',"items":[', b",".join(encoded), b"]}"))

    def frame(self, change: str, value: bytes, *, first: bool) -> bytes:
        """One line of a watch. Column definitions come with the first one only."""
        if self._view.form == "table":
            version = {"resourceVersion": self._version(value)}
            body = self._table([self._item(value)], version, columns=first)
        else:
            body = self.one(value)
        return b"".join((b'{"type":"', change.encode(), b'","object":', body, b"}\n"))

    def bookmark(self, revision: int, *, initial_end: bool, first: bool) -> bytes:
        metadata: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        item: Object = {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": metadata}
        match self._view.form:
            case "table":
                body = self._bookmark_table(item, revision, columns=first)
            case "metadata":
                body = msgspec.json.encode(self._partial(item))
            case _:
                body = msgspec.json.encode(item)
        return b'{"type":"BOOKMARK","object":' + body + b"}\n"

    def _item(self, value: bytes) -> Object:
        item: Object = msgspec.json.decode(value)
        return self._resource.decoded(item) if self._resource.decoded else item

    def _version(self, value: bytes) -> str:
        version: str = msgspec.json.decode(value, type=_Versioned).metadata.resource_version
        return version

    def _partial(self, item: Object) -> Object:
        api_version = f"meta.k8s.io/{self._view.version}"
        return {"kind": "PartialObjectMetadata", "apiVersion": api_version, "metadata": item["metadata"]}

    def _columns(self) -> tuple[Column, ...]:
        shown = self._resource.columns or (_AGE,)
        return shown if self._resource.nameless else (_NAME, *shown)

    def _table(self, items: Sequence[Object], list_metadata: Object, *, columns: bool) -> bytes:
        now = self._now()
        shown = self._columns()
        rows: list[Object] = []
        for item in items:
            row: Object = {"cells": [column.cell(item, now) for column in shown]}
            match self._view.include:
                case "Object":
                    row["object"] = item
                case "Metadata":
                    row["object"] = self._partial(item)
                case _:
                    row["object"] = None
            rows.append(row)
        return self._encoded_table(shown if columns else (), rows, list_metadata)

    def _bookmark_table(self, item: Object, revision: int, *, columns: bool) -> bytes:
        """A bookmark in Table form: a row without cells that mean anything, whose object carries the version."""
        shown = self._columns()
        carried = item if self._view.include == "Object" else self._partial(item)
        row = {"cells": [None for _ in shown], "object": carried}
        return self._encoded_table(shown if columns else (), [row], {"resourceVersion": str(revision)})

    def _encoded_table(self, columns: Sequence[Column], rows: Sequence[Object], list_metadata: Object) -> bytes:
        return msgspec.json.encode(
            {
                "kind": "Table",
                "apiVersion": f"meta.k8s.io/{self._view.version}",
                "metadata": list_metadata,
                "columnDefinitions": [column.definition() for column in columns] or None,
                "rows": rows,
            }
        )


class _VersionedMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _VersionedMetadata
