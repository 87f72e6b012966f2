"""Which Runs a command is for: names, labels, or all of a namespace. `wait`, `cancel` and `delete` ask here."""

from typing import NamedTuple

from controlplane.cli.failure import USAGE, Failure
from controlplane.cli.options import run_names_of
from controlplane.cli.output import say
from controlplane.cli.plain import METADATA_ACCEPT, pages_of, runs_path
from controlplane.cli.session import Session


class Named(NamedTuple):
    """One Run by its place."""

    namespace: str
    name: str


class Selection:
    """What the command line says; checked when made, looked up by `find`."""

    def __init__(self, names: list[str] | None, labels: str, every: bool) -> None:
        self.names = run_names_of(names)
        self._labels = labels
        self._every = every
        if bool(self.names) + bool(labels) + every != 1:
            raise Failure("InvalidUsage", "give names, or --selector, or --all: exactly one of them", USAGE)

    def find(self, session: Session) -> list[Named]:
        """The Runs, names as given whether they exist or not."""
        if self.names:
            return [Named(session.namespace, name) for name in self.names]
        query = {"labelSelector": self._labels} if self._labels else {}
        pages = pages_of(session.api, runs_path(session.namespace), query, METADATA_ACCEPT)
        found = [item["metadata"] for page in pages for item in page.get("items") or ()]
        if not found:
            say(f"No Runs found in namespace {session.namespace}")
        return [Named(metadata["namespace"], metadata["name"]) for metadata in found]
