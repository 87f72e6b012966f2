"""Command lines as kubectl's users write them, and their values without a detour.

Lives here: rewriting spellings that the parser does not know, and turning plain words into str, int, Path and enums.
May not live here: what an option means. `commands` calls both functions.
"""

import types
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

_TRUTH = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}


def as_click_reads(params: Sequence[Any], args: Sequence[str]) -> list[str]:
    """`--flag=false` becomes `--no-flag` (or nothing), `-x=value` becomes `-x value`, and `-o json` is left out for a
    command that has no such option: it then asks for errors as Status objects only."""
    options = {spelling: param for param in params for spelling in getattr(param, "opts", ())}
    silent = "--output" not in options
    read: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            return [*read, arg, *rest]
        name, equals, value = arg.partition("=")
        if silent and name in ("-o", "--output", "-ojson"):
            said = "json" if arg == "-ojson" else value if equals else next(rest, "")
            if said != "json":
                read += [name, said]  # refused by the parser
            continue
        param = options.get(name)
        if param is None:
            read.append(arg)
        elif not getattr(param, "is_flag", False):
            read += [name, value] if equals and not name.startswith("--") else [arg]
            if not equals:
                read += [following] if (following := next(rest, None)) is not None else []
        elif equals and value.lower() in _TRUTH:
            read += [name] if _TRUTH[value.lower()] else param.secondary_opts[:1]
        else:
            read.append(arg)
    return read


def plain_values(params: Sequence[Any], callback: Callable[..., Any]) -> None:
    """Convert the values of simple parameters here. The library would load a validator of 80 ms for it; it still judges
    whatever is missing or does not convert."""
    hints = get_type_hints(callback)
    for param in params:
        convert = _converter(hints.get(param.name))
        bounded = getattr(param, "min", None) is not None or getattr(param, "max", None) is not None
        if convert is not None and not bounded and getattr(param, "callback", None) is None:
            param.process_value = _process(param, convert)


def plain_flag(option: Any) -> Any:
    """`--help`: absent, it is False, and there is nothing to judge."""
    judge = option.process_value
    option.process_value = lambda ctx, value: judge(ctx, value) if value else False
    return option


def _process(param: Any, convert: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    judge = param.process_value

    def process(ctx: Any, value: Any) -> Any:
        absent = value is None or value == ()
        if absent and not param.required:
            return () if getattr(param, "multiple", False) or param.nargs == -1 else None
        if not absent:
            try:
                return convert(value)
            except (TypeError, ValueError):
                pass
        return judge(ctx, value)

    return process


def _converter(hint: Any) -> Callable[[Any], Any] | None:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [one for one in get_args(hint) if one is not type(None)]
        return _converter(kinds[0]) if len(kinds) == 1 else None
    if get_origin(hint) is list:
        inner = _converter(get_args(hint)[0])
        return None if inner is None else lambda value: [inner(one) for one in value]
    if hint in (str, bool):
        return lambda value: _same(hint, value)
    if hint in (int, Path) or (isinstance(hint, type) and issubclass(hint, Enum)):
        kind: Callable[[Any], Any] = hint
        return kind
    return None


def _same(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(value)
    return value
