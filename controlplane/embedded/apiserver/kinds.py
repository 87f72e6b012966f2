"""What a served resource is, as data: names, verbs, subresources, columns, selectable fields, and hooks by name.

Lives here: the `Resource` struct and readers of fields. May not live here: the rows (`builtin.py`, `custom.py`).
`registry.py` collects them, `objects.py` and `discovery.py` read them.
"""

import datetime
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from controlplane.embedded.apiserver import jsonpath, names
from controlplane.embedded.apiserver.errors import Cause

Object = dict[str, Any]

STORED_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
REVIEW_VERBS: Final = ("create",)


class Column(msgspec.Struct, frozen=True):
    """One column of a Table. `cell` gives a JSON value from an object and the present time."""

    name: str
    cell: Callable[[Object, datetime.datetime], Any]
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0

    def definition(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


class Scale(msgspec.Struct, frozen=True):
    """Where the scale subresource finds its numbers (JSONPaths)."""

    spec_replicas: str
    status_replicas: str
    selector: str = ""


class Schema(Protocol):
    """What checks the objects of one version. `schema.py` compiles it from a CRD or from our own core schemas."""

    def prune_and_default(self, obj: Object) -> tuple[Object, list[str]]:
        """The object with unknown fields cut and defaults filled, and the paths that were cut."""
        ...

    def validate(self, obj: Object, old: Object | None) -> list[Cause]:
        """Everything that is wrong; `old` is the object before an update."""
        ...


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One (group, version, plural) that the server answers. `storage` is shared by versions of the same resource."""

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    namespaced: bool = True
    verbs: tuple[str, ...] = STORED_VERBS
    status: bool = False
    scale: Scale | None = None
    storage: str = ""
    custom: bool = False
    generation: bool = False
    graceful: bool = False
    name_rule: Callable[[str], list[str]] = names.wrong_subdomain
    fields: Mapping[str, Callable[[Object], str]] = {}
    columns: tuple[Column, ...] = ()
    nameless: bool = False
    schema: Schema | None = None
    prepare: Callable[[Object, Object | None], None] | None = None
    check: Callable[[Object, Object | None], list[Cause]] | None = None
    decoded: Callable[[Object], Object] | None = None
    encoded: Callable[[Object], Object] | None = None
    review: str = ""
    """`prepare(item, old)` fills in what the server decides, `check(item, old)` refuses; `old` is None on creation.
    `decoded` and `encoded` convert between the served and the stored version where they differ in shape.
    A `nameless` Table has no column for the name but its own. `review` names the answer of a resource that is never
    stored."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_as(self) -> str:
        return self.storage or f"{self.group}/{self.plural}"

    @property
    def list_name(self) -> str:
        return self.list_kind or f"{self.kind}List"

    @property
    def readers(self) -> Mapping[str, Callable[[Object], str]]:
        """The field labels of selectors, with how each is read."""
        return {**_COMMON_FIELDS, **self.fields}

    @property
    def subresources(self) -> tuple[str, ...]:
        return (("status",) if self.status else ()) + (("scale",) if self.scale else ())


def reader(path: str) -> Callable[[Object], str]:
    """A selector's reader for a JSONPath. Raises ValueError for one that is not understood."""
    jsonpath.compiled(path)
    return lambda item: jsonpath.text_of(jsonpath.first(path, item))


def metadata_name(item: Object) -> str:
    name: str = item["metadata"].get("name", "")
    return name


def metadata_namespace(item: Object) -> str:
    namespace: str = item["metadata"].get("namespace", "")
    return namespace


_COMMON_FIELDS: Final[Mapping[str, Callable[[Object], str]]] = {
    "metadata.name": metadata_name,
    "metadata.namespace": metadata_namespace,
}
