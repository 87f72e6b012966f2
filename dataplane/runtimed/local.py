"""What this Pod itself knows about one epoch: how far it got here, whatever the API says.

Data only. It is lost with the process; `adoption.py` says what a new one makes of what it finds. `decide.py` reads it,
`worker.py` replaces it.
"""

from enum import StrEnum

from msgspec import Struct

from statemachine.reasons import Reason
from statemachine.run import Epoch, Mode, TaskResult


class Stage(StrEnum):
    """How far one epoch is here."""

    CLAIMED = "claimed"  # ours by the API; source and registration are under way or about to be
    OPEN = "open"  # registered and serving calls, or the task was handed over
    GIVEN_UP = "givenUp"  # no new calls; on the way to Pending
    FAILED = "failed"  # on the way to Pending or Failed, the failure counted
    CLOSING = "closing"  # no new calls; on the way to or in Releasing, or simply over


class Local(Struct, frozen=True):
    """One epoch in this Pod. `reason` and `message` say why it was given up or has failed."""

    epoch: Epoch
    mode: Mode
    stage: Stage
    requests: tuple[tuple[str, int], ...] = ()
    registration_id: str = ""
    started: bool = False  # source and registration, or execution, have begun
    dispatched: bool = False  # a task that the Runtime Server has been asked to execute
    cleared: bool = False  # nothing is left of it at the Runtime Server and on disk
    idle: bool = False  # the Runtime Server unregistered it for idleness
    reason: Reason | None = None
    message: str = ""
    result: TaskResult | None = None  # of a task that has exited; `reason` is its failure, if any

    @property
    def serves(self) -> bool:
        """Whether calls are dispatched under this epoch, leases apart."""
        return self.stage is Stage.OPEN and self.mode is Mode.FUNCTION
