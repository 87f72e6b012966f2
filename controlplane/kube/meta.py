"""What every API object has: metadata, owner references, conditions, lists and the Status of an answer.

Only shapes live here, no behaviour that talks to an API. Every `types_*.py` builds on it.

All structs are frozen and decode straight from the API's JSON: unknown fields are ignored, absent ones take their
default, and fields that hold their default are left out when encoding.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every part of an API object: camelCase on the wire, snake_case here."""


class OwnerReference(ApiStruct, frozen=True, kw_only=True):
    """The object that must exist for this one to exist; garbage collection follows it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    """metadata of an object. Times are RFC 3339 strings; `codec.parse_time_us` reads them."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def deleting(self) -> bool:
        """True once the API has accepted a deletion of the object, even if finalizers still hold it."""
        return self.deletion_timestamp is not None


class Condition(ApiStruct, frozen=True, kw_only=True):
    """metav1.Condition as we write and read it. `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ListMeta(ApiStruct, frozen=True, kw_only=True):
    """metadata of a list: the revision it was read at, and where the next page starts."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class StatusCause(ApiStruct, frozen=True, kw_only=True):
    """One field that was wrong (`field` is its path), or another machine-readable cause of a refusal."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(ApiStruct, frozen=True, kw_only=True):
    """Which object a Status is about, why, and when to come again."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] = ()
    retry_after_seconds: int = 0


class Status(ApiStruct, frozen=True, kw_only=True):
    """metav1.Status: how the Kubernetes API says that something failed (or that a delete succeeded)."""

    api_version: str = "v1"
    kind: str = "Status"
    status: str = "Failure"
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ObjectList(msgspec.Struct, Generic[T], frozen=True):
    """All items of a list, pages joined, and the revision from which a watch may start."""

    items: tuple[T, ...]
    resource_version: str


def owner_of(obj: Any, *, controller: bool = True, block: bool = True) -> OwnerReference:
    """The reference that makes `obj` (apiVersion, kind, metadata) the owner of something."""
    return OwnerReference(
        api_version=obj.api_version,
        kind=obj.kind,
        name=obj.metadata.name,
        uid=obj.metadata.uid,
        controller=controller,
        block_owner_deletion=block,
    )


def matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """True if every label of an equality `selector` is on `labels`."""
    return all(labels.get(key) == value for key, value in selector.items())
