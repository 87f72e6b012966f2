"""The signer and its holders over real TLS: who gets which certificate, and that renewal costs no connection."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509

from controlplane.kube.certificates import CertificateRefused, CertificateSource, Issued, ask_signer
from controlplane.kube.errors import unavailable
from controlplane.kube.resources import PODS
from controlplane.kube.types import UserInfo
from controlplane.pki import names
from controlplane.pki.ca import Authority, create_installation
from controlplane.pki.signer import GATEWAY_USER, Signer, SignerRefusal, SigningRequest
from dataplane.wire.identity import GatewayIdentity, RuntimedIdentity, peer_identity, server_hostname
from tests.kit.builders import runtime_pod
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually
from tests.pki.test_ca import request

POD_NAME, POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


class Installation:
    """A CA, a Kubernetes with a gateway's and a Pod's token, and a signer that listens."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(int(datetime.now(UTC).timestamp()) * 1_000_000)
        create_installation(folder / "pki", clock=self.clock)
        self.authority = Authority.load(folder / "pki", clock=self.clock)
        self.kube = FakeKube(self.clock)
        self.kube.tokens["gateway"] = (UserInfo(username=GATEWAY_USER), ("kruntimes",))
        pod = self.kube.seed(PODS, runtime_pod(uid="pod-1"))
        self.bound("pod", "default", "runtime-python", pod.metadata.name, "pod-1")
        self.signer = Signer(self.kube, self.authority, self.clock)
        self.ca_file = folder / "pki" / "root.crt"
        self.folder = folder
        self.url = ""

    def bound(self, token: str, namespace: str, account: str, pod: str, uid: str) -> None:
        user = UserInfo(
            username=f"system:serviceaccount:{namespace}:{account}", extra={POD_NAME: (pod,), POD_UID: (uid,)}
        )
        self.kube.tokens[token] = (user, ("kruntimes",))

    def source(self, token: str, *hosts: str) -> CertificateSource:
        file = self.folder / f"token-{token}"
        file.write_text(token + "\n")
        return CertificateSource.from_signer(
            signer_url=self.url, ca_file=str(self.ca_file), token_file=str(file), hosts=hosts, clock=self.clock
        )


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    made = Installation(tmp_path)
    port = await made.signer.start("127.0.0.1", 0, ("localhost", "127.0.0.1"))
    made.url = f"https://127.0.0.1:{port}"
    yield made
    await made.signer.close()


@contextlib.asynccontextmanager
async def started(*sources: CertificateSource) -> AsyncIterator[None]:
    async with asyncio.timeout(10):
        await asyncio.gather(*(source.start() for source in sources))
    try:
        yield
    finally:
        for source in sources:
            await source.close()


async def test_gateway_and_runtimed_know_each_other_by_certificate(installation: Installation) -> None:
    gateway, runtimed = installation.source("gateway", "gateway.example.com"), installation.source("pod")
    async with started(gateway, runtimed):
        met: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            met.set_result(peer_identity(writer.get_extra_info("ssl_object")))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=runtimed.server_context())
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=gateway.client_context(), server_hostname=server_hostname("pod-1")
        )
        assert peer_identity(writer.get_extra_info("ssl_object")) == RuntimedIdentity("default", "python", "pod-1")
        assert await asyncio.wait_for(met, 5) == GatewayIdentity()
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await asyncio.open_connection(
                "127.0.0.1", port, ssl=gateway.client_context(), server_hostname=server_hostname("pod-2")
            )
        server.close()
        await server.wait_closed()
    assert installation.ca_file.read_text().strip() in gateway.root_pem


@pytest.mark.parametrize(
    ("token", "status", "message"),
    [
        ("unknown", 401, "not valid"),
        ("api-audience", 401, "audience"),
        ("somebody", 403, "neither the gateway"),
        ("unbound", 403, "not bound to a Pod"),
        ("absent-pod", 403, "no Pod"),
        ("other-uid", 403, "another UID"),
        ("other-runtime", 403, "none of Runtime bash"),
        ("ended", 403, "has ended"),
    ],
)
async def test_who_is_not_what_the_token_says_gets_nothing(
    installation: Installation, token: str, status: int, message: str
) -> None:
    kube = installation.kube
    kube.tokens["api-audience"] = (UserInfo(username=GATEWAY_USER), ())
    kube.tokens["somebody"] = (UserInfo(username="system:serviceaccount:default:default"), ("kruntimes",))
    kube.tokens["unbound"] = (UserInfo(username="system:serviceaccount:default:runtime-python"), ("kruntimes",))
    kube.seed(PODS, runtime_pod("runtime-python-ended", uid="pod-9", phase="Failed"))
    installation.bound("absent-pod", "default", "runtime-python", "nobody", "pod-1")
    installation.bound("other-uid", "default", "runtime-python", "runtime-python-1", "pod-2")
    installation.bound("other-runtime", "default", "runtime-bash", "runtime-python-1", "pod-1")
    installation.bound("ended", "default", "runtime-python", "runtime-python-ended", "pod-9")
    with pytest.raises(SignerRefusal, match=message) as caught:
        await installation.signer.sign(token, SigningRequest(request().decode()))
    assert caught.value.status == status


