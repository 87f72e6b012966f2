"""Calls at a Runtime Pod: one method, Invoke, from gateways and from peers of the same Runtime.

Here: performing what `routing.route` decides: the Runtime Server, or one peer hop. A call
is written at most once; whether it can have run is always known (I2). It goes on when its caller has gone (I4).
What is served here needs no task: a frame comes in, is judged and handed on at once, and the answer's frame goes out
from the callback that brings it. Not here: who may connect (`port`), lifecycle, JSON.
Next: `daemon.py` gives the facts, `main.py` listens.
"""

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from typing import Final, Protocol, assert_never

import msgspec

from dataplane.runtimed import routing
from dataplane.runtimed.answers import ResultRefused, not_stored, of_server_error, refusal, with_artifacts
from dataplane.runtimed.artifacts import Artifacts, ArtifactsRefused, UploadFailed
from dataplane.runtimed.call import Call
from dataplane.runtimed.failures import ServerLost
from dataplane.runtimed.gate import Gate
from dataplane.runtimed.local import Local
from dataplane.runtimed.peerhop import PeerHop
from dataplane.runtimed.server_link import ServerLink
from dataplane.wire.identity import RuntimedIdentity
from dataplane.wire.messages import METHOD_INVOKE, METHOD_MODE, InvokeReply, InvokeRequest, ModeReply, ModeRequest
from dataplane.wire.pool import Pool
from runtimes.contract import messages as m
from runtimes.contract.mux import CallError, CallTimeout, ConnectionLost, Outcome, Refused, Reply, Request
from statemachine.ownership import Projection
from statemachine.reasons import Reason
from statemachine.run import Epoch, Mode, RunUID

UNKNOWN_WAIT_S: Final = 1.0  # a UID that the projection has never seen may be this far behind (O2)
UNKNOWN_WAITING_MAX: Final = 1_024  # calls that wait for such a fact; more are told 404 at once

_log = logging.getLogger(__name__)


class Facts(Protocol):
    """What the daemon knows, asked at every call."""

    @property
    def projection(self) -> Projection:
        """What watches have said of Runs and Pods."""
        ...

    def here(self, uid: str) -> routing.Here:
        """The Run as this Pod knows it by itself."""
        ...

    def gate(self, local: Local) -> Gate | None:
        """The gate of that very epoch."""
        ...

    @property
    def artifacts(self) -> Artifacts:
        """Where files go that calls leave."""
        ...

    async def fact_of(self, uid: str, *, timeout: float) -> bool:
        """Wait for the first fact about a UID; False when none came in time."""
        ...


