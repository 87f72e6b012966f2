"""The network hop over real TLS: who may connect, who is believed, and what a failure says."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.pki import names
from controlplane.pki.names import Subject
from dataplane.wire.dial import tls_dial
from dataplane.wire.errors import ConnectRefused, PeerUntrusted
from dataplane.wire.identity import GatewayIdentity, Identity, RuntimedIdentity
from dataplane.wire.listener import wire_server
from dataplane.wire.messages import METHOD_INVOKE, InvokeReply, InvokeRequest
from dataplane.wire.pool import Peer
from runtimes.contract.mux import ConnectionLost, Reply, Request
from tests.wire.installation import Installation

POD = "7d4f0f2a-6a4e-4c53-9b4b-3f1f7f1b2c3d"
OTHER_POD = "11111111-2222-4333-8444-555555555555"
CALL = InvokeRequest(
    namespace="default", runtime="python", run_uid="run-1", invocation_id="i-1", deadline_ms=1000, user="jane"
)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def stranger(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "other")


class Runtimed:
    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.seen: list[tuple[Identity, InvokeRequest, bytes]] = []
        self.server = wire_server(self.handle, admit=self.admit)
        self.port = 0

    def admit(self, identity: Identity) -> bool:
        match identity:
            case GatewayIdentity():
                return True
            case RuntimedIdentity("default", "python", _):
                return True
            case _:
                return False

    async def start(self) -> None:
        context = self.installation.server_context(names.runtimed("default", "python", POD))
        self.port = await self.server.listen_tcp("127.0.0.1", 0, tls=context)

    async def handle(self, request: Request) -> Reply:
        self.seen.append((request.peer, request.decode(InvokeRequest), request.body))
        return Reply(InvokeReply(status=200), request.body)

    def peer(self, pod_uid: str = POD) -> Peer:
        return Peer("127.0.0.1", self.port, pod_uid, "default", "python")


@pytest.fixture
async def runtimed(installation: Installation) -> AsyncIterator[Runtimed]:
    server = Runtimed(installation)
    await server.start()
    yield server
    server.server.close()


@pytest.mark.parametrize(
    ("subject", "identity"),
    [
        (names.gateway(("localhost",)), GatewayIdentity()),
        (names.runtimed("default", "python", OTHER_POD), RuntimedIdentity("default", "python", OTHER_POD)),
    ],
)
async def test_gateways_and_peers_are_served_and_known_by_certificate(
    installation: Installation, runtimed: Runtimed, subject: Subject, identity: Identity
) -> None:
    context = installation.client_context(subject)
    connection = await tls_dial(lambda: context)(runtimed.peer())
    reply = await connection.call(METHOD_INVOKE, CALL, b'{"a":1}', timeout=5)
    assert (reply.decode(InvokeReply).status, reply.body) == (200, b'{"a":1}')
    assert runtimed.seen == [(identity, CALL, b'{"a":1}')]
    connection.close()


@pytest.mark.parametrize(
    "subject",
    [
        names.control_plane(()),
        names.runtimed("default", "bash", OTHER_POD),
        names.runtimed("other", "python", OTHER_POD),
    ],
)
async def test_any_other_role_is_closed_without_an_answer(
    installation: Installation, runtimed: Runtimed, subject: Subject
) -> None:
    context = installation.client_context(subject)
    connection = await tls_dial(lambda: context)(runtimed.peer())
    with pytest.raises(ConnectionLost):
        await connection.call(METHOD_INVOKE, CALL, timeout=5)
    assert runtimed.seen == []


async def test_a_client_without_a_certificate_gets_nowhere(installation: Installation, runtimed: Runtimed) -> None:
    context = installation.client_context(None)
    with pytest.raises((PeerUntrusted, ConnectionLost)):
        connection = await tls_dial(lambda: context)(runtimed.peer())
        await connection.call(METHOD_INVOKE, CALL, timeout=5)
    assert runtimed.seen == []


async def test_a_certificate_of_another_installation_gets_nowhere(
    stranger: Installation, installation: Installation, runtimed: Runtimed
) -> None:
    context = stranger.client_context(names.gateway(()))
    context.load_verify_locations(cadata=installation.root_pem)
    with pytest.raises((PeerUntrusted, ConnectionLost)):
        connection = await tls_dial(lambda: context)(runtimed.peer())
        await connection.call(METHOD_INVOKE, CALL, timeout=5)
    assert runtimed.seen == []


async def test_an_address_taken_over_by_another_pod_is_not_believed(
    installation: Installation, runtimed: Runtimed
) -> None:
    context = installation.client_context(names.gateway(()))
    with pytest.raises(PeerUntrusted):
        await tls_dial(lambda: context)(runtimed.peer(OTHER_POD))
    assert runtimed.seen == []


async def test_the_right_name_under_the_wrong_identity_is_not_believed(installation: Installation) -> None:
    honest = names.runtimed("default", "python", POD)
    forged = Subject("kruntimes://runtimed/other/python/" + POD, "runtimed", honest.hosts)
    runtimed = Runtimed(installation)
    runtimed.port = await runtimed.server.listen_tcp("127.0.0.1", 0, tls=installation.server_context(forged))
    context = installation.client_context(names.gateway(()))
    with pytest.raises(PeerUntrusted):
        await tls_dial(lambda: context)(runtimed.peer())
    runtimed.server.close()


async def test_an_address_where_nobody_listens_is_refused_and_not_merely_slow(installation: Installation) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        context = installation.client_context(names.gateway(()))
        with pytest.raises(ConnectRefused):
            await tls_dial(lambda: context)(Peer("127.0.0.1", port, POD, "default", "python"))


async def test_a_listener_that_does_not_require_certificates_admits_nobody(installation: Installation) -> None:
    import ssl

    runtimed = Runtimed(installation)
    context = installation.server_context(names.runtimed("default", "python", POD), clients=ssl.CERT_OPTIONAL)
    runtimed.port = await runtimed.server.listen_tcp("127.0.0.1", 0, tls=context)
    client = installation.client_context(names.gateway(()))
    connection = await tls_dial(lambda: client)(runtimed.peer())
    with pytest.raises(ConnectionLost):
        await connection.call(METHOD_INVOKE, CALL, timeout=5)
    runtimed.server.close()
    await asyncio.sleep(0)
