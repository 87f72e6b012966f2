"""One invocation from its head to its answer, in the order in which the table answers.

Here: path, method, 401, RunNotFound, 403, 409/503, 415, 413, 400, then the call; what is held, for how long. Not here:
each of these questions (`request`, `auth`, `routing`), the sending (`forward`), the socket (`front`).
A call about which everything is known leaves at once and is answered from a callback (`_at_once`); whatever else takes
the same questions in the same order, but may wait at each (`_answer`).
Next: `site` sends here what is an invoke path.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, NoReturn, assert_never, cast

from msgspec import Struct

from controlplane.kube.clock import Clock
from dataplane.gateway import routing
from dataplane.gateway.answer import Answer, Failure, error_answer, server_timing
from dataplane.gateway.auth import Gatekeeper
from dataplane.gateway.bodies import Malformed
from dataplane.gateway.credentials import Credential, User
from dataplane.gateway.exchange import Request
from dataplane.gateway.forward import Answered, Ended, Forwarder, NotStarted, Outcome
from dataplane.gateway.holding import Changes, HoldCaps
from dataplane.gateway.http1 import Head
from dataplane.gateway.limits import (
    INFLIGHT_BODY_MAX_BYTES,
    INFLIGHT_MAX,
    MOVING_HOLD_S,
    UNKNOWN_HOLD_S,
)
from dataplane.gateway.request import Ask, Target, check_fields, check_media_type, new_traceparent
from dataplane.gateway.reviews import ReviewFailed
from dataplane.gateway.suspects import Suspects
from dataplane.wire.messages import InvokeRequest
from statemachine.ownership import Owner, Projection
from statemachine.reasons import Reason

log = logging.getLogger(__name__)

EMPTY_BODY: Final = b"{}"
RESENDS_MAX: Final = 8  # a call that nobody starts is not carried around for ever


class Rejected(Exception):
    """The invocation ends with this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason.value)
        self.failure = failure


class _Call(Struct):
    """One invocation on its way."""

    request: Request
    ask: Ask
    target: Target
    id: str
    deadline_s: float
    """Clock.monotonic; a loop's own time may be as coarse as a millisecond."""
    name: str = ""
    """The Run's name, once the caller is known to be allowed to see it."""