class Serving:
    """Answers Invoke. `served` counts the calls that were handed to the Runtime Server."""

    def __init__(self, facts: Facts, link: ServerLink, peers: Pool, *, namespace: str, runtime: str) -> None:
        self._facts = facts
        self._link = link
        self._namespace = namespace
        self._runtime = runtime
        self._waiting = 0
        self.peers = PeerHop(peers)
        self.served = 0
        self._storing: set[asyncio.Task[None]] = set()

    def handle(self, request: Request) -> Awaitable[Reply | None] | None:
        """One request of the port."""
        if request.method == METHOD_MODE:
            request.respond(Reply(ModeReply(self._mode(request.decode(ModeRequest)))))
            return None
        if request.method != METHOD_INVOKE:
            raise CallError(m.ErrorHead(reason=m.UNKNOWN_METHOD, message=f"{request.method} is not served here"))
        head = request.decode(InvokeRequest)
        if (head.namespace, head.runtime) != (self._namespace, self._runtime):
            _answer(request, refusal(Reason.RUN_NOT_FOUND))
            return None
        if isinstance(request.peer, RuntimedIdentity) and head.hops < 1:
            _answer(request, refusal(Reason.STALE_OWNER, "a peer passes calls on, it makes none"))
            return None
        return self._perform(self._route(head), Call(head, request))

    def _mode(self, head: ModeRequest) -> Mode | None:
        known = self._facts.projection.run(RunUID(head.run_uid))
        here = (head.namespace, head.runtime) == (self._namespace, self._runtime)
        return known.mode if known is not None and here else None

    def _route(self, head: InvokeRequest) -> routing.Decision:
        return routing.route(head, self._facts.here(head.run_uid), self._facts.projection)

    def _perform(self, decision: routing.Decision, call: Call) -> Awaitable[Reply | None] | None:
        match decision:
            case routing.Serve(local=local):
                self._serve(local, call)
            case routing.Pass(pod=pod, attempt=attempt):
                return self.peers.send(call, pod, attempt)
            case routing.Refuse(reason=reason, message=message, moving=moving):
                _answer(call.request, refusal(reason, message, moving=moving))
            case routing.Await():
                return self._await(call)
            case _:
                assert_never(decision)
        return None

    async def _await(self, call: Call) -> Reply | None:
        """A UID that was never seen may be known in a moment."""
        known = await self._known(call)
        decision = self._route(call.head) if known else routing.Await()
        if isinstance(decision, routing.Await):
            return Reply(refusal(Reason.RUN_NOT_FOUND))
        performing = self._perform(decision, call)
        return None if performing is None else await performing

    async def _known(self, call: Call) -> bool:
        if self._waiting >= UNKNOWN_WAITING_MAX:
            return False
        self._waiting += 1
        try:
            return await self._facts.fact_of(call.head.run_uid, timeout=min(UNKNOWN_WAIT_S, call.left))
        finally:
            self._waiting -= 1

    def _serve(self, local: Local, call: Call) -> None:
        """Hand it to the Runtime Server; `_answered` follows when it has been taken, else it is answered here."""
        left, before_ms = call.left, call.elapsed_ms
        if left <= 0:
            message = "the deadline passed before the call was dispatched"
            _answer(call.request, refusal(Reason.INVOCATION_TIMEOUT, message))
            return
        gate = self._facts.gate(local)
        if gate is None or not gate.enter():
            _answer(call.request, refusal(Reason.RUN_NOT_READY, "the Run is leaving this Pod", moving=True))
            return
        head = m.InvokeRequest(
            registration_id=local.registration_id,
            invocation_id=call.head.invocation_id,
            traceparent=call.head.traceparent or "",
        )
        self.served += 1
        done = partial(self._answered, call, local.epoch, gate, before_ms)
        try:
            self._link.client.start_invocation(head, call.body, done, timeout=left)
        except (ServerLost, Refused, ConnectionLost) as error:
            gate.leave()
            _answer(call.request, _failed(error))
        except BaseException:
            gate.leave()
            raise  # whoever serves the request answers it

    def _answered(self, call: Call, epoch: Epoch, gate: Gate, before_ms: float, outcome: Outcome) -> None:
        """The Runtime Server is done with it. Every call is answered, whatever happens here."""
        try:
            head, body, folder = _ended(call, before_ms, outcome)
        except Exception:
            head, body, folder = _defect(call), b"", ""
        if folder:
            storing = self._store(call, epoch, gate, head.server_timing[1:], folder, body)
            task = asyncio.get_running_loop().create_task(storing)
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)
            return
        gate.leave()
        _answer(call.request, head, body)

    async def _store(
        self, call: Call, epoch: Epoch, gate: Gate, timing: tuple[tuple[str, float], ...], folder: str, body: bytes
    ) -> None:
        """The call has left files: they are stored before it is answered. It stays inside the gate until then."""
        artifacts, answer = self._facts.artifacts, b""
        try:
            refs = await artifacts.keep(epoch, folder, timeout=max(0.0, call.left))
            # In a thread, whose stack is empty: what nests as deeply as a worker may answer is read there.
            answer = await asyncio.get_running_loop().run_in_executor(None, with_artifacts, body, refs)
            head = InvokeReply(status=200, server_timing=(("runtimed", call.elapsed_ms), *timing))
        except ResultRefused as error:
            head = refusal(error.reason, str(error), hop="worker")
        except (ArtifactsRefused, UploadFailed) as error:
            head = not_stored(error)
        except Exception:
            head = _defect(call)
        _answer(call.request, head, answer)
        try:
            await artifacts.drop(epoch, folder)
        finally:
            gate.leave()


def _ended(call: Call, before_ms: float, outcome: Outcome) -> tuple[InvokeReply, bytes, str]:
    """What the Runtime Server's word comes to: head and body, and what the call has left for the artifact store."""
    if not isinstance(outcome, Reply):
        return _failed(outcome), b"", ""
    try:
        head = outcome.decode(m.InvokeReply)
    except msgspec.MsgspecError:
        message = "the Runtime Server's answer cannot be read: the call may have run"
        return refusal(Reason.OUTCOME_UNKNOWN, message), b"", ""
    elapsed_ms = call.elapsed_ms
    timing = (("runtimed", elapsed_ms), ("runtime", elapsed_ms - before_ms), ("worker", head.worker_us / 1000))
    return InvokeReply(status=200, server_timing=timing), outcome.body, head.artifacts


def _defect(call: Call) -> InvokeReply:
    """What is said of a defect of ours, whose exception is being handled: it goes to the log and nowhere else."""
    _log.exception("a call met a defect", extra={"run": call.head.run_uid, "invocation": call.head.invocation_id})
    return refusal(Reason.INTERNAL_ERROR)


def _answer(request: Request, head: InvokeReply, body: bytes = b"") -> None:
    request.respond(Reply(head, body))


def _failed(error: CallError | CallTimeout | ConnectionLost | Refused | ServerLost) -> InvokeReply:
    """What became of a call that the Runtime Server did not serve."""
    match error:
        case CallError():
            return of_server_error(error.error)
        case Refused():
            return refusal(Reason.OVERLOADED, error.error.message, hop="runtime")
        case ServerLost():
            return refusal(Reason.RUN_NOT_READY, "the Runtime Server is restarting", moving=True)
        case ConnectionLost(dispatched=True):
            return refusal(Reason.OUTCOME_UNKNOWN, "the Runtime Server went away during the call")
        case ConnectionLost():
            return refusal(Reason.RUN_NOT_READY, "the Runtime Server went away", moving=True)
        case CallTimeout():
            message = "the deadline passed without a word from the Runtime Server: the outcome is unknown"
            return refusal(Reason.INVOCATION_TIMEOUT, message)
        case _:
            assert_never(error)
