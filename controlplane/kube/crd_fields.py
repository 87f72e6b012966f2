"""Kinds of fields that occur in both Run and Runtime: durations, paths, quantities, names, times.

Built from the words of `crd_meta`; `types_run_spec`, `types_run_status` and `types_runtime` use them.
"""

from typing import Annotated, Final

import msgspec

from controlplane.kube.crd_meta import Rule, ascii_text, field, text

RUNTIME_NAME_MAX_BYTES: Final = 40  # with the prefix `runtime-` and a Pod's suffix it stays a label value
PATH_MAX_BYTES: Final = 4096  # PATH_MAX of Linux
DURATION_MAX_BYTES: Final = 21  # three numbers and their units
RESOURCES_MAX: Final = 16  # kinds of countable things that one Runtime declares
RESOURCE_NAME_MAX: Final = 63
MESSAGE_MAX_BYTES: Final = 1024
REASON_MAX_BYTES: Final = 128
NAME_MAX_BYTES: Final = 253  # of any Kubernetes object
UID_MAX_BYTES: Final = 64  # a UUID has 36
CONDITIONS_MAX: Final = 8

RUNTIME_NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
SEGMENT: Final = r"(\\.?[^./\\x00][^/\\x00]*|\\.\\.[^/\\x00]+)"  # anything but empty, `.` and `..`; escaped for CEL
QUANTITY_MAX_BYTES: Final = 32  # of the longest that the grammar takes, 18 digits and a fraction of zeros
# Whole by its form: no fraction, or one that the suffix makes whole. 1.5Ki would be, and is not worth a rule.
QUANTITY_PATTERN: Final = (
    r"^([1-9][0-9]{0,17}(\.0{1,9})?(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE]\+?[0-9]{1,2})?"
    r"|[1-9][0-9]{0,14}\.[0-9]{1,3}(k|M|G|T|P|E)"
    r"|[1-9][0-9]{0,14}000m)$"
)


DURATION_PATTERN: Final = "^([0-9]{1,4}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?$"


def duration(doc: str) -> msgspec.Meta:
    """A string such as 1h2m3s. Its grammar is narrow enough that `duration()` of CEL cannot overflow."""
    return ascii_text(
        doc + " Whole hours, minutes and seconds in that order, from 1s to 8760h, such as 90s or 1h30m.",
        Rule(
            f"self.matches('{DURATION_PATTERN}') && size(self) > 0 && "
            "duration(self) >= duration('1s') && duration(self) <= duration('8760h')",
            "must be whole hours, minutes and seconds in that order, from 1s to 8760h, such as 90s or 1h30m",
        ),
        max_bytes=DURATION_MAX_BYTES,
    )


def path(doc: str, grammar: str, message: str) -> msgspec.Meta:
    """A path below a folder, by a grammar over `SEGMENT`."""
    return text(doc, Rule(f"self.matches('{grammar}')", message), max_bytes=PATH_MAX_BYTES)


def quantities(doc: str) -> msgspec.Meta:
    """How many of what: a map from resource to whole quantity."""
    return field(
        doc + " Whole quantities of at least 1: 1, 2k and 1000m are, 0 and 500m are not.",
        Rule("self.all(name, name.size() > 0 && name.size() <= 63)", "names of resources have 1 to 63 characters"),
        minProperties=1,
        maxProperties=RESOURCES_MAX,
    )


Timestamp = Annotated[str, field("RFC 3339, with microseconds.", format="date-time")]
Quantity = Annotated[
    int | str,
    field(
        "A whole quantity of at least 1.",
        x_kubernetes_int_or_string=True,
        minimum=1,
        pattern=QUANTITY_PATTERN,
        maxLength=QUANTITY_MAX_BYTES,
    ),
]
Quantities = dict[str, Quantity]
RuntimeName = Annotated[
    str,
    ascii_text(
        "Name of a Runtime in the namespace of the Run.", max_bytes=RUNTIME_NAME_MAX_BYTES, pattern=RUNTIME_NAME_PATTERN
    ),
]
