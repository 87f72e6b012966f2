"""One whole gateway process, but for the process: it starts, follows, serves, drains and ends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from controlplane.kube.certificates import CertificateSource, Issued
from controlplane.kube.clock import SystemClock
from controlplane.kube.resources import CONFIGMAPS, ENDPOINTSLICES, EVENTS, RUNS, RUNTIMES
from controlplane.kube.types import ConfigMap, ObjectMeta, UserInfo
from controlplane.pki import names
from dataplane.gateway.config import Config, ConfigError, from_environ
from dataplane.gateway.main import main
from dataplane.gateway.process import Gateway
from dataplane.wire.messages import InvokeReply, InvokeRequest
from runtimes.contract.mux import Reply, Request
from tests.gateway.stage import PATH, POD, RUN, Client, FakeRuntimed
from tests.gateway.tables import TableKube
from tests.kit.builders import assigned, endpoint_slice, function_run, runtime_object, runtime_pod
from tests.kit.waiting import eventually
from tests.wire.installation import Installation

ENVIRONMENT = {
    "KUBECONFIG": "/k",
    "KRUNTIMES_SIGNER_URL": "https://signer",
    "KRUNTIMES_GATEWAY_HOSTS": "localhost, 127.0.0.1",
    "KRUNTIMES_GATEWAY_BIND": "127.0.0.1:0",
    "KRUNTIMES_METRICS_BIND": "127.0.0.1:0",
}


class Running:
    def __init__(self, installation: Installation, kube: TableKube) -> None:
        self.installation = installation
        self.kube = kube
        self.stop = asyncio.Event()
        self.port = 0
        self.gateway: Gateway | None = None

    async def run(self) -> None:
        async def fetch(csr: bytes) -> Issued:
            chain = self.installation.authority.sign(csr, names.gateway(("localhost",)))
            return Issued(chain.decode(), self.installation.root_pem)

        clock = SystemClock()
        certificates = CertificateSource(fetch, clock=clock)
        await certificates.start()
        try:
            self.gateway = Gateway(from_environ(ENVIRONMENT), clock, self.kube, certificates)
            await self.gateway.run(self.stop, self._listening)
        finally:
            await certificates.close()

    def _listening(self, port: int) -> None:
        self.port = port

    async def client(self, authority: Installation | None = None, subject: names.Subject | None = None) -> Client:
        context = (authority or self.installation).client_context(subject)
        context.load_verify_locations(cadata=self.installation.root_pem)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")
        return Client(reader, writer)


def seed(kube: TableKube, runtimed: FakeRuntimed) -> None:
    kube.tokens["good"] = (UserInfo(username="jane"), ("kruntimes",))
    kube.may = lambda spec: spec.user == "jane"
    kube.seed(RUNTIMES, runtime_object())
    kube.seed(RUNS, function_run("hello", uid=RUN, status=assigned("Ready", pod_uid=POD)))
    pod = runtime_pod(uid=POD, ip="127.0.0.1")
    kube.seed(ENDPOINTSLICES, endpoint_slice("python", pod, port=runtimed.port))


@asynccontextmanager
async def process(installation: Installation, kube: TableKube) -> AsyncIterator[Running]:
    running = Running(installation, kube)
    task = asyncio.create_task(running.run())
    try:
        await eventually(lambda: running.port or task.done())
        yield running
    finally:
        running.stop.set()
        async with asyncio.timeout(10):
            await task


async def test_a_gateway_serves_what_the_api_shows_and_connects_before_it_is_called(
    installation: Installation, runtimed: FakeRuntimed
) -> None:
    kube = TableKube()
    seed(kube, runtimed)
    async with process(installation, kube) as running:
        await eventually(lambda: len(runtimed.server.connections) == 1)
        client = await running.client()
        assert (await client.request()).status == 200
        assert (await client.request("GET", "/readyz")).status == 200
        before = len(kube.requests)
        for _ in range(20):
            assert (await client.request()).status == 200
        assert len(kube.requests) == before
        client.close()


async def test_a_drain_under_load_loses_no_call_and_then_ends(
    installation: Installation, runtimed: FakeRuntimed
) -> None:
    async def slow(request: Request, head: InvokeRequest) -> Reply:
        await asyncio.sleep(0.02)
        return Reply(InvokeReply(status=200), request.body)

    kube = TableKube()
    seed(kube, runtimed)
    runtimed.handler = slow
    async with process(installation, kube) as running:
        clients = [await running.client() for _ in range(8)]

        async def load(client: Client) -> list[int]:
            seen = []
            while True:
                response = await client.request()
                seen.append(response.status)
                if response.headers.get("connection") == "close":
                    return seen

        working = [asyncio.create_task(load(client)) for client in clients]
        await eventually(lambda: len(runtimed.seen) > 30)
        running.stop.set()
        seen = await asyncio.gather(*working)
        assert {status for statuses in seen for status in statuses} == {200}
        for client in clients:
            client.close()


async def test_an_owner_that_refuses_is_told_to_recovery_as_an_event(
    installation: Installation, runtimed: FakeRuntimed
) -> None:
    kube = TableKube()
    seed(kube, runtimed)
    runtimed.server.close()
    async with process(installation, kube) as running:
        client = await running.client()
        response = await client.request()
        assert response.reason == "OwnerUnreachable"
        await eventually(lambda: any(request.plural == "events" for request in kube.requests))
        (event,) = (await kube.list(EVENTS, "default")).items
        assert (event.reason, event.reporting_component, event.type) == (
            "OwnerUnreachable",
            "kruntimes-gateway",
            "Warning",
        )
        assert event.involved_object.uid == RUN
        assert POD in event.message
        client.close()


async def test_a_client_certificate_of_the_cluster_can_invoke_and_one_of_ours_cannot(
    installation: Installation, runtimed: FakeRuntimed, tmp_path: Path
) -> None:
    cluster, stranger = Installation(tmp_path / "cluster"), Installation(tmp_path / "stranger")
    kube = TableKube()
    seed(kube, runtimed)
    metadata = ObjectMeta(name="extension-apiserver-authentication", namespace="kube-system", uid="ca")
    kube.seed(CONFIGMAPS, ConfigMap(metadata=metadata, data={"client-ca-file": cluster.root_pem}))
    async with process(installation, kube) as running:
        await eventually(lambda: running.gateway is not None and running.gateway.accepts_certificates)
        bare = {"Authorization": "-"}
        jane = names.Subject(None, "jane", ())
        pod = names.runtimed("default", "python", POD)
        for authority, subject, status in (
            (cluster, jane, 200),
            (cluster, names.Subject(None, "joe", ()), 403),
            (installation, pod, 401),
            (installation, None, 401),
        ):
            client = await running.client(authority, subject)
            assert (await client.request(headers=bare)).status == status
            client.close()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            client = await running.client(stranger, jane)
            await client.request(headers=bare)


async def test_metrics_have_no_names_in_them(installation: Installation, runtimed: FakeRuntimed) -> None:
    kube = TableKube()
    seed(kube, runtimed)
    async with process(installation, kube) as running:
        client = await running.client()
        await client.request()
        await client.request(path="/nothing")
        assert running.gateway is not None
        text = running.gateway.metrics_text().decode()
        assert 'kruntimes_gateway_responses_total{code="200",reason=""} 1.0' in text
        assert 'kruntimes_gateway_responses_total{code="404",reason="NotFound"} 1.0' in text
        assert "kruntimes_gateway_in_flight 0.0" in text
        for secret in (RUN, POD, "hello", "jane", PATH):
            assert secret not in text
        client.close()


def test_a_wrong_environment_is_told_in_one_sentence_a_rule() -> None:
    config = from_environ(ENVIRONMENT)
    assert isinstance(config, Config)
    assert (config.hosts, config.endpoint_lag_s, config.permission) == (("localhost", "127.0.0.1"), 0.0, ("get", ""))
    with pytest.raises(ConfigError) as caught:
        from_environ(
            {
                "KRUNTIMES_GATEWAY_BIND": "nowhere",
                "KRUNTIMES_METRICS_BIND": "x:y",
                "KRUNTIMES_INVOKE_PERMISSION": "everything",
                "KRUNTIMES_ENDPOINT_LAG_SECONDS": "soon",
            }
        )
    for variable in ("GATEWAY_BIND", "METRICS_BIND", "SIGNER_URL", "GATEWAY_HOSTS", "PERMISSION", "LAG_SECONDS"):
        assert variable in str(caught.value)
    assert from_environ(ENVIRONMENT | {"KRUNTIMES_GATEWAY_BIND": "[::]:8443"}).host == "::"


def test_a_main_that_cannot_start_says_why_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    assert main([], {}) == 2
    assert main(["--port", "1"], ENVIRONMENT) == 2
