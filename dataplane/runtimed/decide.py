"""What to do next for one Run: a pure function of what the API shows, what this Pod knows, and how the Pod is.

It is level-triggered: whoever calls it again after a crash, a conflict or a lost answer gets the right next thing.
Order is the law (L2, L7): an epoch is closed before the patch that ends it, local state goes before the status that
says so, the finalizer last. Events that it returns still go through `statemachine.step`. Next: `worker.py` performs.
"""

from collections.abc import Set
from typing import assert_never

from msgspec import Struct

from dataplane.runtimed.local import Local, Stage
from dataplane.runtimed.slots import Room
from statemachine import events as ev
from statemachine.commands import Timer
from statemachine.reasons import Reason
from statemachine.run import OWNED, TERMINAL, Epoch, Mode, Phase, PodUID, Run, TaskResult


class Host(Struct, frozen=True):
    """How the Pod is, for every Run in it."""

    pod_uid: PodUID
    draining: bool = False  # SIGTERM, or the own Pod is deleting or gone
    server_up: bool = True  # the Runtime Server has said Hello
    fresh: bool = True  # the lease on the own Pod holds
    heard: bool = True  # the own Pod is Ready as the API shows it


class Nothing(Struct, frozen=True):
    """Wait for a change."""


class Decide(Struct, frozen=True):
    """Take this event to the state machine and perform what it commands."""

    event: ev.Event


class Adopt(Struct, frozen=True):
    """Own by the API and unknown here: ask the Runtime Server, then `adoption.adopt`."""


class Enter(Struct, frozen=True):
    """Change the local stage; nothing is written. Calls are refused from now on."""

    stage: Stage
    reason: Reason
    message: str = ""


class PutFinalizer(Struct, frozen=True):
    """The claim landed and its finalizer did not."""

    epoch: Epoch


class Prepare(Struct, frozen=True):
    """In the background: source, then RegisterFunction or ExecuteTask."""


class Clear(Struct, frozen=True):
    """In the background: close at the Runtime Server, let calls end, remove local state."""


class TakeFinalizer(Struct, frozen=True):
    """The Run is over and its local state gone: the finalizer is the last thing left."""

    epoch: Epoch


class Drop(Struct, frozen=True):
    """Nothing is left of the epoch: forget it."""


Action = Nothing | Decide | Adopt | Enter | PutFinalizer | Prepare | Clear | TakeFinalizer | Drop

NOTHING = Nothing()


def decide(
    run: Run | None, local: Local | None, host: Host, *, room: Room, due: Set[Timer], at_us: int, url: str | None
) -> Action:
    """The next action for one Run. `run` None: the object is gone. `due`: timers that have fired for this epoch.

    `room` is asked about a Scheduled Run only; `url` is the endpoint that a Ready patch publishes.
    """
    if local is None:
        return NOTHING if run is None else _unknown_here(run, host, room, at_us)
    if run is None or run.epoch != local.epoch or run.phase not in OWNED:
        return _over(run, local)
    if run.phase is Phase.RELEASING:
        return Decide(ev.Released(at_us=at_us, epoch=local.epoch)) if local.cleared else Clear()
    asked = _asked(run, local, due, at_us)
    if asked is not None:
        return Decide(asked)
    match local.stage:
        case Stage.CLAIMED:
            return _claimed(run, local, host, due)
        case Stage.OPEN:
            return _open(run, local, host, at_us, url)
        case Stage.GIVEN_UP:
            return Decide(_back(run, local, at_us))
        case Stage.FAILED:
            return _failed(run, local, at_us)
        case Stage.CLOSING:
            # A release that did not land and that nothing asks for any more: its calls were turned away already.
            return Enter(Stage.GIVEN_UP, Reason.REGISTRATION_LOST)
        case _ as unreachable:
            assert_never(unreachable)


def _unknown_here(run: Run, host: Host, room: Room, at_us: int) -> Action:
    epoch = run.epoch
    if epoch is None or epoch.pod_uid != host.pod_uid:
        return NOTHING
    if run.phase in OWNED:
        return Adopt() if host.server_up else NOTHING
    if run.phase in TERMINAL and run.finalizer:
        return TakeFinalizer(epoch)  # an earlier life ended it and did not come this far
    if run.phase is not Phase.SCHEDULED or run.deleting or run.cancel_requested:
        return NOTHING  # the control plane ends what nobody has claimed
    if host.draining:
        return Decide(ev.BindingRefused(at_us=at_us, epoch=epoch, message="The Pod is draining"))
    if room is Room.FULL:
        return Decide(ev.BindingRefused(at_us=at_us, epoch=epoch, message="The Pod has no free slot"))
    if room is Room.LATER or not host.server_up or not host.fresh:
        return NOTHING  # soon; if not, the claim expires
    return Decide(ev.Claimed(at_us=at_us, epoch=epoch))


