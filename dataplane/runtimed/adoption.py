"""What runtimed makes of an epoch that is its own by the API and unknown to itself: a table as a pure function.

There are two occasions. A starting daemon finds what an earlier life left (L4): it keeps what the Runtime Server holds
open, and registers or executes nothing. A running one finds a claim of its own whose answer it never got.
"""

from msgspec import Struct

from dataplane.runtimed.local import Stage
from statemachine.reasons import Reason
from statemachine.run import Mode, Phase


class Held(Struct, frozen=True):
    """What the Runtime Server says about the epoch. `open`: it serves, its task runs, or the task's result waits."""

    open: bool
    registration_id: str = ""


class Adoption(Struct, frozen=True):
    """Where the epoch starts here. `cleared`: nothing of it is left. `reason`: why it was given up or failed."""

    stage: Stage
    reason: Reason | None = None
    cleared: bool = False


KEPT = Adoption(Stage.OPEN)
CLAIMED = Adoption(Stage.CLAIMED)
RELEASED = Adoption(Stage.CLOSING, cleared=True)
CLOSING = Adoption(Stage.CLOSING)
LOST = Adoption(Stage.GIVEN_UP, Reason.REGISTRATION_LOST)
NO_SLOT = Adoption(Stage.GIVEN_UP, Reason.NO_SLOT_HERE)
DIED_REGISTERING = Adoption(Stage.FAILED, Reason.RUNTIME_SERVER_ERROR)
TASK_LOST = Adoption(Stage.FAILED, Reason.TASK_LOST)


def adopt(phase: Phase, mode: Mode, held: Held | None, *, starting: bool, server_younger: bool, room: bool) -> Adoption:
    """Where to take up an epoch of this Pod in `phase`, one of Registering, Ready, Running and Releasing.

    `held` is None when the Runtime Server holds nothing of it. `server_younger`: the server started after the claim, so
    that what it does not hold may have been lost with its predecessor. `room`: the claim fits beside the others.
    """
    match phase:
        case Phase.RELEASING:
            return RELEASED if held is None else CLOSING
        case Phase.READY:
            return KEPT if held is not None and held.open else LOST
        case Phase.REGISTERING | Phase.RUNNING:
            if held is not None:
                return KEPT if held.open else NO_SLOT
            if server_younger and (starting or mode is Mode.TASK):
                return DIED_REGISTERING if mode is Mode.FUNCTION else TASK_LOST
            return CLAIMED if not starting and room else NO_SLOT
        case _:
            raise AssertionError(f"{phase} has no owner")
