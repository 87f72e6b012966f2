"""The port of a Runtime Pod: one method, Invoke, from gateways and from peers of the same Runtime.

Here: admission by certificate, and performing what `routing.route` decides: the Runtime Server, or one peer hop. A call
is written at most once; whether it can have run is always known (I2). It goes on when its caller has gone (I4).
Not here: lifecycle, JSON. Next: `daemon.py` gives the facts, `main.py` listens.
"""

from collections.abc import Callable
from typing import Final, Protocol

from dataplane.runtimed import routing
from dataplane.runtimed.answers import of_server_error, refusal
from dataplane.runtimed.call import Call
from dataplane.runtimed.failures import ServerLost
from dataplane.runtimed.gate import Gate
from dataplane.runtimed.local import Local
from dataplane.runtimed.peerhop import PeerHop
from dataplane.runtimed.server_link import ServerLink
from dataplane.wire.identity import GatewayIdentity, Identity, RuntimedIdentity
from dataplane.wire.messages import METHOD_INVOKE, InvokeReply, InvokeRequest
from dataplane.wire.pool import Pool
from runtimes.contract import messages as m
from runtimes.contract.mux import CallError, CallTimeout, ConnectionLost, Refused, Reply, Request
from statemachine.ownership import Projection
from statemachine.reasons import Reason

UNKNOWN_WAIT_S: Final = 1.0  # a UID that the projection has never seen may be this far behind (O2)
UNKNOWN_WAITING_MAX: Final = 1_024  # calls that wait for such a fact; more are told 404 at once


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

    async def fact_of(self, uid: str, *, timeout: float) -> bool:
        """Wait for the first fact about a UID; False when none came in time."""
        ...


def admission(namespace: str, runtime: str) -> Callable[[Identity], bool]:
    """Who may connect: gateways of this installation, and runtimeds of the same namespace and Runtime."""

    def admit(identity: Identity) -> bool:
        match identity:
            case GatewayIdentity():
                return True
            case RuntimedIdentity():
                return (identity.namespace, identity.runtime) == (namespace, runtime)
            case _:
                return False

    return admit


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

    async def handle(self, request: Request) -> Reply:
        """One request of the port."""
        if request.method != METHOD_INVOKE:
            raise CallError(m.ErrorHead(reason=m.UNKNOWN_METHOD, message=f"{request.method} is not served here"))
        head = request.decode(InvokeRequest)
        if (head.namespace, head.runtime) != (self._namespace, self._runtime):
            return Reply(refusal(Reason.RUN_NOT_FOUND))
        if isinstance(request.peer, RuntimedIdentity) and head.hops < 1:
            return Reply(refusal(Reason.STALE_OWNER, "a peer passes calls on, it makes none"))
        call = Call(head, request.body)
        decision = self._route(head)
        if isinstance(decision, routing.Await) and await self._known(call):
            decision = self._route(head)
        match decision:
            case routing.Serve(local=local):
                return await self._serve(local, call)
            case routing.Pass(pod=pod, attempt=attempt):
                return await self.peers.send(call, pod, attempt)
            case routing.Refuse(reason=reason, message=message, moving=moving):
                return Reply(refusal(reason, message, moving=moving))
            case _:
                return Reply(refusal(Reason.RUN_NOT_FOUND))

    def _route(self, head: InvokeRequest) -> routing.Decision:
        return routing.route(head, self._facts.here(head.run_uid), self._facts.projection)

    async def _known(self, call: Call) -> bool:
        if self._waiting >= UNKNOWN_WAITING_MAX:
            return False
        self._waiting += 1
        try:
            return await self._facts.fact_of(call.head.run_uid, timeout=min(UNKNOWN_WAIT_S, call.left))
        finally:
            self._waiting -= 1

    async def _serve(self, local: Local, call: Call) -> Reply:
        gate = self._facts.gate(local)
        if gate is None or not await gate.enter():
            return Reply(refusal(Reason.RUN_NOT_READY, "the Run is leaving this Pod", moving=True))
        try:
            return await self._dispatch(local.registration_id, call)
        finally:
            gate.leave()

    async def _dispatch(self, registration_id: str, call: Call) -> Reply:
        left, before_ms = call.left, call.elapsed_ms
        if left <= 0:
            return Reply(refusal(Reason.INVOCATION_TIMEOUT, "the deadline passed before the call was dispatched"))
        head = m.InvokeRequest(
            registration_id=registration_id,
            invocation_id=call.head.invocation_id,
            traceparent=call.head.traceparent or "",
        )
        self.served += 1
        try:
            answer, result = await self._link.client.invoke_function(head, call.body, timeout=left)
        except CallError as error:
            return Reply(of_server_error(error.error))
        except Refused as error:
            return Reply(refusal(Reason.OVERLOADED, error.error.message, hop="runtime"))
        except ServerLost:
            return Reply(refusal(Reason.RUN_NOT_READY, "the Runtime Server is restarting", moving=True))
        except ConnectionLost as error:
            if error.dispatched:
                return Reply(refusal(Reason.OUTCOME_UNKNOWN, "the Runtime Server went away during the call"))
            return Reply(refusal(Reason.RUN_NOT_READY, "the Runtime Server went away", moving=True))
        except CallTimeout:
            message = "the deadline passed without a word from the Runtime Server: the outcome is unknown"
            return Reply(refusal(Reason.INVOCATION_TIMEOUT, message))
        elapsed_ms = call.elapsed_ms
        timing = (("runtimed", elapsed_ms), ("runtime", elapsed_ms - before_ms), ("worker", answer.worker_us / 1000))
        return Reply(InvokeReply(status=200, server_timing=timing), result)
