"""What the store keeps: keys, rows, the records of its log.

Lives here: plain data. May not live here: SQL (`store.py`). Whoever reads or writes the store uses these.
"""

import enum

import msgspec


class Change(enum.IntEnum):
    """What a row of the log did to its object; the names are those of watch events."""

    ADDED = 0
    MODIFIED = 1
    DELETED = 2


class Key(msgspec.Struct, frozen=True, order=True):
    """Where an object is stored. `resource` is `<group>/<plural>`; `namespace` is empty for cluster scope."""

    resource: str
    namespace: str
    name: str


class Row(msgspec.Struct, frozen=True):
    """An object as stored: `value` is its JSON with `metadata.resourceVersion` equal to `revision`."""

    key: Key
    revision: int
    value: bytes


class Record(msgspec.Struct, frozen=True):
    """One row of the log. `previous` is the revision that it replaced, 0 for none."""

    key: Key
    revision: int
    change: Change
    previous: int
    value: bytes


class Write(msgspec.Struct, frozen=True):
    """A change to commit: `value` already carries the revision that `Store.next_revision` promised.

    `owners` are the UIDs of its owner references; `deleting` says that it has a deletionTimestamp.
    """

    key: Key
    change: Change
    uid: str
    value: bytes
    owners: tuple[str, ...] = ()
    deleting: bool = False
