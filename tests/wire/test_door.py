"""The door: whoever does not finish a handshake keeps nobody else out, and holds nothing for long."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from controlplane.pki import names
from dataplane.wire import door as door_module
from dataplane.wire.door import Door
from tests.kit.waiting import eventually
from tests.wire.installation import Installation

SUBJECT = names.gateway(("localhost",))


class Echo(asyncio.Protocol):
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.fixture
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("pki"))


@asynccontextmanager
async def opened(installation: Installation, **limits: Any) -> AsyncIterator[tuple[Door, int]]:
    door = Door(Echo, tls=installation.server_context(SUBJECT, clients=ssl.CERT_NONE), **limits)
    try:
        yield door, await door.open("127.0.0.1", 0)
    finally:
        door.close()
        await eventually(lambda: not door.handshakes)


async def served(installation: Installation, port: int) -> bool:
    """Whether a good client is answered."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=installation.client_context(None), server_hostname="localhost"
        )
        writer.write(b"hello")
        answered = await reader.readexactly(5) == b"hello"
        writer.close()
    return answered


@asynccontextmanager
async def strangers(port: int, count: int) -> AsyncIterator[list[socket.socket]]:
    """So many sockets that say nothing."""
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        await loop.sock_connect(one, ("127.0.0.1", port))
        made.append(one)
    try:
        yield made
    finally:
        for one in made:
            one.close()


async def test_a_client_is_served(installation: Installation) -> None:
    async with opened(installation) as (door, port):
        assert await served(installation, port)
        await eventually(lambda: door.handshakes == 0)


async def test_many_who_finish_no_handshake_keep_a_client_waiting_for_a_moment_only(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "HANDSHAKE_PRESSED_S", 0.2)
    async with opened(installation, handshakes_max=8) as (door, port), strangers(port, 50):
        await eventually(lambda: door.handshakes == 8)
        assert await served(installation, port)
        assert door.handshakes <= 8


async def test_a_few_who_finish_none_are_given_their_time_and_no_more(installation: Installation) -> None:
    async with opened(installation, timeout_s=0.2) as (door, port), strangers(port, 3) as silent:
        await eventually(lambda: door.handshakes == 3)
        assert await served(installation, port)
        await eventually(lambda: door.handshakes == 0)
        for one in silent:
            async with asyncio.timeout(5):
                try:
                    assert await asyncio.get_running_loop().sock_recv(one, 1000) == b""
                except ConnectionError:
                    pass


async def test_what_is_no_tls_is_closed_and_nothing_is_logged_about_it(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(installation) as (door, port), strangers(port, 2) as (plain, torn):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(plain, b"GET / HTTP/1.1\r\n\r\n")
        await loop.sock_sendall(torn, b"\x16\x03\x01\x7f\xff" + b"\0" * 4000)
        await eventually(lambda: door.handshakes == 0)
        assert await served(installation, port)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_without_descriptors_nothing_is_accepted_for_a_moment_and_then_again(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = 2
    accept = socket.socket.accept

    def exhausted(listener: socket.socket) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    monkeypatch.setattr(door_module, "ACCEPT_AGAIN_S", 0.01)
    async with opened(installation) as (_, port):
        assert await served(installation, port)
    assert failures == 0
    assert "no connection can be accepted" in caplog.text


async def test_a_closed_door_gives_up_who_stands_in_it(installation: Installation) -> None:
    async with opened(installation) as (door, port), strangers(port, 2):
        await eventually(lambda: door.handshakes == 2)
        door.stop()
        with pytest.raises(OSError):
            await served(installation, port)
        assert door.handshakes == 2
        door.close()
        await eventually(lambda: door.handshakes == 0)


async def test_every_address_of_the_machine_has_one_port() -> None:
    door = Door(Echo, tls=None)
    port = await door.open(None, 0)
    for host in ("127.0.0.1", "::1"):
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
    door.close()
