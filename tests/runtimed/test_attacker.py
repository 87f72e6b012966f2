"""A Runtime Pod that is fully taken over, with its certificate and key, against a peer of its own Runtime.

It may pass calls on, as any peer may. It is no gateway, it is no other Pod, and it disturbs nobody.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.pki import names
from dataplane.runtimed.port import admission
from dataplane.wire.dial import tls_dial
from dataplane.wire.errors import PeerUntrusted
from dataplane.wire.listener import PEER_CONNECTIONS_MAX, wire_server
from dataplane.wire.messages import METHOD_INVOKE, InvokeReply, InvokeRequest
from dataplane.wire.pool import Peer, Pool
from runtimes.contract import frames
from runtimes.contract.limits import BODY_MAX_BYTES, CHUNK_MAX_BYTES, CONNECTION_BYTES_MAX
from runtimes.contract.mux import CallError, Connection, Reply, Request, encode_head
from statemachine.ownership import PodFact
from statemachine.run import PodUID
from tests.gateway.stage import Client, run_fact, stage
from tests.kit.waiting import eventually
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


async def test_it_has_only_so_many_connections_and_those_keep_nobody_out(stack: Stack) -> None:
    opened = [await attack(stack) for _ in range(PEER_CONNECTIONS_MAX)]
    for _ in range(3):
        further = await attack(stack)
        async with asyncio.timeout(5):
            await further.closed
    assert not any(connection.closed.done() for connection in opened)
    reply, _ = await stack.invoke(stack.pods[0], "f")
    assert reply.status == 200
    opened[0].close()
    await opened[0].closed
    await eventually(lambda: len(stack.pods[0].server.connections) == PEER_CONNECTIONS_MAX)  # the gateway's among them
    again = await attack(stack)
    await again.ping(timeout=5)
    for connection in (*opened[1:], again):
        connection.close()


async def test_what_it_makes_a_peer_keep_is_bounded_and_leaves_room_for_others(stack: Stack) -> None:
    """Calls with the largest bodies that are never finished."""
    connection = await attack(stack)
    transport = connection._transport
    assert transport is not None
    head, chunk = encode_head((METHOD_INVOKE, call())), b"x" * CHUNK_MAX_BYTES
    count = 2 * CONNECTION_BYTES_MAX // BODY_MAX_BYTES
    for number in range(count):
        transport.write(frames.encode(frames.REQUEST, 2 * number + 1, 5000, head, BODY_MAX_BYTES, chunk))
        await asyncio.sleep(0)
    await connection.ping(timeout=20)
    (theirs,) = (one for one in stack.pods[0].server.connections if getattr(one.peer, "pod_uid", "") == ATTACKER)
    assert theirs._bytes_received <= CONNECTION_BYTES_MAX
    assert len(theirs._partial) == CONNECTION_BYTES_MAX // BODY_MAX_BYTES
    reply, _ = await stack.invoke(stack.pods[0], "f", b'"' + b"x" * 500_000 + b'"')
    assert reply.status == 200
    connection.abort()
    await eventually(lambda: theirs not in stack.pods[0].server.connections)
    assert len(theirs._partial) == 0


async def test_the_gateways_door_does_not_know_it_and_what_a_caller_shows_never_reaches_it(stack: Stack) -> None:
    """It owns a Run, is called through a gateway, and shows its own certificate at the gateway's front."""
    token, heard = "the-callers-own-secret", []

    async def listen(request: Request) -> Reply:
        heard.append(bytes(request.head) + request.body)
        timing = (("a\r\nX-Injected: 1", 1.0),)
        return Reply(InvokeReply(status=200, server_timing=timing), b'{"outputs": {}}')

    server = wire_server(listen, admit=admission(NAMESPACE, "python"))
    subject = names.runtimed(NAMESPACE, "python", ATTACKER)
    port = await server.listen_tcp("127.0.0.1", 0, tls=stack.installation.server_context(subject))
    async with stage(stack.installation) as gateway:
        gateway.kube.users[token] = gateway.kube.users["good"]
        gateway.see_run(run_fact(pod_uid=PodUID(ATTACKER)))
        gateway.see_pod(PodFact(PodUID(ATTACKER), NAMESPACE, "python", "127.0.0.1", port, True))
        client = await gateway.client()
        answer = await client.request(headers={"Authorization": f"Bearer {token}", "Cookie": token})
        assert (answer.status, "x-injected" in answer.headers) == (200, False)
        assert len(heard) == 1
        assert token.encode() not in heard[0]
        context = stack.installation.client_context(subject)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", gateway.port, ssl=context, server_hostname="localhost"
        )
        own = Client(reader, writer)
        assert (await own.request(headers={"Authorization": "-"})).reason == "Unauthenticated"
        own.close()
    server.close()
