"""The law: every legal (phase, event) pair is one row. Whatever is not here is refused and leaves the Run untouched.

Read it top to bottom in one minute. `machine.py` executes it, `effects.py` says what a row writes, and
`docs/lifecycle.md` is generated from it. `Observed` and `Removed` are not rows: what the API shows is adopted.
"""

from enum import StrEnum
from typing import Final

import msgspec

from statemachine import events as ev
from statemachine import guards as g
from statemachine.events import Role
from statemachine.guards import Guard
from statemachine.run import Phase

PENDING, SCHEDULED, REGISTERING = Phase.PENDING, Phase.SCHEDULED, Phase.REGISTERING
READY, RELEASING, RUNNING = Phase.READY, Phase.RELEASING, Phase.RUNNING
SUCCEEDED, FAILED, TIMEOUT, CANCELLED = Phase.SUCCEEDED, Phase.FAILED, Phase.TIMEOUT, Phase.CANCELLED
GONE = Phase.GONE


class Decider(StrEnum):
    """Who decides a row; the first three live in the control plane."""

    SCHEDULER = "scheduler"
    CONTROL_PLANE = "control plane"
    RECOVERY = "recovery"
    RUNTIMED = "runtimed"

    @property
    def role(self) -> Role:
        """The process that decides."""
        return Role.RUNTIMED if self is Decider.RUNTIMED else Role.CONTROL_PLANE


class Choice(msgspec.Struct, frozen=True):
    """One way a row may go: the first whose guards hold is taken. `to` None keeps the phase."""

    to: Phase | None
    guards: tuple[Guard, ...] = ()


class Row(msgspec.Struct, frozen=True):
    """From these phases, on this event, decided by this part; `note` is for readers."""

    sources: tuple[Phase, ...]
    event: type[ev.Event]
    decider: Decider
    guards: tuple[Guard, ...]
    choices: tuple[Choice, ...]
    note: str = ""


def _row(
    sources: tuple[Phase, ...],
    event: type[ev.Event],
    decider: Decider,
    *guards: Guard,
    to: Phase | tuple[Choice, ...] | None,
    note: str = "",
) -> Row:
    choices = to if isinstance(to, tuple) else (Choice(to),)
    return Row(sources, event, decider, guards, choices, note)


S, C, V, D = Decider.SCHEDULER, Decider.CONTROL_PLANE, Decider.RECOVERY, Decider.RUNTIMED
_RETRY = (Choice(PENDING, (g.retry_left,)), Choice(FAILED))
# The strongest of the release's target and of what has been requested by then.
_END = (
    Choice(GONE, (g.ends_gone,)),
    Choice(RELEASING, (g.ends_held,)),
    Choice(CANCELLED, (g.ends_cancelled,)),
    Choice(TIMEOUT, (g.ends_timeout,)),
)
_REMOVAL = (Choice(GONE, (g.nothing_holds,)), Choice(None))

