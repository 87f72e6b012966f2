"""The same behaviours in each language: `programs/<language>/{functions,tasks}/<behaviour>`, run as the file `main`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"


@dataclass
class Dialect:
    """A language under test; `functions` and `tasks` map a behaviour to its source, a handler being `main.invoke`."""

    name: str
    suffix: str

    @cached_property
    def functions(self) -> dict[str, str]:
        return self._read("functions")

    @cached_property
    def tasks(self) -> dict[str, str]:
        return self._read("tasks")

    def _read(self, kind: str) -> dict[str, str]:
        return {path.stem: path.read_text() for path in (PROGRAMS / self.name / kind).iterdir() if path.is_file()}

    def file(self, stem: str = "main") -> str:
        return stem + self.suffix


PYTHON = Dialect("python", ".py")
BASH = Dialect("bash", ".sh")
