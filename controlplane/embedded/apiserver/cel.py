"""The rules of a CRD (`x-kubernetes-validations`): compiled once, evaluated over `self` and `oldSelf`.

Lives here: the bridge between Kubernetes' CEL and the language core. Of Kubernetes' libraries the list and string
functions are there; a rule that calls another is refused when the CRD is, not when an object is. `schema.py` calls this
after types and bounds were found good. Known difference: a value that an update leaves as it was is not judged again,
by transition rules neither.
"""

import base64
import binascii
import datetime
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import cel
import msgspec
from cel.stdlib import STDLIB_FUNCTIONS

from controlplane.embedded.apiserver.errors import Cause
from controlplane.embedded.apiserver.schema_errors import DUPLICATE, FORBIDDEN, INVALID, REQUIRED, quoted
from controlplane.embedded.apiserver.structural import Node

# fmt: off
_CORE: Final = frozenset(
    [
        "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "getDate", "getDayOfMonth",
        "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds", "getMinutes",
        "getMonth", "getSeconds", "hasValue", "int", "matches", "none", "of", "orValue", "size", "startsWith",
        "string", "timestamp", "type", "uint", "value"
    ]
)
_EXTENSIONS: Final[Mapping[str, Callable[..., Any]]] = {
    name: STDLIB_FUNCTIONS[name]
    for name in [
        "charAt", "indexOf", "join", "lastIndexOf", "lowerAscii", "max", "min", "replace", "sets.contains",
        "sets.equivalent", "sets.intersects", "split", "substring", "sum", "trim", "upperAscii"
    ]
}
# fmt: on
# Names that are words of CEL are written `__name__` in Kubernetes; the core used here takes them as they are.
_ESCAPED: Final = re.compile(
    r"\.__(true|false|null|in|as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return)__"
)
_OF_REASON: Final[Mapping[str, str]] = {REQUIRED: "Required value", FORBIDDEN: "Forbidden"}
_EVALUATION_ERRORS: Final = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
_ABSENT: Final = msgspec.UNSET


class RuleError(ValueError):
    """A rule that does not compile. `args[0]` is a sentence that quotes the rule."""


class Rule(msgspec.Struct, frozen=True):
    """One compiled rule, with what it says when it does not hold."""

    program: cel.Program
    message: str
    message_program: cel.Program | None
    reason: str
    field_path: str
    transition: bool

    def cause(self, path: str, shown: str, context: cel.Context) -> Cause | None:
        """What is wrong with the value in `context` at `path`, or None when the rule holds."""
        try:
            holds = self.program.execute(context)
        except _EVALUATION_ERRORS as error:
            return Cause(INVALID, f"Invalid value: {quoted(shown)}: {error} evaluating rule: {self.message}", path)
        if holds is True:
            return None
        message = self.message
        if self.message_program is not None:
            message = str(self.message_program.execute(context))
        field = (path + self.field_path).lstrip(".")
        if self.reason == DUPLICATE:
            return Cause(DUPLICATE, f"Duplicate value: {quoted(shown)}", field)
        prefix = _OF_REASON.get(self.reason, f"Invalid value: {quoted(shown)}")
        return Cause(self.reason, f"{prefix}: {message}", field)


