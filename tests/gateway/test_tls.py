"""TLS at the front: versions, resumption, how a client's half ends, and what is done to a handshake or a record."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dataplane.wire.messages import InvokeReply, InvokeRequest
from runtimes.contract.mux import Reply, Request
from tests.gateway.stage import FakeRuntimed, Stage, encode_request
from tests.kit.waiting import eventually


def context_of(gateway: Stage, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = gateway.installation.client_context(None)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


class Blocking:
    """A client on a thread's own socket: it sees TLS as it is, sessions and alerts too."""

    def __init__(self, gateway: Stage, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> None:
        raw = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
        self.tls = context.wrap_socket(raw, server_hostname="localhost", session=session)

    def exchange(self, data: bytes) -> bytes:
        """Send; the answer up to the end of its body, which is small."""
        self.tls.sendall(data)
        said = b""
        while b"\r\n\r\n" not in said or len(said) < _length(said):
            part = self.tls.recv(65536)
            if not part:
                break
            said += part
        return said

    def close(self) -> None:
        self.tls.close()


def _length(said: bytes) -> int:
    head, _, _ = said.partition(b"\r\n\r\n")
    return len(head) + 4 + int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])


@contextmanager
def quietly(client: Blocking) -> Iterator[Blocking]:
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_session_is_resumed(gateway: Stage, version: ssl.TLSVersion) -> None:
    context = context_of(gateway, version)

    def twice() -> tuple[bool, bool]:
        with quietly(Blocking(gateway, context)) as first:
            assert b" 200 " in first.exchange(encode_request())
            session, fresh = first.tls.session, first.tls.session_reused
        with quietly(Blocking(gateway, context, session)) as second:
            assert b" 200 " in second.exchange(encode_request())
            return bool(fresh), bool(second.tls.session_reused)

    assert await asyncio.to_thread(twice) == (False, True)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_what_is_older_than_tls_1_2_is_refused(gateway: Stage) -> None:
    context = context_of(gateway)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(Blocking, gateway, context)


async def test_a_client_may_not_renegotiate(gateway: Stage) -> None:
    """Each new handshake in a connection would cost us more than the client."""
    server = gateway.door._tls if gateway.door is not None else None
    assert server is not None
    assert server.minimum_version >= ssl.TLSVersion.TLSv1_2
    allowed = 1 << 8  # SSL_OP_ALLOW_CLIENT_RENEGOTIATION of OpenSSL 3, which has no name in Python
    assert not server.options & allowed


async def test_a_client_that_closes_its_half_of_tls_is_closed_and_its_call_runs_on(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    """close_notify ends both directions in TLS 1.2, and uvloop knows no half of TLS 1.3 either: nobody can be answered.
    The call is an ordinary one whose client has gone (I4): it finishes, holds its place until then, and is no error."""
    finish = asyncio.Event()

    async def slow(request: Request, head: InvokeRequest) -> Reply:
        await finish.wait()
        assert not request.cancelled
        return Reply(InvokeReply(status=200), request.body)

    runtimed.handler = slow
    loop = asyncio.get_running_loop()

    def half_close() -> bytes:
        with quietly(Blocking(gateway, context_of(gateway))) as client:
            client.tls.sendall(encode_request())
            loop.call_soon_threadsafe(lambda: None)
            while not runtimed.called.is_set():
                pass
            client.tls.unwrap().close()  # it waits for the close_notify of the other end
            return b"closed in order"

    assert await asyncio.to_thread(half_close) == b"closed in order"
    await eventually(lambda: not gateway.front.connections)
    assert gateway.invoker.in_flight == 1
    finish.set()
    await eventually(lambda: gateway.invoker.in_flight == 0)
    assert len(runtimed.seen) == 1
    assert gateway.metrics._answers == {(200, ""): 1}


async def test_a_client_whose_socket_ends_without_tls_saying_so_costs_nothing(
    gateway: Stage, runtimed: FakeRuntimed, caplog: pytest.LogCaptureFixture
) -> None:
    finish = asyncio.Event()

    async def slow(request: Request, head: InvokeRequest) -> Reply:
        await finish.wait()
        return Reply(InvokeReply(status=200), request.body)

    runtimed.handler = slow

    def torn(how: str) -> None:
        client = Blocking(gateway, context_of(gateway))
        client.tls.sendall(encode_request())
        if how == "reset":
            client.tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            socket.socket.shutdown(client.tls, socket.SHUT_WR)
        client.tls.close()

    for count, how in enumerate(("fin", "reset"), 1):
        await asyncio.to_thread(torn, how)
        await eventually(lambda: not gateway.front.connections)
        assert gateway.invoker.in_flight <= count
    finish.set()
    await eventually(lambda: gateway.invoker.in_flight == 0)
    assert "Traceback" not in caplog.text


async def test_records_of_one_byte_are_the_same_request(gateway: Stage) -> None:
    def drip() -> bytes:
        with quietly(Blocking(gateway, context_of(gateway))) as client:
            client.tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw = encode_request(body=b'{"a":1}')
            for byte in raw[:-1]:
                client.tls.send(bytes((byte,)))
            return client.exchange(raw[-1:])

    assert (await asyncio.to_thread(drip)).endswith(b'{"a":1}')


async def test_a_record_that_was_tampered_with_ends_its_connection_alone(gateway: Stage) -> None:
    honest = await gateway.client()

    def forged() -> bytes:
        client = Blocking(gateway, context_of(gateway))
        raw = socket.socket(fileno=client.tls.detach())
        try:
            raw.settimeout(10)
            raw.sendall(b"\x17\x03\x03\x00\x20" + b"\xaa" * 32)
            said = b""
            while part := raw.recv(4096):
                said += part
            return said
        except ConnectionError:
            return b""
        finally:
            raw.close()

    assert b"HTTP/1.1" not in await asyncio.to_thread(forged)
    assert (await honest.request()).status == 200
