"""Sets of fields in Kubernetes' FieldsV1 form, and values picked apart by them.

Lives here: pure set algebra over nested dicts (`f:name`, `k:{"key":…}`, `v:value`, `.`), merging and removing by it.
May not live here: who owns a set (`managed.py`). A node without children is a member; with children `.` says that it
is one too.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

Fields = dict[str, Any]
Path = tuple[str, ...]

SELF = "."


class Shape(Protocol):
    """How lists merge below a value: by keys of their items, as sets, or not at all."""

    def child(self, name: str) -> "Shape":
        """The shape of a field."""
        ...

    def item(self) -> "Shape":
        """The shape of the items of a list."""
        ...

    def keys(self, *lists: Sequence[Any]) -> tuple[str, ...]:
        """The fields that tell items apart; none for another kind of list."""
        ...

    def is_set(self) -> bool:
        """Whether a list of scalars merges as a set."""
        ...


def is_fields(value: Any) -> bool:
    """Whether a value that a client sent is a set of fields."""
    if not isinstance(value, dict):
        return False
    return all(_is_step(step) and is_fields(inner) for step, inner in value.items())


def _is_step(step: str) -> bool:
    kind, text = step[:2], step[2:]
    if step == SELF or kind == "f:":
        return True
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return False
    return kind == "v:" or (kind == "k:" and isinstance(decoded, dict))


def of(value: Any, shape: Shape) -> Fields:
    """Every field that a value sets."""
    match value:
        case dict():
            return {f"f:{name}": of(member, shape.child(name)) for name, member in value.items()}
        case list():
            keys = shape.keys(value)
            if keys:
                return {_key(item, keys): {SELF: {}, **of(item, shape.item())} for item in value}
            if shape.is_set():
                return {_value(item): {} for item in value}
    return {}


def _key(item: Any, keys: tuple[str, ...]) -> str:
    return "k:" + msgspec.json.encode({key: item[key] for key in sorted(keys) if key in item}).decode()


def _value(item: Any) -> str:
    return "v:" + msgspec.json.encode(item).decode()


def union(left: Mapping[str, Any], right: Mapping[str, Any]) -> Fields:
    if not left or not right:
        more = left or right
        return {SELF: {}, **more} if more and (left is not right) and more.keys() != {SELF} else dict(more)
    return {name: _either(left, right, name) for name in (*left, *(name for name in right if name not in left))}


def _either(left: Mapping[str, Any], right: Mapping[str, Any], name: str) -> Fields:
    if name not in right:
        return dict(left[name])
    return dict(right[name]) if name not in left else union(left[name], right[name])


def difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> Fields:
    """What is in `left` and not in `right`."""
    kept: Fields = {}
    for name, mine in left.items():
        if name not in right:
            kept[name] = mine
            continue
        theirs = right[name]
        if not mine:
            if theirs and SELF not in theirs:
                kept[name] = mine
            continue
        inner = difference(mine, theirs or {SELF: {}})
        if inner:
            kept[name] = inner
    return kept


def intersection(left: Mapping[str, Any], right: Mapping[str, Any]) -> Fields:
    """What is in both."""
    shared: Fields = {}
    for name, mine in left.items():
        if name not in right:
            continue
        theirs = right[name]
        if not mine or not theirs:
            if (not mine and not theirs) or SELF in (mine or theirs):
                shared[name] = {}
            continue
        inner = intersection(mine, theirs)
        if inner:
            shared[name] = inner
    return shared


def leaves(fields: Mapping[str, Any], above: Path = ()) -> Iterator[Path]:
    """The members as paths; `.` of an item with other members too."""
    for name, inner in fields.items():
        if inner:
            yield from leaves(inner, (*above, name))
        else:
            yield (*above, name)


ABSENT = object()


def value_at(value: Any, path: Path) -> Any:
    """The value at a path, or ABSENT."""
    for step in path:
        if step == SELF:
            return value
        value = _step(value, step)
        if value is ABSENT:
            return ABSENT
    return value


def _step(value: Any, step: str) -> Any:
    kind, text = step[:2], step[2:]
    if kind == "f:":
        return value.get(text, ABSENT) if isinstance(value, dict) else ABSENT
    if not isinstance(value, list):
        return ABSENT
    wanted = msgspec.json.decode(text)
    if kind == "v:":
        return wanted if wanted in value else ABSENT
    return next((item for item in value if _is(item, wanted)), ABSENT)


def _is(item: Any, wanted: Mapping[str, Any]) -> bool:
    return isinstance(item, dict) and all(item.get(key) == value for key, value in wanted.items())


def shown(path: Path) -> str:
    """A path as kubectl shows it: `.spec.env[name="A"].value`."""
    text = ""
    for step in path:
        kind, rest = step[:2], step[2:]
        if kind == "f:":
            text += f".{rest}"
        elif kind == "k:":
            pairs = ",".join(f"{k}={msgspec.json.encode(v).decode()}" for k, v in msgspec.json.decode(rest).items())
            text += f"[{pairs}]"
        elif kind == "v:":
            text += f"[={rest}]"
    return text


def merged(live: Any, config: Any, shape: Shape) -> Any:
    """A configuration over a live value: what it does not name stays."""
    match config:
        case dict() if isinstance(live, dict):
            result = dict(live)
            for name, value in config.items():
                if value is None:
                    result.pop(name, None)
                else:
                    result[name] = merged(live.get(name), value, shape.child(name))
            return result
        case list() if isinstance(live, list):
            keys = shape.keys(live, config)
            if keys:
                return _merged_items(live, config, keys, shape.item())
            if shape.is_set():
                return [*live, *(item for item in config if item not in live)]
    return config


def _merged_items(live: list[Any], config: list[Any], keys: tuple[str, ...], shape: Shape) -> list[Any]:
    result = {_key(item, keys): item for item in live}
    for item in config:
        key = _key(item, keys)
        result[key] = merged(result[key], item, shape) if key in result else item
    return list(result.values())


def without(value: Any, fields: Mapping[str, Any]) -> Any:
    """The value without the members of a set; what is empty because of that goes too."""
    match value:
        case dict():
            result = dict(value)
            for step, inner in fields.items():
                name = step[2:]
                if name in result:
                    _replace(result, name, ABSENT if not inner else without(result[name], inner))
            return result if result or not fields else ABSENT
        case list():
            items = [_pruned_item(item, fields) for item in value]
            items = [item for item in items if item is not ABSENT]
            return items if items or not fields else ABSENT
    return value


def _replace(result: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        del result[name]
    else:
        result[name] = value


def _pruned_item(item: Any, fields: Mapping[str, Any]) -> Any:
    for step, inner in fields.items():
        kind, text = step[:2], step[2:]
        if kind == "v:" and msgspec.json.decode(text) == item:
            return ABSENT
        if kind == "k:" and _is(item, msgspec.json.decode(text)):
            return ABSENT if not inner or SELF in inner else without(item, inner)
    return item


def changed(old: Any, new: Any, shape: Shape) -> tuple[Fields, Fields]:
    """The fields that `new` sets otherwise than `old`, and those that it no longer has."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = {f"f:{n}": (old.get(n, ABSENT), new.get(n, ABSENT), shape.child(n)) for n in {**old, **new}}
        return _changed_members(pairs)
    if isinstance(old, list) and isinstance(new, list) and old != new:
        keys = shape.keys(old, new)
        if keys:
            before, after = {_key(i, keys): i for i in old}, {_key(i, keys): i for i in new}
            items = {k: (before.get(k, ABSENT), after.get(k, ABSENT), shape.item()) for k in {**before, **after}}
            return _changed_members(items)
        if shape.is_set():
            added: Fields = {_value(item): {} for item in new if item not in old}
            return dict(added), {_value(item): {} for item in old if item not in new}
    return {}, {}


def _changed_members(pairs: Mapping[str, tuple[Any, Any, Shape]]) -> tuple[Fields, Fields]:
    set_now: Fields = {}
    removed: Fields = {}
    for step, (old, new, shape) in pairs.items():
        if old is new or old == new:
            continue
        own: Fields = {SELF: {}} if step.startswith("k:") else {}
        if new is ABSENT:
            removed[step] = {**own, **of(old, shape)}
        elif old is ABSENT:
            set_now[step] = {**own, **of(new, shape)}
        elif type(old) is type(new) and _composite(new, shape):
            inner_set, inner_removed = changed(old, new, shape)
            if inner_set:
                set_now[step] = inner_set
            if inner_removed:
                removed[step] = inner_removed
        else:
            set_now[step] = {}
    return set_now, removed


def _composite(value: Any, shape: Shape) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and (bool(shape.keys(value)) or shape.is_set()))
