"""Journals of real systems, in pairs: one must fold to its own commands exactly, its altered twin must diverge.

`tests/journals/vN-*.krj` were recorded with rule version N and stay: every released version remains replayable.
`python -m tests.statemachine.test_recorded_journals` alters each one's middle decision and writes its twin.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from statemachine.events import Observed
from statemachine.journal import MAGIC, Entry, decode, encode
from statemachine.replay import replay

FOLDER = Path(__file__).parents[1] / "journals"
TWIN = ".diverges"
RECORDED = sorted(path for path in FOLDER.glob("*.krj") if not path.stem.endswith(TWIN))


def twin_of(path: Path) -> Path:
    """Where the altered journal is."""
    return path.with_name(f"{path.stem}{TWIN}.krj")


def decisions(path: Path) -> list[Entry]:
    """The records that command something and are no observation."""
    entries = list(decode(path.read_bytes()))
    return [e for e in entries if e.record and e.record.commands and not isinstance(e.record.event, Observed)]


def altered(path: Path) -> bytes:
    """The journal whose middle decision has lost its last command."""
    found = decisions(path)
    middle = found[len(found) // 2].record
    records = [entry.record for entry in decode(path.read_bytes()) if entry.record is not None]
    changed = [replace(one, commands=one.commands[:-1]) if one == middle else one for one in records]
    return MAGIC + b"".join(map(encode, changed))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_journal_reproduces_its_commands(path: Path) -> None:
    outcome = replay(decode(path.read_bytes()))
    assert outcome.divergence is None
    assert (outcome.lost, outcome.gaps, outcome.broken, outcome.torn) == (0, 0, (), None)
    assert outcome.moments


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_its_altered_twin_diverges_there_and_nowhere_before(path: Path) -> None:
    outcome = replay(decode(twin_of(path).read_bytes()))
    found = decisions(path)
    assert outcome.divergence is not None
    assert outcome.divergence.index == found[len(found) // 2].index
    assert outcome.divergence.what == "commands"


if __name__ == "__main__":
    for one in RECORDED:
        twin_of(one).write_bytes(altered(one))
