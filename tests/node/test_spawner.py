"""The node's end of the spawn protocol, over a real socket pair."""

import asyncio
import signal
import socket

import pytest

from controlplane.embedded import spawning
from controlplane.embedded.node.spawner import SpawnerClient, SupervisorGone


def pair() -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs.detach()


async def test_it_enumerates_first_passes_reports_on_and_ends_with_the_supervisor() -> None:
    ours, fd = pair()
    client = SpawnerClient(fd)
    heard: list[spawning.Report] = []
    running = asyncio.ensure_future(client.run(heard.append))
    loop = asyncio.get_running_loop()
    assert spawning.decode_request(await loop.sock_recv(ours, 4096)) == spawning.Enumerate()
    await loop.sock_sendall(ours, spawning.encode(spawning.Started("u/c/0", 7, 1)))
    await loop.sock_sendall(ours, spawning.encode(spawning.Enumerated()))
    ours.close()
    with pytest.raises(SupervisorGone):
        await running
    assert heard == [spawning.Started("u/c/0", 7, 1), spawning.Enumerated()]
    client.close()


async def test_what_does_not_fit_into_the_socket_waits_and_keeps_its_order() -> None:
    ours, fd = pair()
    client = SpawnerClient(fd)
    for number in range(600):
        client.spawn(spawning.Spawn(f"u/c/{number}", "t", {"PAD": "x" * 2_000}, "/dev/null", "c"))
    client.signal("u/c/0", signal.SIGTERM)
    client.forget("u/c/1")
    loop = asyncio.get_running_loop()
    requests = [spawning.decode_request(await loop.sock_recv(ours, spawning.MESSAGE_MAX_BYTES)) for _ in range(602)]
    assert [request.id for request in requests if isinstance(request, spawning.Spawn)] == [
        f"u/c/{number}" for number in range(600)
    ]
    assert requests[600:] == [spawning.Signal("u/c/0", 15), spawning.Forget("u/c/1")]
    ours.close()
    client.close()


async def test_a_request_that_fits_no_datagram_is_refused_here() -> None:
    ours, fd = pair()
    client = SpawnerClient(fd)
    with pytest.raises(spawning.MessageTooLong):
        client.spawn(spawning.Spawn("u/c/0", "t", {"BIG": "x" * spawning.MESSAGE_MAX_BYTES}, "/dev/null", "c"))
    ours.close()
    client.close()