class Invoker:
    """Serves invocations. All state is the projection's, the caches' and counters; nothing is kept per Run."""

    def __init__(
        self,
        *,
        projection: Projection,
        changes: Changes,
        gatekeeper: Gatekeeper,
        forwarder: Forwarder,
        suspects: Suspects,
        clock: Clock,
        on_owner_refused: Callable[[Owner], None],
        to_owner: bool = True,
    ) -> None:
        """`to_owner`: as in `routing.route`. `on_owner_refused` hears of owners at whose address nobody listens; it is
        quick and never raises."""
        self._projection = projection
        self._changes = changes
        self._gatekeeper = gatekeeper
        self._forwarder = forwarder
        self._suspects = suspects
        self._on_owner_refused = on_owner_refused
        self._to_owner = to_owner
        self._clock = clock
        self._turn = 0
        self.caps = HoldCaps()
        self.in_flight = 0
        self.body_bytes = 0
        self._idle: asyncio.Event | None = None
        self._resumed: set[asyncio.Task[None]] = set()

    def invoke(self, request: Request, target: Target, invocation_id: str) -> Coroutine[Any, Any, Answer] | None:
        """Answer one POST to an invoke path. None: `request.answer` follows. The coroutine raises ClientGone only."""
        ask = request.ask
        call = _Call(request, ask, target, invocation_id, request.since_s + ask.timeout_ms / 1000)
        self.in_flight += 1
        try:
            return None if self._at_once(call) else self._in_turn(call)
        except BaseException:
            self._left()
            raise

    async def _in_turn(self, call: _Call) -> Answer:
        try:
            return await self._judged(call, self._answer(call))
        finally:
            self._left()

    async def _judged(self, call: _Call, answering: Coroutine[Any, Any, Answer]) -> Answer:
        """The answer, or that of the failure which is raised instead."""
        try:
            return await answering
        except Rejected as rejected:
            failure = rejected.failure
        except Malformed as fault:
            failure = Failure(reason=fault.reason, message=fault.message, close=not call.request.payload.is_eof())
        return _failed(call, failure)

    def _left(self) -> None:
        """A call is over."""
        self.in_flight -= 1
        if not self.in_flight and self._idle is not None:
            self._idle.set()

    # --- at once

    def _at_once(self, call: _Call) -> bool:
        """Send a call of which everything is known, whose body is here and for which a connection is warm.

        False: something is missing or wrong, and nothing was done; `_answer` finds out what.
        """
        request, ask = call.request, call.ask
        credential: Credential | None = ask.token or request.certificate
        if credential is None or self.in_flight > INFLIGHT_MAX or not (ask.media_type_taken and ask.fields_taken):
            return False
        verdict = self._gatekeeper.user_known(credential)
        if verdict is None or not verdict.allowed or verdict.value is None:
            return False
        user, owner = verdict.value, self._look_up(call)
        if not isinstance(owner, Owner):
            return False
        granted = self._gatekeeper.grant_known(credential, user, owner.run)
        if granted is None or not granted.allowed:
            return False
        decision = self._route(owner)
        size = request.whole_bytes
        left_s = call.deadline_s - self._clock.monotonic()
        full = size is None or self.body_bytes + size > INFLIGHT_BODY_MAX_BYTES
        if size is None or full or left_s <= 0 or not isinstance(decision, routing.Forward):
            return False
        call.name = owner.run.name
        body = request.payload.body.take() or EMPTY_BODY
        head = _wire_head(call, decision, user, left_s)
        done = partial(self._came_back, call, owner, decision, user, body)
        if not self._forwarder.start(decision.pod, head, body, done, timeout_s=left_s):
            return False
        self.body_bytes += len(body)
        return True

    def _came_back(
        self, call: _Call, owner: Owner, decision: routing.Forward, user: User, body: bytes, outcome: Outcome
    ) -> None:
        try:
            match outcome:
                case Answered():
                    answer = self._result(call, outcome)
                case Ended():
                    answer = _failed(call, outcome.failure)
                case NotStarted():
                    resuming = asyncio.get_running_loop().create_task(
                        self._resume(call, owner, decision, user, body, outcome)
                    )
                    self._resumed.add(resuming)
                    resuming.add_done_callback(self._resumed.discard)
                    return
                case _:
                    assert_never(outcome)
        except Exception:
            answer = defect_answer(call.id)
        self.body_bytes -= len(body)
        self._left()
        call.request.answer(answer)

    async def _resume(
        self, call: _Call, owner: Owner, decision: routing.Forward, user: User, body: bytes, outcome: NotStarted
    ) -> None:
        """Nobody started it: hold it or try again, as a call that could wait from its beginning."""
        try:
            answer = await self._judged(call, self._dispatch(call, owner, decision, user, body, outcome))
        except Exception:
            answer = defect_answer(call.id)
        finally:
            self.body_bytes -= len(body)
            self._left()
        call.request.answer(answer)

    # --- in turn

    async def idle(self, *, timeout_s: float) -> bool:
        """Return when no invocation is in flight: True; False after `timeout_s` seconds."""
        self._idle = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                while self.in_flight:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _answer(self, call: _Call) -> Answer:
        if self.in_flight > INFLIGHT_MAX:
            _reject(Reason.OVERLOADED, f"{INFLIGHT_MAX} calls are in flight in this gateway")
        credential: Credential | None = call.ask.token or call.request.certificate
        if credential is None:
            _reject(Reason.UNAUTHENTICATED, "no bearer token and no client certificate")
        user = await self._authenticate(credential)
        owner = await self._find(call, user)
        await self._authorize(credential, user, owner)
        call.name = owner.run.name
        decision = self._route(owner)
        if isinstance(decision, routing.Refuse):
            _reject(decision.reason, decision.message)
        if not call.ask.media_type_taken:
            check_media_type(cast(Head, call.request.head))
        reserved = call.request.body_bytes_max
        if self.body_bytes + reserved > INFLIGHT_BODY_MAX_BYTES:
            _reject(Reason.OVERLOADED, f"{INFLIGHT_BODY_MAX_BYTES} bytes of bodies are in flight in this gateway")
        self.body_bytes += reserved
        try:
            body = await call.request.read() or EMPTY_BODY
            if not call.ask.fields_taken:
                check_fields(cast(Head, call.request.head))
            return await self._dispatch(call, owner, decision, user, body)
        finally:
            self.body_bytes -= reserved

    async def _authenticate(self, credential: Credential) -> User:
        verdict = self._gatekeeper.user_known(credential)
        if verdict is None:
            try:
                verdict = await self._gatekeeper.authenticate(credential)
            except ReviewFailed as error:
                raise Rejected(Failure(reason=Reason.AUTHORIZATION_UNAVAILABLE, message=str(error))) from error
        if not verdict.allowed or verdict.value is None:
            _reject(Reason.UNAUTHENTICATED, verdict.message)
        return verdict.value

    async def _authorize(self, credential: Credential, user: User, owner: Owner) -> None:
        verdict = self._gatekeeper.grant_known(credential, user, owner.run)
        if verdict is None:
            try:
                verdict = await self._gatekeeper.authorize(credential, user, owner.run)
            except ReviewFailed as error:
                raise Rejected(Failure(reason=Reason.AUTHORIZATION_UNAVAILABLE, message=str(error))) from error
        if not verdict.allowed:
            _reject(Reason.FORBIDDEN, verdict.message)

    async def _find(self, call: _Call, user: User) -> Owner:
        """The Run; a UID that this projection has never seen is held for a moment."""
        found = self._look_up(call)
        if isinstance(found, routing.Hold) and self.caps.take_unknown(user.name):
            try:
                until_s = min(call.deadline_s, self._clock.monotonic() + UNKNOWN_HOLD_S)
                while isinstance(found, routing.Hold) and await self._changed(call, until_s):
                    found = self._look_up(call)
            finally:
                self.caps.give_unknown(user.name)
        if not isinstance(found, Owner):
            _reject(found.reason, found.message)
        return found

    def _look_up(self, call: _Call) -> Owner | routing.Hold | routing.Refuse:
        target = call.target
        return routing.find(self._projection, target.namespace, target.runtime, target.run_uid)

    async def _changed(self, call: _Call, until_s: float) -> bool:
        """Wait for the next fact about the Run; False when `until_s` has come."""
        left_s = until_s - self._clock.monotonic()
        return left_s > 0 and await self._changes.wait(call.target.run_uid, timeout_s=left_s)

    async def _dispatch(
        self,
        call: _Call,
        owner: Owner,
        decision: routing.Decision,
        user: User,
        body: bytes,
        first: NotStarted | None = None,
    ) -> Answer:
        """Forward until somebody takes the call; hold it while its Run moves. `first` is how it went before."""
        hold_until_s: float | None = None
        sent = 0
        try:
            while True:
                match decision:
                    case routing.Forward():
                        outcome = first or await self._forward(call, decision, user, body)
                        first = None
                        sent += 1
                        match outcome:
                            case Answered():
                                return self._result(call, outcome)
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
                        _reject(decision.reason, decision.message)
                    case _:
                        assert_never(decision)
                found = self._look_up(call)
                if sent >= RESENDS_MAX or (wait is None and found == owner):
                    raise Rejected(failure)
                if wait and found == owner:
                    if hold_until_s is None:
                        if not self.caps.take_moving():
                            raise Rejected(failure)
                        hold_until_s = min(call.deadline_s, self._clock.monotonic() + MOVING_HOLD_S)
                    if not await self._changed(call, hold_until_s):
                        raise Rejected(failure)
                    found = self._look_up(call)
                if not isinstance(found, Owner):
                    _reject(found.reason, found.message)
                owner = found
                decision = self._route(owner)
        finally:
            if hold_until_s is not None:
                self.caps.give_moving()

    def _route(self, owner: Owner) -> routing.Decision:
        return routing.route(
            self._projection,
            owner,
            avoid=self._suspects.current(),
            turn=self._next_turn(),
            to_owner=self._to_owner,
        )

    async def _forward(self, call: _Call, to: routing.Forward, user: User, body: bytes) -> Outcome:
        left_s = call.deadline_s - self._clock.monotonic()
        if left_s <= 0:
            message = "the deadline passed before the call was dispatched: it did not run"
            raise Rejected(Failure(reason=Reason.INVOCATION_TIMEOUT, message=message, retryable=True))
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

    def _result(self, call: _Call, outcome: Answered) -> Answer:
        total_ms = (self._clock.monotonic() - call.request.since_s) * 1000
        timing = server_timing((("gateway", total_ms), *outcome.reply.server_timing))
        headers = (("X-Kruntime-Invocation-ID", call.id), ("Server-Timing", timing))
        return Answer(status=200, body=outcome.body, headers=headers)

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn


def _wire_head(call: _Call, to: routing.Forward, user: User, left_s: float) -> InvokeRequest:
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


def _failed(call: _Call, failure: Failure) -> Answer:
    return error_answer(failure, invocation_id=call.id, uid=call.target.run_uid, name=call.name)


def defect_answer(invocation_id: str) -> Answer:
    """What is said of a defect of ours, whose exception is being handled: it goes to the log and nowhere else."""
    log.exception("an invocation met a defect", extra={"invocation": invocation_id})
    return error_answer(Failure(reason=Reason.INTERNAL_ERROR, close=True), invocation_id=invocation_id)


def _reject(reason: Reason, message: str = "") -> NoReturn:
    raise Rejected(Failure(reason=reason, message=message))