class Checker(msgspec.Struct, frozen=True, kw_only=True):
    """The rules at and below one value. Subtrees without rules are not in it.

    `optional_rules` see `oldSelf` as an optional value, and are evaluated on creation too.
    """

    rules: tuple[Rule, ...]
    optional_rules: tuple[Rule, ...]
    functions: dict[str, Callable[..., Any]]
    convert: Callable[[Any], Any] | None
    shown: str
    properties: dict[str, "Checker"]
    values: "Checker | None"
    items: "Checker | None"
    keys: tuple[str, ...]

    @classmethod
    def of(cls, node: Node) -> "Checker | None":
        """Compile the rules of a schema; None when there is none. Raises RuleError."""
        properties = {name: checker for name, child in node.properties.items() if (checker := cls.of(child))}
        values = cls.of(node.values) if node.values else None
        items = cls.of(node.items) if node.items else None
        if not (node.rules or properties or values or items):
            return None
        rules = [(_compiled_rule(schema), bool(schema.get("optionalOldSelf"))) for schema in node.rules]
        return cls(
            rules=tuple(rule for rule, optional in rules if not optional),
            optional_rules=tuple(rule for rule, optional in rules if optional),
            functions={name: function for rule, _ in rules for name, function in _functions(rule.program).items()},
            convert=_converter(node) if rules else None,
            shown=node.type,
            properties=properties,
            values=values,
            items=items,
            keys=node.list_keys if node.list_type == "map" else (),
        )

    def check(self, value: Any, old: Any, path: str, causes: list[Cause]) -> None:
        """Evaluate every rule at and below `value`; `old` is `_ABSENT` where nothing corresponds to it."""
        if value is None or (old is not _ABSENT and value == old):
            return
        if self.rules or self.optional_rules:
            self._evaluate(value, old, path, causes)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for name, child in self.properties.items():
                if name in value:
                    child.check(value[name], before.get(name, _ABSENT), f"{path}.{name}" if path else name, causes)
            if self.values is not None:
                for name, member in value.items():
                    self.values.check(member, before.get(name, _ABSENT), f"{path}[{name}]", causes)
        elif isinstance(value, list) and self.items is not None:
            before = self._by_keys(old)
            for index, item in enumerate(value):
                self.items.check(item, before.get(self._keys_of(item), _ABSENT), f"{path}[{index}]", causes)

    def _evaluate(self, value: Any, old: Any, path: str, causes: list[Cause]) -> None:
        convert = self.convert or _unchanged
        context = cel.Context(variables={"self": convert(value)}, functions=self.functions)
        is_new = old is _ABSENT
        if not is_new:
            context.add_variable("oldSelf", convert(old))
        found = [rule.cause(path, self.shown, context) for rule in self.rules if not (rule.transition and is_new)]
        if self.optional_rules:
            optional = cel.OptionalValue.none() if is_new else cel.OptionalValue.of(convert(old))
            context.add_variable("oldSelf", optional)
            found += [rule.cause(path, self.shown, context) for rule in self.optional_rules]
        causes += [cause for cause in found if cause is not None]

    def _keys_of(self, item: Any) -> tuple[Any, ...] | None:
        return tuple(item.get(key) for key in self.keys) if self.keys and isinstance(item, dict) else None

    def _by_keys(self, old: Any) -> dict[Any, Any]:
        """Items of a list that is no map correspond to nothing."""
        if not self.keys or not isinstance(old, list):
            return {}
        return {self._keys_of(item): item for item in old}


def check(checker: Checker, value: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
    """Everything that the rules of a CRD version find wrong with an object; `old` is None on creation."""
    causes: list[Cause] = []
    checker.check(value, _ABSENT if old is None else old, "", causes)
    return causes


def _compiled_rule(schema: Mapping[str, Any]) -> Rule:
    program = _compiled(schema["rule"])
    message_expression = schema.get("messageExpression")
    return Rule(
        program=program,
        message=schema.get("message") or f"failed rule: {schema['rule']}",
        message_program=_compiled(message_expression) if message_expression else None,
        reason=schema.get("reason", INVALID),
        field_path=schema.get("fieldPath", ""),
        transition="oldSelf" in program.variables(),
    )


@functools.lru_cache(maxsize=1024)  # CRDs are compiled again at every start and change, their rules rarely differ
def _compiled(source: str) -> cel.Program:
    try:
        program = cel.compile(_ESCAPED.sub(r".\1", source))
    except ValueError as error:
        raise RuleError(f"compilation failed: {error}") from error
    for name in program.functions():
        if name[0].isalpha() and name not in _CORE and name not in _EXTENSIONS:
            raise RuleError(f"compilation failed: {source!r} calls {name}, which is not served here")
    return program


def _functions(program: cel.Program) -> dict[str, Callable[..., Any]]:
    return {name: _EXTENSIONS[name] for name in program.functions() if name in _EXTENSIONS and name not in _CORE}


def _unchanged(value: Any) -> Any:
    return value


def _converter(node: Node) -> Callable[[Any], Any] | None:
    """From JSON to the types that Kubernetes gives values by their format; None where that changes nothing."""
    if node.type == "string" and node.format in _FORMATS:
        return _FORMATS[node.format]
    members = {name: found for name, child in node.properties.items() if (found := _converter(child))}
    values = _converter(node.values) if node.values else None
    items = _converter(node.items) if node.items else None
    if not (members or values or items):
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: members.get(name, values or _unchanged)(member) for name, member in value.items()}
        if isinstance(value, list) and items is not None:
            return [items(item) for item in value]
        return value

    return convert


def _timestamp(value: Any) -> Any:
    return _or_text(value, datetime.datetime.fromisoformat)


def _bytes(value: Any) -> Any:
    return _or_text(value, base64.b64decode)


def _or_text(value: Any, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError, binascii.Error):
        return value


_FORMATS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "date-time": _timestamp,
    "datetime": _timestamp,
    "date": _timestamp,
    "byte": _bytes,
}
