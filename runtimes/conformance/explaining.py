"""A case's asserts, made to say what was expected and what came: for whoever has no test framework at hand.

`assert a == b` becomes `assert (got := a) == (wanted := b), told(…, wanted, got)`: each side is read once, as before.
`runner` runs the cases of modules that were loaded here; a test framework imports them as they are.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any, Final

SHOWN_MAX_CHARS: Final = 160  # of one value: a line of the report tells, it does not dump
_TOLD: Final = "_told_by_a_case"
_WANTED: Final = "_wanted_by_a_case"
_GOT: Final = "_got_by_a_case"
_SENTENCES: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "expected {wanted}, got {got}",
    ast.NotEq: "expected anything but {wanted}",
    ast.Lt: "expected less than {wanted}, got {got}",
    ast.LtE: "expected at most {wanted}, got {got}",
    ast.Gt: "expected more than {wanted}, got {got}",
    ast.GtE: "expected at least {wanted}, got {got}",
    ast.In: "expected {got} to be in {wanted}",
    ast.NotIn: "expected {got} not to be in {wanted}",
    ast.Is: "expected {wanted}, got {got}",
    ast.IsNot: "expected anything but {wanted}",
}


def explained(module: ModuleType) -> ModuleType:
    """The same module once more, its asserts explained. Raises OSError where its source is not there."""
    path = Path(str(module.__file__))
    tree = ast.fix_missing_locations(_Explained().visit(ast.parse(path.read_bytes())))
    again = ModuleType(module.__name__, module.__doc__)
    vars(again).update({"__file__": module.__file__, _TOLD: told})
    exec(compile(tree, str(path), "exec", dont_inherit=True), vars(again))
    return again


def told(condition: str, sentence: str, wanted: Any, got: Any) -> str:
    """What an assert says."""
    return f"{sentence.format(wanted=_shown(wanted), got=_shown(got))} ({condition})"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX_CHARS else f"{text[:SHOWN_MAX_CHARS]}…"


class _Explained(ast.NodeTransformer):
    """Gives a message to each assert that has none."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        if node.msg is not None:
            return node
        test, text = node.test, ast.unparse(node.test)
        if not isinstance(test, ast.Compare) or len(test.ops) > 1:
            message: ast.expr = ast.Constant(f"does not hold: {text}")
        else:
            sentence = ast.Constant(_SENTENCES[type(test.ops[0])])
            wanted, got = ast.Name(_WANTED, ast.Load()), ast.Name(_GOT, ast.Load())
            message = ast.Call(ast.Name(_TOLD, ast.Load()), [ast.Constant(text), sentence, wanted, got], [])
            test = ast.Compare(_kept(_GOT, test.left), test.ops, [_kept(_WANTED, test.comparators[0])])
        return ast.copy_location(ast.Assert(test, message), node)


def _kept(name: str, value: ast.expr) -> ast.expr:
    return ast.NamedExpr(ast.Name(name, ast.Store()), value)