def _over(run: Run | None, local: Local) -> Action:
    """The epoch has ended in the API: what is left here goes, then the finalizer where this epoch ended the Run."""
    if not local.cleared:
        return Clear()
    if run is None or not run.finalizer or run.status.attempt != local.epoch.attempt:
        return Drop()
    held_by_another = run.phase is Phase.RELEASING and run.status.pod_uid is None
    if run.phase in TERMINAL or held_by_another:
        return TakeFinalizer(local.epoch)
    return Drop()


def _asked(run: Run, local: Local, due: Set[Timer], at_us: int) -> ev.Event | None:
    """What leads to Releasing. A known outcome of a task, or a failure, is written first: it says more."""
    if local.stage is Stage.FAILED or local.result is not None:
        return None
    if run.deleting:
        return ev.DeletionRequested(at_us=at_us)
    if run.cancel_requested:
        return ev.CancelRequested(at_us=at_us)
    if Timer.LIFETIME in due:
        return ev.LifetimeExpired(at_us=at_us, epoch=local.epoch)
    if local.idle and run.phase is Phase.READY:
        return ev.IdleExpired(at_us=at_us, epoch=local.epoch)
    return None


def _claimed(run: Run, local: Local, host: Host, due: Set[Timer]) -> Action:
    if host.draining and not local.dispatched:
        return Enter(Stage.GIVEN_UP, Reason.POD_DRAINING)
    if Timer.REGISTRATION in due and run.phase is Phase.REGISTERING:
        return Enter(Stage.FAILED, Reason.REGISTRATION_TIMED_OUT)
    if run.phase is Phase.READY:  # an earlier life's patch landed late; nothing is registered
        return Enter(Stage.GIVEN_UP, Reason.REGISTRATION_LOST)
    if not run.finalizer:
        return PutFinalizer(local.epoch)
    if local.started or not host.server_up or (local.mode is Mode.TASK and not host.fresh):
        return NOTHING
    return Prepare()


def _open(run: Run, local: Local, host: Host, at_us: int, url: str | None) -> Action:
    epoch = local.epoch
    if local.result is not None:
        result, failure = local.result, local.reason
        return Decide(ev.TaskExited(at_us=at_us, epoch=epoch, result=result, failure=failure, message=local.message))
    if host.draining and local.mode is Mode.FUNCTION:
        return Enter(Stage.GIVEN_UP, Reason.POD_DRAINING)
    if run.phase is Phase.REGISTERING:
        return Decide(ev.FunctionRegistered(at_us=at_us, epoch=epoch, endpoint_url=url))
    ready = run.status.ready
    if run.phase is Phase.READY and host.heard and host.fresh and ready is not None and not ready.status:
        return Decide(ev.OwnerHeard(at_us=at_us, epoch=epoch))
    return NOTHING


def _back(run: Run, local: Local, at_us: int) -> ev.Event:
    """To Pending without a failure, by the row that the phase has for it."""
    if local.reason is Reason.POD_DRAINING:
        return ev.PodDraining(at_us=at_us, epoch=local.epoch, dispatched=local.dispatched)
    if run.phase is Phase.READY:
        return ev.RegistrationLost(at_us=at_us, epoch=local.epoch, message=local.message)
    return ev.NoSlotHere(at_us=at_us, epoch=local.epoch)


def _failed(run: Run, local: Local, at_us: int) -> Action:
    assert local.reason is not None
    if run.phase is Phase.READY:  # the Ready patch had landed after all
        return Enter(Stage.GIVEN_UP, Reason.REGISTRATION_LOST, local.message)
    if not local.cleared:
        return Clear()
    if run.phase is Phase.RUNNING:
        event: ev.Event = ev.TaskExited(
            at_us=at_us,
            epoch=local.epoch,
            result=local.result or TaskResult(),
            failure=local.reason,
            message=local.message,
        )
        return Decide(event)
    event = ev.RegistrationFailed(at_us=at_us, epoch=local.epoch, reason=local.reason, message=local.message)
    return Decide(event)