TABLE: Final[tuple[Row, ...]] = (
    # waiting for a Pod
    _row((PENDING,), ev.Waiting, S, g.waiting_changed, to=PENDING, note="Scheduled=False says why it waits"),
    _row((PENDING,), ev.Bound, S, g.wanted, g.pod_eligible, g.backoff_over, to=SCHEDULED, note="attempt + 1"),
    _row((PENDING, SCHEDULED), ev.CancelRequested, C, g.cancel_requested, g.not_deleting, to=CANCELLED),
    # waiting for the Pod's runtimed
    _row(
        (SCHEDULED,),
        ev.DeletionRequested,
        C,
        g.deleting,
        g.finalizer_on,
        to=PENDING,
        note="the finalizer comes off from Pending; without one the API removes the object itself",
    ),
    _row(
        (SCHEDULED,),
        ev.Claimed,
        D,
        g.same_epoch,
        g.finalizer_possible,
        to=(Choice(REGISTERING, (g.is_function,)), Choice(RUNNING, (g.is_task,))),
        note="finalizer on before anything runs",
    ),
    _row((SCHEDULED,), ev.BindingRefused, D, g.same_epoch, to=PENDING, note="no free slot here, or draining"),
    _row((SCHEDULED,), ev.ClaimExpired, C, g.same_epoch, g.claim_overdue, to=PENDING, note="30 s, or the Pod is lost"),
    # registering a function
    _row((REGISTERING,), ev.FunctionRegistered, D, g.same_epoch, to=READY, note="failures = 0"),
    _row(
        (REGISTERING,),
        ev.RegistrationFailed,
        D,
        g.same_epoch,
        g.registration_failure,
        to=_RETRY,
        note="failures + 1; local state is gone first; Pending waits for its backoff",
    ),
    # moving without a failure
    _row((REGISTERING, RUNNING), ev.NoSlotHere, D, g.same_epoch, to=PENDING, note="a claim that landed late"),
    _row(
        (REGISTERING, READY, RUNNING),
        ev.PodDraining,
        D,
        g.same_epoch,
        g.not_dispatched,
        to=PENDING,
        note="the epoch is closed first; calls in flight finish on the dying Pod",
    ),
    _row((READY,), ev.RegistrationLost, D, g.same_epoch, to=PENDING),
    # a Ready owner that is not heard keeps its Run: silence proves nothing
    _row((READY,), ev.OwnerSilent, V, g.same_epoch, g.owner_heard, to=READY, note="Ready=False/OwnerUnreachable"),
    _row((READY,), ev.OwnerHeard, D, g.same_epoch, g.owner_silent, to=READY, note="Ready=True again"),
    # releasing
    _row((READY,), ev.IdleExpired, D, g.same_epoch, to=RELEASING, note="becomes Timeout/IdleTimeout"),
    _row((REGISTERING, READY, RUNNING), ev.CancelRequested, D, g.cancel_requested, to=RELEASING, note="→ Cancelled"),
    _row((REGISTERING, READY, RUNNING), ev.DeletionRequested, D, g.deleting, to=RELEASING, note="→ gone"),
    _row(
        (REGISTERING, READY, RUNNING),
        ev.LifetimeExpired,
        D,
        g.same_epoch,
        g.lifetime_over,
        to=RELEASING,
        note="→ Timeout/LifetimeExceeded",
    ),
    _row((RELEASING,), ev.Released, D, g.same_epoch, to=_END, note="gone > Cancelled > Timeout"),
    # running a task
    _row(
        (RUNNING,),
        ev.TaskExited,
        D,
        g.same_epoch,
        to=(
            Choice(SUCCEEDED, (g.task_succeeded,)),
            Choice(PENDING, (g.task_failure, g.retry_left)),
            Choice(FAILED, (g.task_failure,)),
        ),
        note="the result is in the same patch; otherwise failures + 1",
    ),
    # the owner is gone for good, after the fence
    _row((REGISTERING, READY), ev.AssignmentLost, V, g.same_epoch, g.fenced, to=PENDING),
    _row((RUNNING,), ev.AssignmentLost, V, g.same_epoch, g.fenced, to=_RETRY, note="TaskLost: failures + 1"),
    _row((RELEASING,), ev.AssignmentLost, V, g.same_epoch, g.fenced, to=_END, note="as Released"),
    # our finalizer's last way off
    _row(
        (PENDING, SUCCEEDED, FAILED, TIMEOUT, CANCELLED),
        ev.DeletionRequested,
        V,
        g.deleting,
        g.finalizer_on,
        to=_REMOVAL,
    ),
    _row(
        (RELEASING,),
        ev.DeletionRequested,
        V,
        g.deleting,
        g.finalizer_on,
        g.no_pod,
        to=_REMOVAL,
        note="released already, held by another's finalizer",
    ),
    _row(
        (SUCCEEDED, FAILED, TIMEOUT, CANCELLED),
        ev.TtlExpired,
        V,
        g.ttl_over,
        g.not_deleting,
        to=None,
        note="the object is deleted",
    ),
)


def _index() -> dict[tuple[Phase, type[ev.Event]], Row]:
    index: dict[tuple[Phase, type[ev.Event]], Row] = {}
    for row in TABLE:
        for source in row.sources:
            assert (source, row.event) not in index, f"two rows for {source} and {row.event.__name__}"
            index[source, row.event] = row
    return index


INDEX: Final = _index()
