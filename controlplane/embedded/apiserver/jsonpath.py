"""The part of JSONPath that CRDs use: `.a.b`, `['k']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`.

Lives here: compiling a path into a reader. May not live here: formatting. `columns.py` and `kinds.py` use it next.
"""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

_STEP = re.compile(
    r"\.(?P<field>(?:[^.\[\\]|\\.)+)"
    r"|\['(?P<quoted>[^']*)'\]"
    r"|\[(?P<index>-?\d+)\]"
    r"|(?P<every>\[\*\]|\.\*)"
    r"|\[\?\(@(?P<left>[^=!)]*?)\s*(?P<op>==|!=)\s*(?P<right>\"[^\"]*\"|'[^']*'|[^)]*?)\)\]"
)

Step = Callable[[Any], Iterable[Any]]


@functools.lru_cache(maxsize=512)
def compiled(path: str) -> tuple[Step, ...]:
    """Raises ValueError for what this subset does not know."""
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = text.removeprefix("$")
    if text and text[0] not in ".[":
        text = "." + text
    steps: list[Step] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            raise ValueError(f"JSONPath {path!r} is not understood at {text[position:]!r}")
        steps.append(_step(found))
        position = found.end()
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    if found["every"]:
        return _every
    if found["index"]:
        return functools.partial(_at_index, int(found["index"]))
    if found["op"]:
        right = found["right"]
        literal = right[1:-1] if right[:1] in {'"', "'"} else right
        return functools.partial(_filtered, found["left"], found["op"] == "==", literal)
    field = found["quoted"] if found["quoted"] is not None else re.sub(r"\\(.)", r"\1", found["field"])
    return functools.partial(_field, field)


def _field(name: str, value: Any) -> Iterable[Any]:
    if isinstance(value, dict) and name in value:
        yield value[name]


def _at_index(index: int, value: Any) -> Iterable[Any]:
    if isinstance(value, list) and -len(value) <= index < len(value):
        yield value[index]


def _every(value: Any) -> Iterable[Any]:
    if isinstance(value, list):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()


def _filtered(left: str, equal: bool, literal: str, value: Any) -> Iterable[Any]:
    for item in value if isinstance(value, list) else ():
        if (text_of(first(left, item)) == literal) is equal:
            yield item


def find(path: str, value: Any) -> list[Any]:
    found: list[Any] = [value]
    for step in compiled(path):
        found = [inner for outer in found for inner in step(outer)]
    return found


def first(path: str, value: Any) -> Any:
    """The first value at the path, or None."""
    found = find(path, value)
    return found[0] if found else None


def text_of(value: Any) -> str:
    """A value as Kubernetes compares it with a selector: booleans and numbers in their JSON form, absent as empty."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)
