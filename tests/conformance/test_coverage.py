"""R6: every numbered line of the contract has a test here, and no test names a line that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from runtimes import conformance

SUITE = Path(conformance.__file__).parent
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "runtime-contract.md"


def test_every_line_of_the_contract_is_proved() -> None:
    lines = set(re.findall(r"^- \*\*(C\d+)\*\*", DOCUMENT.read_text(), flags=re.MULTILINE))
    proved = {
        line
        for path in SUITE.glob("*.py")
        for text in re.findall(r'^    """(C[\dC, ]+)"""', path.read_text(), flags=re.MULTILINE)
        for line in text.split(", ")
    }
    assert lines == {f"C{number}" for number in range(1, len(lines) + 1)}
    assert proved == lines
