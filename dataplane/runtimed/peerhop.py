"""A call passed on to the runtimed that owns the Run: once, and what became of it is known (I2).

Here: the connection and the translation of failures. Not here: whom to ask (`routing.py`). Next: `serving.py`.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from dataplane.runtimed.answers import of_server_error, refusal
from dataplane.runtimed.call import Call
from dataplane.wire.errors import DialError, PeerDraining
from dataplane.wire.messages import METHOD_INVOKE, InvokeReply
from dataplane.wire.pool import CONNECT_TIMEOUT_S, Channel, Peer, Pool
from runtimes.contract.mux import CallError, CallTimeout, ConnectionLost, Refused, Reply
from statemachine.ownership import PodFact
from statemachine.reasons import Reason

PEER_GRACE_S: Final = 3.0  # beyond the deadline: until the owner has ended the worker and its answer is here


def peer_of(pod: PodFact) -> Peer:
    """The Pod as the pool knows it."""
    return Peer(pod.address, pod.port, pod.uid, pod.namespace, pod.runtime)


class PeerHop:
    """`passed_on` counts the calls that were sent to a peer."""

    def __init__(self, peers: Pool) -> None:
        self._peers = peers
        self.passed_on = 0

    async def send(self, call: Call, pod: PodFact, attempt: int) -> Reply:
        """Pass it on under that epoch and return the peer's answer, or ours about it."""
        reply = await self._try(call, pod, attempt)
        if reply is None:  # a pooled connection was dead before anything was written: a new one may be tried
            reply = await self._try(call, pod, attempt)
        return reply or _refused(Reason.OWNER_UNREACHABLE, "the connection to the owner was lost")

    async def _try(self, call: Call, pod: PodFact, attempt: int) -> Reply | None:
        peer = peer_of(pod)
        try:
            timeout = max(0.0, min(CONNECT_TIMEOUT_S, call.left))
            channel = self._peers.ready(peer) or await self._peers.connection(peer, timeout=timeout)
        except PeerDraining as error:
            return _refused(Reason.RUN_NOT_READY, str(error), moving=True)
        except DialError as error:
            return _refused(Reason.OWNER_UNREACHABLE, str(error))
        return await self._send(channel, call, pod, attempt)

    async def _send(self, channel: Channel, call: Call, pod: PodFact, attempt: int) -> Reply | None:
        left = call.left
        if left <= 0:
            return _refused(Reason.INVOCATION_TIMEOUT, "the deadline passed before the call was dispatched")
        deadline_ms = max(1, int(left * 1000))
        head = replace(call.head, hops=call.head.hops + 1, deadline_ms=deadline_ms, attempt=attempt, pod_uid=pod.uid)
        self.passed_on += 1
        try:
            answer = await channel.call(METHOD_INVOKE, head, call.body, timeout=left + PEER_GRACE_S)
            reply = answer.decode(InvokeReply)
        except Refused as error:
            return _refused(Reason.RUN_NOT_READY, error.error.message, moving=True)
        except CallError as error:
            return Reply(of_server_error(error.error))
        except ConnectionLost as error:
            return _refused(Reason.OUTCOME_UNKNOWN) if error.dispatched else None
        except CallTimeout:
            message = "the deadline passed without a word from the owner: the outcome is unknown"
            return _refused(Reason.INVOCATION_TIMEOUT, message)
        except msgspec.MsgspecError:
            return _refused(Reason.OUTCOME_UNKNOWN, "the owner's answer cannot be read: the call may have run")
        return Reply(replace(reply, server_timing=(("peer", call.elapsed_ms), *reply.server_timing)), answer.body)


def _refused(reason: Reason, message: str = "", *, moving: bool = False) -> Reply:
    return Reply(refusal(reason, message, hop="peer", moving=moving))
