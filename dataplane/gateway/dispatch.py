"""A call and the Pods that may take it: found, sent, held while its Run moves, sent again as long as nobody started it.

Here: `Dispatcher`, with what it holds and for how long. Not here: whether the caller may (`invoke`), where a call goes
(`routing`), the frame and what its answer means (`forward`).
Next: `invoke` finds the owner, starts a call at once or has it dispatched.
"""

from collections.abc import Callable
from typing import Final, NoReturn, assert_never

import msgspec
from msgspec import Struct

from controlplane.kube.clock import Clock
from dataplane.gateway import routing
from dataplane.gateway.answer import Failure
from dataplane.gateway.credentials import User
from dataplane.gateway.exchange import Request
from dataplane.gateway.forward import Answered, Ended, Forwarder, NotStarted, Outcome
from dataplane.gateway.holding import Changes, HoldCaps
from dataplane.gateway.limits import MODE_PODS_MAX, MODE_TIMEOUT_S, MOVING_HOLD_S, UNKNOWN_HOLD_S
from dataplane.gateway.request import Ask, Target, new_traceparent
from dataplane.gateway.suspects import Suspects
from dataplane.wire.messages import InvokeRequest
from statemachine.ownership import Owner, Projection
from statemachine.reasons import Reason

RESENDS_MAX: Final = 8  # a call that nobody starts is not carried around for ever


class Rejected(Exception):
    """The invocation ends with this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason.value)
        self.failure = failure


def reject(reason: Reason, message: str = "") -> NoReturn:
    """End the invocation."""
    raise Rejected(Failure(reason=reason, message=message))


class Call(Struct):
    """One invocation on its way."""

    request: Request
    ask: Ask
    target: Target
    id: str
    deadline_s: float
    """Clock.monotonic; a loop's own time may be as coarse as a millisecond."""
    name: str = ""
    """The Run's name, once the caller is known to be allowed to see it."""


