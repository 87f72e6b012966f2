"""The file that says that this Pod may get bindings and calls: the Pod's readiness probe looks for it.

It is there while every condition holds: certificate, first lists and Hello are done, the Runtime Server is up, the Pod
does not drain. A file that cannot be written is a Pod that is not ready. Next: `main.py` sets conditions.
"""

import logging
from pathlib import Path

_log = logging.getLogger(__name__)


class Readiness:
    """`serving`, `server` and `draining` are set by name; the file follows."""

    def __init__(self, work_dir: Path) -> None:
        self._path = work_dir / "ready"
        self._serving = False
        self._server = False
        self._draining = False
        self._follow()

    @property
    def ready(self) -> bool:
        """Whether all conditions hold."""
        return self._serving and self._server and not self._draining

    def serving(self) -> None:
        """The port is open and what an earlier life left is taken up."""
        self._serving = True
        self._follow()

    def server(self, up: bool) -> None:
        """The Runtime Server came or went."""
        self._server = up
        self._follow()

    def draining(self) -> None:
        """For good."""
        self._draining = True
        self._follow()

    def _follow(self) -> None:
        try:
            if self.ready:
                self._path.touch()
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the readiness file does not follow: %s", error)
