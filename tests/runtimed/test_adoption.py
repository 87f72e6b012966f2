"""What a daemon makes of an epoch that it finds as its own: the table of `adoption.adopt`, row by row (L4)."""

import pytest

from dataplane.runtimed import adoption as a
from dataplane.runtimed.adoption import Adoption, Held, adopt
from statemachine.run import Mode, Phase

OPEN, CLOSED, ABSENT = Held(True, "id"), Held(False, "id"), None
F, T = Mode.FUNCTION, Mode.TASK

# phase, mode, held, server younger than the claim → (starting, running with room, running without)
TABLE: list[tuple[Phase, Mode, Held | None, bool, Adoption, Adoption, Adoption]] = [
    # A release goes on where it stood; with nothing held there is nothing to end.
    (Phase.RELEASING, F, OPEN, False, a.CLOSING, a.CLOSING, a.CLOSING),
    (Phase.RELEASING, F, CLOSED, False, a.CLOSING, a.CLOSING, a.CLOSING),
    (Phase.RELEASING, F, ABSENT, False, a.RELEASED, a.RELEASED, a.RELEASED),
    (Phase.RELEASING, T, ABSENT, True, a.RELEASED, a.RELEASED, a.RELEASED),
    # A closed registration is none.
    (Phase.READY, F, OPEN, False, a.KEPT, a.KEPT, a.KEPT),
    (Phase.READY, F, CLOSED, False, a.LOST, a.LOST, a.LOST),
    (Phase.READY, F, ABSENT, False, a.LOST, a.LOST, a.LOST),
    (Phase.READY, F, ABSENT, True, a.LOST, a.LOST, a.LOST),
    # Registering: a starting daemon begins nothing; a running one goes on with a claim whose answer it missed.
    (Phase.REGISTERING, F, OPEN, False, a.KEPT, a.KEPT, a.KEPT),
    (Phase.REGISTERING, F, CLOSED, False, a.NO_SLOT, a.NO_SLOT, a.NO_SLOT),
    (Phase.REGISTERING, F, ABSENT, False, a.NO_SLOT, a.CLAIMED, a.NO_SLOT),
    (Phase.REGISTERING, F, ABSENT, True, a.DIED_REGISTERING, a.CLAIMED, a.NO_SLOT),
    # Running: as above, but what a younger server does not hold may have been executed.
    (Phase.RUNNING, T, OPEN, False, a.KEPT, a.KEPT, a.KEPT),
    (Phase.RUNNING, T, CLOSED, False, a.NO_SLOT, a.NO_SLOT, a.NO_SLOT),
    (Phase.RUNNING, T, ABSENT, False, a.NO_SLOT, a.CLAIMED, a.NO_SLOT),
    (Phase.RUNNING, T, ABSENT, True, a.TASK_LOST, a.TASK_LOST, a.TASK_LOST),
]


@pytest.mark.parametrize(("phase", "mode", "held", "younger", "starting", "roomy", "full"), TABLE)
def test_every_combination_has_one_answer(
    phase: Phase, mode: Mode, held: Held | None, younger: bool, starting: Adoption, roomy: Adoption, full: Adoption
) -> None:
    assert adopt(phase, mode, held, starting=True, server_younger=younger, room=True) == starting
    assert adopt(phase, mode, held, starting=True, server_younger=younger, room=False) == starting
    assert adopt(phase, mode, held, starting=False, server_younger=younger, room=True) == roomy
    assert adopt(phase, mode, held, starting=False, server_younger=younger, room=False) == full


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.SCHEDULED, Phase.FAILED, Phase.GONE])
def test_a_phase_without_an_owner_is_our_own_mistake(phase: Phase) -> None:
    with pytest.raises(AssertionError):
        adopt(phase, Mode.FUNCTION, None, starting=True, server_younger=False, room=True)
