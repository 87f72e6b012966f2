"""The core cannot reach the world: the offending line is named."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from statemachine import commands, diagram, events
from statemachine.reasons import INFO, Reason

CORE = Path(__file__).parents[2] / "statemachine"
ALLOWED = {"collections", "collections.abc", "enum", "msgspec", "msgspec.structs", "struct", "sys", "typing", "zlib"}
ALLOWED_IN = {"machine.py": {"transitions"}}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""


def test_the_core_imports_nothing_that_reaches_the_world() -> None:
    offending = [
        f"{path.name}:{line} imports {name}"
        for path in sorted(CORE.glob("*.py"))
        for line, name in imports(path)
        if name not in ALLOWED | ALLOWED_IN.get(path.name, set()) and name.split(".")[0] != "statemachine"
    ]
    assert offending == []


def test_no_phase_is_chosen_outside_the_core() -> None:
    """Shells may look at a phase to know what to propose; only the table says what a Run becomes."""
    chosen = re.compile(r"(?<![\"'])\bphase=(Phase\.|[\"'])|[\"']phase[\"']: (Phase\.|[\"'])")
    offending = [
        f"{path.relative_to(CORE.parent)}:{number} {line.strip()}"
        for package in ("controlplane", "dataplane", "runtimes")
        for path in sorted((CORE.parent / package).rglob("*.py"))
        if "embedded" not in path.parts  # Pods and namespaces have phases of their own
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if chosen.search(line)
    ]
    assert offending == []


def test_every_reason_has_its_facts_and_every_struct_its_sentence() -> None:
    assert set(INFO) == set(Reason)
    for union in (events.Event, commands.Command):
        for kind in get_args(union):
            assert (kind.__doc__ or "").strip().endswith((".", "`.")), kind.__name__


def test_the_diagram_shows_every_phase_and_marks_a_path() -> None:
    drawn = diagram.mermaid([diagram.Phase.PENDING, diagram.Phase.READY])
    for phase in diagram.Phase:
        assert phase is diagram.Phase.GONE or str(phase) in drawn
    assert "class Ready visited" in drawn
    assert "* Ready" in diagram.text([diagram.Phase.READY])
