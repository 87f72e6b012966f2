"""The failures that end a registration or a task, as exceptions with the reason that goes into `status.reason`.

Here: nothing else. Foreign exceptions (OS, git, the Runtime Server) become one of these at their adapter.
Next: `worker.py` turns them into events.
"""

from statemachine.reasons import Reason


class PreparationFailed(Exception):
    """A registration or task cannot go on. `message` is never empty and says what to do about it."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class SourceError(PreparationFailed):
    """The source cannot be put on disk: SourceFetchFailed (may work later) or SourceInvalid (never will)."""


class EpochClosed(Exception):
    """The Runtime Server holds a tombstone at or above this attempt: nothing can be registered under it any more."""


class ServerLost(Exception):
    """The connection to the Runtime Server broke, or its process is a new one. What it held is gone."""
