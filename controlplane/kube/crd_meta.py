"""How a field says its bounds, its documentation and its rules, so that the CRD can be rendered from the types.

Bounds travel as `extra_json_schema`, which msgspec does not enforce on decoding: the API server judges what is
written, and a reader must not choke on an object that an older or newer set of bounds let through. The types of our
kinds use these words, `crd` renders them. Nothing here reads or writes anything.
"""

from typing import Any, Literal

import msgspec

Reason = Literal["FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden", "FieldValueDuplicate"]


class Rule(msgspec.Struct, frozen=True):
    """One CEL rule over `self` (and `oldSelf`: then it judges updates only).

    `field_path` is relative to the value that the rule stands on and names the leaf that is wrong.
    """

    rule: str
    message: str
    field_path: str = ""
    reason: Reason = "FieldValueInvalid"

    def schema(self) -> dict[str, str]:
        """The rule as an entry of `x-kubernetes-validations`."""
        entry = {"rule": self.rule, "message": self.message, "reason": self.reason, "fieldPath": self.field_path}
        return {key: value for key, value in entry.items() if value not in ("", "FieldValueInvalid")}


def field(doc: str, *rules: Rule, **schema: Any) -> msgspec.Meta:
    """Documentation, schema keywords (`x_kubernetes_…` with dashes) and rules of one field."""
    extra: dict[str, Any] = {
        key.replace("_", "-") if key.startswith("x_kubernetes") else key: value for key, value in schema.items()
    }
    if rules:
        extra["x-kubernetes-validations"] = [rule.schema() for rule in rules]
    return msgspec.Meta(description=doc, extra_json_schema=extra)


def text(doc: str, *rules: Rule, max_bytes: int, **schema: Any) -> msgspec.Meta:
    """A string of at most `max_bytes` bytes of UTF-8.

    `maxLength` counts characters: it bounds what the rule may cost, and the rule counts the bytes.
    """
    bound = Rule(f"size(bytes(self)) <= {max_bytes}", f"must be at most {max_bytes} bytes of UTF-8")
    return field(doc, bound, *rules, maxLength=max_bytes, **schema)


def ascii_text(doc: str, *rules: Rule, max_bytes: int, **schema: Any) -> msgspec.Meta:
    """A string whose other bounds allow one-byte characters only, so that `maxLength` counts bytes."""
    return field(doc, *rules, maxLength=max_bytes, **schema)


def whole(doc: str, *, minimum: int, maximum: int = 2**31 - 1) -> msgspec.Meta:
    """A whole number; without a bound of its own it fits 32 bits, as counts in Kubernetes do."""
    return field(doc, format="int32", minimum=minimum, maximum=maximum)


def large(doc: str) -> msgspec.Meta:
    """A whole number of 0 or more that fits 64 bits. Its maximum is unsaid: an API server reads it as a float."""
    return field(doc, format="int64", minimum=0)


def keyed(doc: str, key: str, *, max_items: int, rules: tuple[Rule, ...] = ()) -> msgspec.Meta:
    """A list whose items are told apart by one field, which is unique in it."""
    return field(doc, *rules, maxItems=max_items, x_kubernetes_list_type="map", x_kubernetes_list_map_keys=[key])
