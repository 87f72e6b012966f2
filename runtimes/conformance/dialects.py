"""The same behaviours in each language: `programs/<language>/{functions,tasks}/<behaviour>`, run as the file `main`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


class NoProgram(Exception):
    """The language has no program for a behaviour: what needs it cannot be judged."""


@dataclass
class Dialect:
    """A language under test; `functions` and `tasks` map a behaviour to its source, a handler being `main.invoke`.

    `name` is what Hello says, "" when that is not known. `programs` has a folder for each of the two; a language
    without tasks may leave that one out.
    """

    name: str
    suffix: str
    programs: Path

    @cached_property
    def functions(self) -> dict[str, str]:
        return self._read("functions")

    @cached_property
    def tasks(self) -> dict[str, str]:
        return self._read("tasks")

    def function(self, behaviour: str) -> str:
        """Its source. Raises NoProgram."""
        return _named(self.functions, behaviour)

    def task(self, behaviour: str) -> str:
        """Its source. Raises NoProgram."""
        return _named(self.tasks, behaviour)

    def _read(self, kind: str) -> dict[str, str]:
        folder = self.programs / kind
        return {path.stem: path.read_text() for path in folder.iterdir()} if folder.is_dir() else {}

    def file(self, stem: str = "main") -> str:
        return stem + self.suffix


def _named(programs: dict[str, str], behaviour: str) -> str:
    try:
        return programs[behaviour]
    except KeyError:
        raise NoProgram(f"there is no program {behaviour}") from None


PYTHON = Dialect("python", ".py", PROGRAMS / "python")
BASH = Dialect("bash", ".sh", PROGRAMS / "bash")