class Dispatcher:
    """`caps` are the calls that wait. Nothing is kept per Run."""

    def __init__(
        self,
        *,
        projection: Projection,
        changes: Changes,
        forwarder: Forwarder,
        suspects: Suspects,
        clock: Clock,
        on_owner_refused: Callable[[Owner], None],
        to_owner: bool,
    ) -> None:
        """As in `Invoker`."""
        self._projection = projection
        self._changes = changes
        self._forwarder = forwarder
        self._suspects = suspects
        self._clock = clock
        self._on_owner_refused = on_owner_refused
        self._to_owner = to_owner
        self._turn = 0
        self.caps = HoldCaps()

    def look_up(self, call: Call) -> Owner | routing.Hold | routing.Refuse:
        """The Run as the projection knows it now."""
        target = call.target
        return routing.find(self._projection, target.namespace, target.runtime, target.run_uid)

    async def find(self, call: Call, user: User) -> Owner:
        """The Run; a UID that this projection has never seen is held for a moment. Raises Rejected."""
        found = self.look_up(call)
        if isinstance(found, routing.Hold) and self.caps.take_unknown(user.name):
            try:
                until_s = min(call.deadline_s, self._clock.monotonic() + UNKNOWN_HOLD_S)
                while isinstance(found, routing.Hold) and await self._changed(call, until_s):
                    found = self.look_up(call)
            finally:
                self.caps.give_unknown(user.name)
        if not isinstance(found, Owner):
            reject(found.reason, found.message)
        return found

    def route(self, owner: Owner) -> routing.Decision:
        """Where a call of this Run goes now."""
        self._turn += 1
        return routing.route(
            self._projection, owner, avoid=self._suspects.current(), turn=self._turn, to_owner=self._to_owner
        )

    async def learn_mode(self, call: Call, owner: Owner) -> Owner:
        """Of a Run that waits for its first Pod a Table says nothing but that: a runtimed of its Runtime, which reads
        whole Runs, says whether it will ever take a call. Asked once a Run: it never changes."""
        run = owner.run
        for pod in self._projection.ready_pods(run.namespace, run.runtime)[:MODE_PODS_MAX]:
            left_s = min(MODE_TIMEOUT_S, call.deadline_s - self._clock.monotonic())
            mode = await self._forwarder.mode_of(pod, run, timeout_s=left_s) if left_s > 0 else None
            if mode is not None:
                self._projection.mode_seen(run.uid, mode)
                return Owner(msgspec.structs.replace(run, mode=mode), owner.pod)
        return owner

    def start(
        self,
        call: Call,
        to: routing.Forward,
        user: User,
        body: bytes,
        done: Callable[[Outcome], None],
        *,
        now_s: float,
    ) -> bool:
        """Send it now over a warm connection; `done` follows. False: it cannot be, and nothing was sent."""
        left_s = call.deadline_s - now_s
        if left_s <= 0:
            return False
        return self._forwarder.start(to.pod, _wire_head(call, to, user, left_s), body, done, timeout_s=left_s)

    async def dispatch(
        self,
        call: Call,
        owner: Owner,
        decision: routing.Decision,
        user: User,
        body: bytes,
        first: NotStarted | None = None,
    ) -> Answered:
        """Forward until somebody takes the call; hold it while its Run moves. Raises Rejected.

        `first` is how it went when `start` had sent it where `decision` says.
        """
        hold_until_s: float | None = None
        failure: Failure | None = None
        sent = 0
        try:
            while True:
                match decision:
                    case routing.Forward():
                        left_s = call.deadline_s - self._clock.monotonic()
                        if first is None and left_s <= 0:
                            raise Rejected(failure or _too_late())
                        outcome = first or await self._forward(call, decision, user, body, left_s)
                        first = None
                        sent += 1
                        match outcome:
                            case Answered():
                                return outcome
                            case Ended():
                                raise Rejected(outcome.failure)
                            case NotStarted():
                                failure = outcome.failure
                                wait = self._judge(owner, decision, outcome)
                            case _:
                                assert_never(outcome)
                    case routing.Hold():
                        failure = Failure(reason=decision.reason, message=decision.message)
                        wait = True
                    case routing.Refuse():
                        reject(decision.reason, decision.message)
                    case _:
                        assert_never(decision)
                found = self.look_up(call)
                if sent >= RESENDS_MAX or (wait is None and found == owner):
                    raise Rejected(failure)
                if wait and found == owner:
                    if hold_until_s is None:
                        if not self.caps.take_moving():
                            raise Rejected(failure)
                        hold_until_s = min(call.deadline_s, self._clock.monotonic() + MOVING_HOLD_S)
                    if not await self._changed(call, hold_until_s):
                        raise Rejected(failure)
                    found = self.look_up(call)
                if not isinstance(found, Owner):
                    reject(found.reason, found.message)
                owner = found
                decision = self.route(owner)
        finally:
            if hold_until_s is not None:
                self.caps.give_moving()

    async def _changed(self, call: Call, until_s: float) -> bool:
        """Wait for the next fact about the Run; False when `until_s` has come."""
        left_s = until_s - self._clock.monotonic()
        return left_s > 0 and await self._changes.wait(call.target.run_uid, timeout_s=left_s)

    async def _forward(self, call: Call, to: routing.Forward, user: User, body: bytes, left_s: float) -> Outcome:
        return await self._forwarder.send(to.pod, _wire_head(call, to, user, left_s), body, timeout_s=left_s)

    def _judge(self, owner: Owner, to: routing.Forward, outcome: NotStarted) -> bool | None:
        """What to do with a call that nobody started: True wait for a fact, False try again at once, None give up."""
        if outcome.refused:
            self._suspects.add(to.pod.uid)
            if to.direct:
                self._on_owner_refused(owner)
        if outcome.lost or (outcome.refused and not to.direct):
            return False
        return True if routing.may_wait(owner, outcome.failure.reason, moving=outcome.moving) else None


def _too_late() -> Failure:
    """The time went by before there was anything to send; a call that was held says why instead (L12)."""
    message = "the deadline passed before the call was dispatched: it did not run"
    return Failure(reason=Reason.INVOCATION_TIMEOUT, message=message, retryable=True)


def _wire_head(call: Call, to: routing.Forward, user: User, left_s: float) -> InvokeRequest:
    target = call.target
    return InvokeRequest(
        namespace=target.namespace,
        runtime=target.runtime,
        run_uid=target.run_uid,
        invocation_id=call.id,
        deadline_ms=max(1, int(left_s * 1000)),
        user=user.name,
        attempt=to.attempt,
        pod_uid=to.owner_uid,
        traceparent=new_traceparent() if call.ask.traceparent == "" else call.ask.traceparent,
    )
