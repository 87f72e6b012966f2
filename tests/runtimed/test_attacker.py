"""A Runtime Pod that is fully taken over, with its certificate and key, against a peer of its own Runtime.

It may pass calls on, as any peer may. It is no gateway, it is no other Pod, and it disturbs nobody.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.pki import names
from dataplane.runtimed.serving import admission
from dataplane.wire.dial import tls_dial
from dataplane.wire.errors import PeerUntrusted
from dataplane.wire.listener import wire_server
from dataplane.wire.messages import METHOD_INVOKE, InvokeReply, InvokeRequest
from dataplane.wire.pool import Peer, Pool
from runtimes.contract import frames
from runtimes.contract.mux import CallError, Connection, Reply, Request
from tests.runtimed.fakes import NAMESPACE
from tests.runtimed.stack import Stack, running

ATTACKER = "pod-9"


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running(tmp_path) as the_stack:
        the_stack.seed("f", the_stack.pods[0])
        await the_stack.until("f", "Ready")
        yield the_stack


async def attack(stack: Stack) -> Connection:
    """A connection to the victim, with the attacker's own good certificate."""
    context = stack.installation.client_context(names.runtimed(NAMESPACE, "python", ATTACKER))
    [pod] = stack.pods
    connection = await tls_dial(lambda: context)(Peer(pod.ip, stack.port, pod.uid, NAMESPACE, "python"))
    assert isinstance(connection, Connection)
    return connection


def call(**head: object) -> InvokeRequest:
    fields = {"run_uid": "uid-f", "runtime": "python", "hops": 1} | head
    return InvokeRequest(namespace=NAMESPACE, invocation_id="i", deadline_ms=5000, user="eve", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        pytest.param({"hops": 0}, "StaleOwner", id="as a gateway would call"),
        pytest.param({"hops": -1}, "StaleOwner", id="with hops below none"),
        pytest.param({"pod_uid": ATTACKER, "attempt": 1}, "StaleOwner", id="in an epoch of its own"),
        pytest.param({"pod_uid": "pod-1", "attempt": 2}, "StaleOwner", id="in an epoch to come"),
        pytest.param({"runtime": "bash"}, "RunNotFound", id="of another Runtime"),
    ],
)
async def test_it_can_make_no_call_of_its_own(stack: Stack, head: dict[str, object], reason: str) -> None:
    connection = await attack(stack)
    reply = (await connection.call(METHOD_INVOKE, call(**head), b"{}", timeout=5)).decode(InvokeReply)
    assert reply.reason == reason
    assert stack.pods[0].serving.served == 0
    connection.close()


async def test_it_can_ask_for_nothing_but_calls(stack: Stack) -> None:
    connection = await attack(stack)
    for method in ("Hello", "UnregisterFunction", "RegisterFunction", "CancelTask", ""):
        with pytest.raises(CallError, match="UnknownMethod"):
            await connection.call(method, {}, timeout=5)
    connection.close()


async def test_at_another_pods_address_it_is_not_believed(stack: Stack) -> None:
    """It has taken over the address too; neither gateway nor peer says anything to it."""
    heard: list[Request] = []

    async def listen(request: Request) -> Reply:
        heard.append(request)
        return Reply(InvokeReply(status=200), b'{"outputs": {"forged": true}}')

    server = wire_server(listen, admit=admission(NAMESPACE, "python"))
    subject = names.runtimed(NAMESPACE, "python", ATTACKER)
    port = await server.listen_tcp("127.0.0.1", 0, tls=stack.installation.server_context(subject))
    for caller in (names.gateway(("localhost",)), names.runtimed(NAMESPACE, "python", "pod-1")):
        context = stack.installation.client_context(caller)
        pool = Pool(tls_dial(lambda context=context: context))  # type: ignore[misc]
        with pytest.raises(PeerUntrusted):
            await pool.connection(Peer("127.0.0.1", port, "pod-2", NAMESPACE, "python"))
        await pool.close()
    assert heard == []
    server.close()


async def test_what_it_breaks_is_its_own_connection(stack: Stack) -> None:
    rng = random.Random(9)
    good = frames.encode(frames.REQUEST, 1, 5000, b"\x92\xa6Invoke\x80", 0, b"")
    for number in range(30):
        connection = await attack(stack)
        transport = connection._transport
        assert transport is not None
        broken = bytearray(good * 3)
        for _ in range(number):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        transport.write(bytes(broken) + rng.randbytes(number * 50))
        if number % 2:
            connection.abort()
        else:
            connection.close()
        async with asyncio.timeout(5):
            await connection.closed
    reply, body = await stack.invoke(stack.pods[0], "f", b'"still"')
    assert (reply.status, body) == (200, b'{"outputs":{"echo":"still"}}')
