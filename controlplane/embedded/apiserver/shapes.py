"""How lists merge in each kind: from the schema of a custom resource, or from the merge keys of built-in kinds.

Lives here: the two implementations of `fieldsets.Shape`. May not live here: merging. `managed.py` and `applying.py`
use them.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver.kinds import Resource
from controlplane.embedded.apiserver.schema import CompiledVersion
from controlplane.embedded.apiserver.strategic import MERGED_SETS, merge_key
from controlplane.embedded.apiserver.structural import Node


class BuiltinShape(msgspec.Struct, frozen=True):
    """By field name, as strategic merge patches do."""

    name: str = ""

    def child(self, name: str) -> "BuiltinShape":
        return BuiltinShape(name)

    def item(self) -> "BuiltinShape":
        return BuiltinShape()

    def keys(self, *lists: Sequence[Any]) -> tuple[str, ...]:
        key = merge_key(self.name, *lists)
        return (key,) if key else ()

    def is_set(self) -> bool:
        return self.name in MERGED_SETS


class SchemaShape(msgspec.Struct, frozen=True):
    """By the CRD's x-kubernetes-list-type; metadata as in built-in kinds. `node` is None where nothing is declared."""

    node: Node | None

    def child(self, name: str) -> "SchemaShape | BuiltinShape":
        if self.node is None:
            return self
        return SchemaShape(self.node.properties.get(name) or self.node.values)

    def item(self) -> "SchemaShape":
        return SchemaShape(self.node.items if self.node else None)

    def keys(self, *lists: Sequence[Any]) -> tuple[str, ...]:
        if self.node is None or self.node.list_type != "map":
            return ()
        known = self.node.list_keys
        whole = all(isinstance(item, dict) and any(key in item for key in known) for each in lists for item in each)
        return known if whole else ()

    def is_set(self) -> bool:
        return self.node is not None and self.node.list_type == "set"


class ObjectShape(msgspec.Struct, frozen=True):
    """A whole custom object: its own schema, but the server's metadata."""

    node: Node

    def child(self, name: str) -> SchemaShape | BuiltinShape:
        return BuiltinShape() if name == "metadata" else SchemaShape(self.node).child(name)

    def item(self) -> SchemaShape:
        return SchemaShape(None)

    def keys(self, *lists: Sequence[Any]) -> tuple[str, ...]:
        return ()

    def is_set(self) -> bool:
        return False


_BUILTIN: Final = BuiltinShape()


def shape_of(resource: Resource) -> BuiltinShape | ObjectShape:
    """The shape of the objects of a resource."""
    if isinstance(resource.schema, CompiledVersion):
        return ObjectShape(Node.of(resource.schema.schema))
    return _BUILTIN