async def test_a_runtimed_cannot_ask_for_hosts_of_its_own(installation: Installation) -> None:
    issued = await installation.signer.sign("pod", SigningRequest(request().decode(), hosts=("gateway.example.com",)))
    leaf = x509.load_pem_x509_certificate(issued.certificate.encode())
    found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in found] == [
        "kruntimes://runtimed/default/python/pod-1",
        "pod-1.runtimed.kruntimes.internal",
    ]


async def test_a_kubernetes_that_is_away_is_said_and_retried(installation: Installation) -> None:
    installation.kube.fail_next("create", unavailable("down", sent=False))
    installation.kube.fail_next("create", unavailable("down", sent=False))
    async with started(installation.source("pod")):
        assert installation.signer.refused == 2


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"{}", 401),
        ({"Authorization": "Basic x"}, b"{}", 401),
        ({"Authorization": "Bearer "}, b"{}", 401),
        ({"Authorization": "Bearer gateway"}, b"", 400),
        ({"Authorization": "Bearer gateway"}, b"[]", 400),
        ({"Authorization": "Bearer gateway"}, b'{"csr": 5}', 400),
        ({"Authorization": "Bearer gateway"}, b'{"csr": "x", "more": 1}', 400),
        ({"Authorization": "Bearer gateway"}, b'{"csr": "not a request"}', 400),
        ({"Authorization": "Bearer gateway"}, b'{"csr": "x", "hosts": ["a b"]}', 400),
        ({"Authorization": "Bearer gateway"}, b"x" * 40_000, 413),
    ],
)
async def test_a_bad_request_is_refused_with_a_status(
    installation: Installation, headers: dict[str, str], body: bytes, status: int
) -> None:
    context = ssl.create_default_context(cafile=str(installation.ca_file))
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{installation.url}/v1/certificates", data=body, headers=headers, ssl=context) as answer,
    ):
        assert answer.status == status
        if status != 413:
            content = msgspec.json.decode(await answer.read())
            assert (content["kind"], content["code"]) == ("Status", status)
            assert content["message"]


async def test_a_signer_of_another_installation_is_not_believed(installation: Installation, tmp_path: Path) -> None:
    create_installation(tmp_path / "other")
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await ask_signer(installation.url, (tmp_path / "other" / "root.crt").read_text(), "pod", request(), ())


async def test_an_answer_for_another_key_is_not_taken(installation: Installation) -> None:
    async def fetch(_: bytes) -> Issued:
        chain = installation.authority.sign(request(), names.gateway(()))
        return Issued(chain.decode(), installation.authority.root_pem.decode())

    source = CertificateSource(fetch, clock=installation.clock)
    with pytest.raises(CertificateRefused, match="another key"):
        await source.renew()


async def test_renewal_under_load_loses_no_call_and_reaches_new_connections(installation: Installation) -> None:
    gateway, runtimed = installation.source("gateway"), installation.source("pod")
    async with started(gateway, runtimed):
        serials: set[int] = set()
        calls = {"done": 0}

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    writer.write(await reader.readexactly(4))
                    await writer.drain()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=runtimed.server_context())
        port = server.sockets[0].getsockname()[1]
        context = gateway.client_context()

        async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=server_hostname("pod-1")
            )
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            serials.add(x509.load_der_x509_certificate(certificate).serial_number)
            return reader, writer

        async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"ping")
            assert await asyncio.wait_for(reader.readexactly(4), 5) == b"ping"
            calls["done"] += 1

        over = asyncio.Event()

        async def keep_calling() -> None:
            reader, writer = await dial()
            while not over.is_set():
                await call(reader, writer)
            writer.close()

        async def keep_dialling() -> None:
            while not over.is_set():
                reader, writer = await dial()
                await call(reader, writer)
                writer.close()
                await asyncio.sleep(0.001)

        load = [asyncio.create_task(keep_calling()) for _ in range(2)]
        load += [asyncio.create_task(keep_dialling()) for _ in range(2)]
        for _ in range(3):
            before, count = runtimed.renewals, calls["done"]
            await asyncio.gather(gateway.renew(), runtimed.renew())
            assert runtimed.renewals == before + 1
            await eventually(lambda count=count: calls["done"] > count + 20)
        over.set()
        await asyncio.gather(*load)
        assert len(serials) >= 3
        server.close()
        await server.wait_closed()


async def test_a_holder_renews_by_itself_at_two_thirds(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.kube.certificates.LOOK_S", 0.01)
    source = installation.source("pod")
    async with started(source):
        first = source.expires_us
        installation.clock.advance(timedelta(hours=14).total_seconds())
        assert source.renewals == 1
        installation.clock.advance(timedelta(hours=3).total_seconds())
        await eventually(lambda: source.renewals == 2)
        assert source.expires_us > first


async def test_a_failed_renewal_keeps_what_is_there(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controlplane.kube.certificates.LOOK_S", 0.01)
    source = installation.source("pod")
    async with started(source):
        context, expires = source.client_context(), source.expires_us
        (installation.folder / "token-pod").write_text("revoked")
        installation.clock.advance(timedelta(hours=17).total_seconds())
        await eventually(lambda: "no new certificate yet" in caplog.text)
        assert source.expires_us == expires
        assert context.cert_store_stats()["x509_ca"] == 1
        (installation.folder / "token-pod").write_text("pod")
        await eventually(lambda: source.renewals == 2)


async def test_contexts_need_a_certificate(installation: Installation) -> None:
    with pytest.raises(RuntimeError, match="before start"):
        installation.source("pod").server_context()


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 8
