"""One call to one Pod: the connection, the frame, and what became of it.

Here: `Forwarder`, which writes a call at most once and says for certain whether it can have run (I2). Not here:
which Pod (`routing`), whether to wait and ask again (`invoke`), frames (`runtimes.contract.mux`).
"""

from collections.abc import Callable
from functools import partial
from typing import Final, assert_never

import msgspec
from msgspec import Struct

from dataplane.gateway.answer import Failure
from dataplane.gateway.limits import ANSWER_GRACE_S
from dataplane.wire.errors import ConnectRefused, ConnectTimedOut, DialError, PeerDraining
from dataplane.wire.messages import (
    METHOD_INVOKE,
    METHOD_MODE,
    Cause,
    InvokeReply,
    InvokeRequest,
    ModeReply,
    ModeRequest,
)
from dataplane.wire.pool import CONNECT_TIMEOUT_S, Peer, Pool
from runtimes.contract import mux
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError, CallTimeout, ConnectionLost, Refused, Reply
from statemachine.ownership import PodFact, RunFact
from statemachine.reasons import Reason
from statemachine.run import Mode

_BY_VALUE: Final = {reason.value: reason for reason in Reason if reason.info.http_status}
_MS: Final = 1000


class Answered(Struct, frozen=True):
    """The function's result."""

    reply: InvokeReply
    body: bytes


class NotStarted(Struct, frozen=True):
    """The call did not run anywhere: it may wait and be sent again.

    `moving`: the owner said that the Run leaves it. `refused`: nobody listens at that address. `lost`: a pooled
    connection turned out to be dead before anything was written; a new one may be tried at once.
    """

    failure: Failure
    moving: bool = False
    refused: bool = False
    lost: bool = False


class Ended(Struct, frozen=True):
    """An error that stands: the call ran, or may have, or will never be taken. Never sent again."""

    failure: Failure


Outcome = Answered | NotStarted | Ended


class Forwarder:
    """Sends calls through the pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def start(
        self, pod: PodFact, request: InvokeRequest, body: bytes, done: Callable[[Outcome], None], *, timeout_s: float
    ) -> bool:
        """`send` without a task, over a connection that is warm. False: there is none, and nothing was written.

        `done` is called once, later, with what became of the call.
        """
        channel = self._pool.ready(_peer(pod))
        if channel is None:
            return False
        try:
            timeout = timeout_s + ANSWER_GRACE_S
            channel.start(METHOD_INVOKE, request, body, partial(_tell, done), timeout=timeout)
        except (Refused, ConnectionLost):
            return False
        return True

    async def send(self, pod: PodFact, request: InvokeRequest, body: bytes, *, timeout_s: float) -> Outcome:
        """Write the call to that Pod's runtimed, once. `timeout_s` is what is left of the caller's deadline."""
        peer = _peer(pod)
        channel = self._pool.ready(peer)
        if channel is None:
            try:
                channel = await self._pool.connection(peer, timeout=min(timeout_s, CONNECT_TIMEOUT_S))
            except ConnectRefused:
                return NotStarted(_unreachable("nobody listens at the Pod of the Run"), refused=True)
            except ConnectTimedOut:
                return NotStarted(_unreachable("the Pod of the Run is too busy to be reached"))
            except PeerDraining:
                return NotStarted(Failure(reason=Reason.DRAINING, message="the Pod of the Run is draining"))
            except DialError as error:
                return NotStarted(_unreachable(str(error)))
        try:
            return outcome_of(await channel.call(METHOD_INVOKE, request, body, timeout=timeout_s + ANSWER_GRACE_S))
        except (CallError, CallTimeout, ConnectionLost, Refused) as error:
            return outcome_of(error)

    async def mode_of(self, pod: PodFact, run: RunFact, *, timeout_s: float) -> Mode | None:
        """What kind of Run it is, by a runtimed of its Runtime; None when that one does not say so at once."""
        channel = self._pool.ready(_peer(pod))
        if channel is None:
            return None
        head = ModeRequest(namespace=run.namespace, runtime=run.runtime, run_uid=run.uid)
        try:
            return (await channel.call(METHOD_MODE, head, timeout=timeout_s)).decode(ModeReply).mode
        except (CallError, CallTimeout, ConnectionLost, Refused, msgspec.MsgspecError):
            return None


def outcome_of(ended: mux.Outcome) -> Outcome:
    """What the end of a call on the wire means for its caller."""
    match ended:
        case Reply():
            try:
                return _answered(ended.decode(InvokeReply), ended.body)
            except msgspec.MsgspecError:
                message = "the owner's answer cannot be read: the call may have run"
                return Ended(Failure(reason=Reason.OUTCOME_UNKNOWN, message=message))
        case Refused():
            return _refused(ended.error)
        case ConnectionLost(dispatched=False):
            return NotStarted(_unreachable("the connection to the Pod of the Run was lost"), lost=True)
        case ConnectionLost():
            return Ended(Failure(reason=Reason.OUTCOME_UNKNOWN))
        case CallTimeout():
            message = "the deadline passed without a word from the owner: the outcome is unknown"
            return Ended(Failure(reason=Reason.INVOCATION_TIMEOUT, message=message))
        case CallError():
            return Ended(failure_of(ended.error))
        case _:
            assert_never(ended)


def _tell(done: Callable[[Outcome], None], ended: mux.Outcome) -> None:
    done(outcome_of(ended))


def _peer(pod: PodFact) -> Peer:
    return Peer(pod.address, pod.port, pod.uid, pod.namespace, pod.runtime)


def failure_of(error: ErrorHead) -> Failure:
    """An error frame of the owner's side; a reason that is none of ours is our own defect."""
    reason = _BY_VALUE.get(error.reason, Reason.INTERNAL_ERROR)
    message = error.message if reason.value == error.reason else f"{error.reason}: {error.message}"
    retry_after_s = None if error.retry_after_ms is None else -(-error.retry_after_ms // _MS)
    causes = tuple(Cause(key, value) for key, value in error.details.items())
    return Failure(reason=reason, message=message, hop="runtimed", retry_after_s=retry_after_s, causes=causes)


def _refused(error: ErrorHead) -> NotStarted:
    failure = failure_of(error)
    if failure.reason.info.http_status != 503:
        failure = msgspec.structs.replace(failure, reason=Reason.RUN_NOT_READY)
    return NotStarted(failure)


def _answered(reply: InvokeReply, body: bytes) -> Outcome:
    if reply.status == 200:
        return Answered(reply, body)
    reason = _BY_VALUE.get(reply.reason, Reason.INTERNAL_ERROR)
    failure = Failure(
        reason=reason,
        message=reply.message if reason.value == reply.reason else f"{reply.reason}: {reply.message}",
        hop=reply.hop,
        retryable=reply.retryable,
        retry_after_s=reply.retry_after_s,
        causes=reply.causes,
    )
    return NotStarted(failure, moving=reply.moving) if reason.info.http_status == 503 else Ended(failure)


def _unreachable(message: str) -> Failure:
    return Failure(reason=Reason.OWNER_UNREACHABLE, message=message)
