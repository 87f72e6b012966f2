"""Events have two served shapes over one storage: core/v1, as stored, and events.k8s.io/v1.

Lives here: the renaming between them. May not live here: anything else about Events. `builtin.py` names it.
"""

from typing import Any, Final

Object = dict[str, Any]

_RENAMED: Final = {
    "note": "message",
    "regarding": "involvedObject",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
_BACK: Final = {stored: served for served, stored in _RENAMED.items()}


def to_core(item: Object) -> Object:
    """The stored form of an events.k8s.io/v1 Event."""
    return {**{_RENAMED.get(name, name): value for name, value in item.items()}, "apiVersion": "v1"}


def from_core(item: Object) -> Object:
    """The events.k8s.io/v1 form of a stored Event."""
    return {**{_BACK.get(name, name): value for name, value in item.items()}, "apiVersion": "events.k8s.io/v1"}
