"""One invocation from its head to its answer, in the order in which the table answers.

Here: path, method, 401, RunNotFound, 403, 409/503, 415, 413, 400, then the call. Not here: each of these questions
(`request`, `auth`, `routing`), sending, holding and sending again (`dispatch`), the socket (`front`).
A call about which everything is known leaves at once and is answered from a callback (`_at_once`); whatever else takes
the same questions in the same order, but may wait at each (`_answer`).
Next: `site` sends here what is an invoke path.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, assert_never, cast

from controlplane.kube.clock import Clock
from dataplane.gateway import routing
from dataplane.gateway.answer import Answer, Failure, error_answer, server_timing
from dataplane.gateway.arrivals import Arrivals
from dataplane.gateway.auth import Gatekeeper
from dataplane.gateway.bodies import Malformed
from dataplane.gateway.credentials import Credential, User
from dataplane.gateway.dispatch import Call, Dispatcher, Rejected, reject
from dataplane.gateway.exchange import Request
from dataplane.gateway.forward import Answered, Ended, Forwarder, NotStarted, Outcome
from dataplane.gateway.holding import Changes, HoldCaps, RunShares
from dataplane.gateway.http1 import Head
from dataplane.gateway.ledger import BodyLedger
from dataplane.gateway.limits import INFLIGHT_BODY_MAX_BYTES, INFLIGHT_MAX, RUN_INFLIGHT_MAX
from dataplane.gateway.request import Ask, Target, check_fields, check_media_type
from dataplane.gateway.reviews import ReviewFailed
from dataplane.gateway.suspects import Suspects
from statemachine.ownership import Owner, Projection
from statemachine.reasons import Reason

log = logging.getLogger(__name__)

EMPTY_BODY: Final = b"{}"
_RUN_FULL: Final = f"{RUN_INFLIGHT_MAX} calls of the Run are in flight in this gateway"


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
        self._gatekeeper = gatekeeper
        self._clock = clock
        self._dispatcher = Dispatcher(
            projection=projection,
            changes=changes,
            forwarder=forwarder,
            suspects=suspects,
            clock=clock,
            on_owner_refused=on_owner_refused,
            to_owner=to_owner,
        )
        self.in_flight = 0
        self._bodies = BodyLedger()
        self._arrivals = Arrivals(self._bodies, clock)
        self._shares = RunShares()
        self._idle: asyncio.Event | None = None
        self._resumed: set[asyncio.Task[None]] = set()

    @property
    def body_bytes(self) -> int:
        """Bytes of request bodies in memory."""
        return self._bodies.bytes

    @property
    def arriving(self) -> int:
        """Calls whose body is not all here."""
        return len(self._arrivals)

    @property
    def caps(self) -> HoldCaps:
        """The calls that wait."""
        return self._dispatcher.caps

    def invoke(
        self, request: Request, ask: Ask, target: Target, invocation_id: str
    ) -> Coroutine[Any, Any, Answer] | None:
        """Answer one POST to an invoke path. None: `request.answer` follows. The coroutine raises ClientGone only."""
        call = Call(request, ask, target, invocation_id, request.since_s + ask.timeout_ms / 1000)
        self.in_flight += 1
        try:
            return None if self._at_once(call) else self._in_turn(call)
        except BaseException:
            self._left()
            raise

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

    def _left(self) -> None:
        """A call is over."""
        self.in_flight -= 1
        if not self.in_flight and self._idle is not None:
            self._idle.set()

    # --- at once

    def _at_once(self, call: Call) -> bool:
        """Send a call of which everything is known, whose body is here and for which a connection is warm.

        False: something is missing or wrong, and nothing was done; `_answer` finds out what.
        """
        request, ask = call.request, call.ask
        credential: Credential | None = ask.token or request.certificate
        if credential is None or self.in_flight > INFLIGHT_MAX or not (ask.media_type_taken and ask.fields_taken):
            return False
        now_s = self._clock.monotonic()
        verdict = self._gatekeeper.user_known(credential, now_s)
        if verdict is None or not verdict.allowed or verdict.value is None:
            return False
        user, owner = verdict.value, self._dispatcher.look_up(call)
        if not isinstance(owner, Owner):
            return False
        granted = self._gatekeeper.grant_known(credential, user, owner.run, now_s)
        if granted is None or not granted.allowed:
            return False
        size, decision = request.whole_bytes, self._dispatcher.route(owner)
        if size is None or not isinstance(decision, routing.Forward) or not self._shares.take(owner.run.uid):
            return False
        if not self._bodies.take(size):
            self._shares.give(owner.run.uid)
            return False
        call.name = owner.run.name
        body = request.payload.body.take() or EMPTY_BODY
        done = partial(self._came_back, call, owner, decision, user, body)
        started = False
        try:
            started = self._dispatcher.start(call, decision, user, body, done, now_s=now_s)
        finally:
            if not started:
                self._shares.give(owner.run.uid)
                self._bodies.give(size)
        return started

    def _came_back(
        self, call: Call, owner: Owner, decision: routing.Forward, user: User, body: bytes, outcome: Outcome
    ) -> None:
        try:
            match outcome:
                case Answered():
                    answer = self._result(call, outcome)
                case Ended():
                    answer = _failed(call, outcome.failure)
                case NotStarted():
                    resuming = self._resume(call, owner, decision, user, body, outcome)
                    task = asyncio.get_running_loop().create_task(resuming)
                    self._resumed.add(task)
                    task.add_done_callback(self._resumed.discard)
                    return
                case _:
                    assert_never(outcome)
        except Exception:
            answer = defect_answer(call.id)
        self._sent_has_left(call)
        call.request.answer(answer)

    def _sent_has_left(self, call: Call) -> None:
        """A call that was sent at once is over."""
        self._bodies.give(call.request.payload.body.size)
        self._shares.give(call.target.run_uid)
        self._left()

    async def _resume(
        self, call: Call, owner: Owner, decision: routing.Forward, user: User, body: bytes, outcome: NotStarted
    ) -> None:
        """Nobody started it: hold it or try again, as a call that could wait from its beginning."""
        try:
            answer = await self._judged(call, self._dispatched(call, owner, decision, user, body, outcome))
        except Exception:
            answer = defect_answer(call.id)
        finally:
            self._sent_has_left(call)
        call.request.answer(answer)

    # --- in turn

    async def _in_turn(self, call: Call) -> Answer:
        try:
            return await self._judged(call, self._answer(call))
        finally:
            self._left()

    async def _judged(self, call: Call, answering: Coroutine[Any, Any, Answer]) -> Answer:
        """The answer, or that of the failure which is raised instead."""
        try:
            return await answering
        except Rejected as rejected:
            failure = rejected.failure
        except Malformed as fault:
            failure = Failure(reason=fault.reason, message=fault.message, close=not call.request.payload.is_eof())
        return _failed(call, failure)

    async def _answer(self, call: Call) -> Answer:
        if self.in_flight > INFLIGHT_MAX:
            reject(Reason.OVERLOADED, f"{INFLIGHT_MAX} calls are in flight in this gateway")
        credential: Credential | None = call.ask.token or call.request.certificate
        if credential is None:
            reject(Reason.UNAUTHENTICATED, "no bearer token and no client certificate")
        user = await self._authenticate(credential)
        owner = await self._dispatcher.find(call, user)
        await self._authorize(credential, user, owner)
        call.name = owner.run.name
        decision = self._dispatcher.route(owner)
        if isinstance(decision, routing.Refuse) and decision.reason is Reason.RUN_NOT_READY and owner.run.mode is None:
            owner = await self._dispatcher.learn_mode(call, owner)
            decision = self._dispatcher.route(owner)
        if isinstance(decision, routing.Refuse):
            reject(decision.reason, decision.message)
        if self._shares.full(owner.run.uid):
            reject(Reason.TOO_MANY_INVOCATIONS, _RUN_FULL)
        if not call.ask.media_type_taken:
            check_media_type(cast(Head, call.request.head))
        if call.request.payload.body.complete:
            return await self._with_body(call, owner, decision, user)
        return await self._when_arrived(call, owner, decision, user)

    async def _when_arrived(self, call: Call, owner: Owner, decision: routing.Decision, user: User) -> Answer:
        """Until its body is here, a call has a place among those that arrive and none among those of its Run."""
        arrivals, request = self._arrivals, call.request
        arrival = arrivals.begin(user.name, owner.run.uid, request.payload.give_up)
        try:
            try:
                body = await request.read(partial(arrivals.arrived, arrival))
            finally:
                arrivals.end(arrival)
            return await self._whole(call, owner, decision, user, body)
        finally:
            self._bodies.give(arrival.size)

    async def _with_body(self, call: Call, owner: Owner, decision: routing.Decision, user: User) -> Answer:
        size = call.request.payload.body.size
        if not self._bodies.take(size):
            reject(Reason.OVERLOADED, f"{INFLIGHT_BODY_MAX_BYTES} bytes of bodies are in flight in this gateway")
        try:
            return await self._whole(call, owner, decision, user, await call.request.read(_nothing_more))
        finally:
            self._bodies.give(size)

    async def _whole(self, call: Call, owner: Owner, decision: routing.Decision, user: User, body: bytes) -> Answer:
        """Its body is here and paid for: it takes its place among the calls of its Run."""
        if not call.ask.fields_taken:
            check_fields(cast(Head, call.request.head))
        if not self._shares.take(owner.run.uid):
            reject(Reason.TOO_MANY_INVOCATIONS, _RUN_FULL)
        try:
            return await self._dispatched(call, owner, decision, user, body or EMPTY_BODY)
        finally:
            self._shares.give(owner.run.uid)

    async def _authenticate(self, credential: Credential) -> User:
        verdict = self._gatekeeper.user_known(credential)
        if verdict is None:
            try:
                verdict = await self._gatekeeper.authenticate(credential)
            except ReviewFailed as error:
                raise Rejected(Failure(reason=Reason.AUTHORIZATION_UNAVAILABLE, message=str(error))) from error
        if not verdict.allowed or verdict.value is None:
            reject(Reason.UNAUTHENTICATED, verdict.message)
        return verdict.value

    async def _authorize(self, credential: Credential, user: User, owner: Owner) -> None:
        verdict = self._gatekeeper.grant_known(credential, user, owner.run)
        if verdict is None:
            try:
                verdict = await self._gatekeeper.authorize(credential, user, owner.run)
            except ReviewFailed as error:
                raise Rejected(Failure(reason=Reason.AUTHORIZATION_UNAVAILABLE, message=str(error))) from error
        if not verdict.allowed:
            reject(Reason.FORBIDDEN, verdict.message)

    async def _dispatched(
        self,
        call: Call,
        owner: Owner,
        decision: routing.Decision,
        user: User,
        body: bytes,
        first: NotStarted | None = None,
    ) -> Answer:
        return self._result(call, await self._dispatcher.dispatch(call, owner, decision, user, body, first))

    def _result(self, call: Call, outcome: Answered) -> Answer:
        total_ms = (self._clock.monotonic() - call.request.since_s) * 1000
        timing = server_timing((("gateway", total_ms), *outcome.reply.server_timing))
        headers = (("X-Kruntime-Invocation-ID", call.id), ("Server-Timing", timing))
        return Answer(status=200, body=outcome.body, headers=headers)


def _nothing_more(size: int) -> None:
    """A body that is all here is not waited for."""


def _failed(call: Call, failure: Failure) -> Answer:
    return error_answer(failure, invocation_id=call.id, uid=call.target.run_uid, name=call.name)


def defect_answer(invocation_id: str) -> Answer:
    """What is said of a defect of ours, whose exception is being handled: it goes to the log and nowhere else."""
    log.exception("an invocation met a defect", extra={"invocation": invocation_id})
    return error_answer(Failure(reason=Reason.INTERNAL_ERROR, close=True), invocation_id=invocation_id)
