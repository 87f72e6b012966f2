"""Label and field selectors: text in, a predicate out.

Lives here: parsing and matching as Kubernetes defines them. May not live here: which fields a kind offers (`kinds.py`).
`endpoints.py` parses them once a request, `hub.py` asks them once an event.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors

Object = dict[str, Any]

_TERM = re.compile(
    r"\s*(?:(?P<absent>!\s*(?P<absent_key>[^\s,!=()<>]+))"
    r"|(?P<key>[^\s,!=()<>]+)\s*(?:(?P<set_op>notin|in)\s*\((?P<values>[^)]*)\)"
    r"|(?P<op>==|!=|=|>|<)\s*(?P<value>[^\s,()]*)|))\s*(?:,|$)"
)


class LabelRequirement(msgspec.Struct, frozen=True):
    """`operator` is one of in, notin, exists, absent, gt, lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        present = self.key in labels
        match self.operator:
            case "exists":
                return present
            case "absent":
                return not present
            case "in":
                return present and labels[self.key] in self.values
            case "notin":
                return not present or labels[self.key] not in self.values
            case _:
                return present and self._compares(labels[self.key])

    def _compares(self, value: str) -> bool:
        (bound,) = self.values
        try:
            return int(value) > int(bound) if self.operator == "gt" else int(value) < int(bound)
        except ValueError:
            return False


class FieldRequirement(msgspec.Struct, frozen=True):
    """`field` is one that the resource offers; `read` takes it from an object as text."""

    field: str
    equal: bool
    value: str
    read: Callable[[Object], str]

    def matches(self, item: Object) -> bool:
        return (self.read(item) == self.value) is self.equal


class Selector(msgspec.Struct, frozen=True):
    """Both selectors of one request. An empty one matches everything and never needs the object decoded."""

    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    @property
    def everything(self) -> bool:
        return not self.labels and not self.fields

    def matches(self, item: Object) -> bool:
        if self.labels:
            labels = item["metadata"].get("labels") or {}
            if not all(requirement.matches(labels) for requirement in self.labels):
                return False
        return all(requirement.matches(item) for requirement in self.fields)

    def only_name(self) -> str | None:
        """The name, when `metadata.name=x` is asked for: then one row is enough."""
        for requirement in self.fields:
            if requirement.field == "metadata.name" and requirement.equal:
                return requirement.value
        return None


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    """Raises 400 for what Kubernetes' grammar does not know."""
    requirements: list[LabelRequirement] = []
    position = 0
    text = text.strip()
    while position < len(text):
        found = _TERM.match(text, position)
        if found is None or found.end() == position:
            raise errors.bad_request(f"unable to parse label selector {text!r}: unexpected text at {text[position:]!r}")
        requirements.append(_label_requirement(found))
        position = found.end()
    return tuple(requirements)


def _label_requirement(found: re.Match[str]) -> LabelRequirement:
    if found["absent"]:
        return LabelRequirement(found["absent_key"], "absent")
    if found["set_op"]:
        values = frozenset(value.strip() for value in found["values"].split(","))
        return LabelRequirement(found["key"], found["set_op"], values)
    if found["op"]:
        operator = {"=": "in", "==": "in", "!=": "notin", ">": "gt", "<": "lt"}[found["op"]]
        return LabelRequirement(found["key"], operator, frozenset([found["value"]]))
    return LabelRequirement(found["key"], "exists")


def parse_fields(text: str, offered: Mapping[str, Callable[[Object], str]]) -> tuple[FieldRequirement, ...]:
    """`offered` maps a field label to its reader; another label is refused by name, as Kubernetes does."""
    requirements: list[FieldRequirement] = []
    for term in _split_terms(text):
        operator = next((each for each in ("!=", "==", "=") if each in term), "")
        if not operator:
            raise errors.bad_request(f"invalid field selector {text!r}: a term is neither field=value nor field!=value")
        field, _, value = term.partition(operator)
        if field not in offered:
            raise errors.bad_request(f"field label not supported: {field}")
        requirements.append(FieldRequirement(field, operator != "!=", _unescaped(value), offered[field]))
    return tuple(requirements)


def _split_terms(text: str) -> list[str]:
    return [term for term in re.split(r"(?<!\\),", text) if term]


def _unescaped(value: str) -> str:
    return re.sub(r"\\([\\,=])", r"\1", value)


_EXPRESSIONS: Final[Mapping[str, str]] = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}


def from_label_selector(selector: Mapping[str, Any]) -> tuple[LabelRequirement, ...]:
    """A metav1.LabelSelector object (`matchLabels`, `matchExpressions`). Raises ValueError that says what is wrong."""
    found = [LabelRequirement(k, "in", frozenset([v])) for k, v in (selector.get("matchLabels") or {}).items()]
    for term in selector.get("matchExpressions") or []:
        operator = _EXPRESSIONS.get(term.get("operator", ""))
        if operator is None:
            raise ValueError(f'"{term.get("operator", "")}" is not a valid label selector operator')
        values = frozenset(term.get("values") or ())
        if not term.get("key") or bool(values) is not (operator in {"in", "notin"}):
            raise ValueError("an expression has a key, and values exactly for In and NotIn")
        found.append(LabelRequirement(term["key"], operator, values))
    return tuple(found)
