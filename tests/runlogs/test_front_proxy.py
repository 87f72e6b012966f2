"""Only the API server's front proxy is served: an impostor without its certificate never has its headers believed."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controlplane.kube.certificates import CertificateSource, Issued
from controlplane.kube.clock import SystemClock
from controlplane.kube.clustercas import NAME, NAMESPACE
from controlplane.kube.errors import NotFound, unavailable
from controlplane.kube.resources import CONFIGMAPS, RUNS
from controlplane.kube.types import ConfigMap, ObjectMeta
from controlplane.pki import names
from controlplane.pki.names import Subject
from controlplane.runlogs.api import Batch, Found, Missing, RunLogsApi
from controlplane.runlogs.frontproxy import FrontProxy
from controlplane.runlogs.podrecords import Leader, PodRecords
from controlplane.runlogs.server import AggregatedApi
from tests.kit.builders import function_run
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually
from tests.wire.installation import Installation

ROOT = "/apis/logs.kruntimes.io/v1alpha1"
LOG = f"{ROOT}/namespaces/default/runs/diagnose-service/log"
CLIENT = "front-proxy-client"
USER = {"X-Remote-User": "someone"}


class NoDialling:
    """A Run without a Pod needs no connection."""

    async def log(self, *_: Any) -> list[Any]:
        raise AssertionError("nobody is to be asked")

    async def journal(self, *_: Any) -> bytes:
        raise AssertionError("nobody is to be asked")


class Aggregated:
    """The aggregated API over TLS, a cluster that publishes its front proxy's CA, and who comes to it."""

    def __init__(self, folder: Path) -> None:
        self.ours = Installation(folder / "ours")
        self.proxies = Installation(folder / "front-proxy")
        self.others = Installation(folder / "others")
        self.kube = FakeKube()
        self.kube.seed(RUNS, function_run())
        self.publish(self.proxies, [CLIENT])
        self.port = 0

    def publish(self, authority: Installation, allowed: list[str], headers: list[str] | None = None) -> None:
        data = {
            "requestheader-client-ca-file": authority.root_pem,
            "requestheader-allowed-names": json.dumps(allowed),
            "requestheader-username-headers": json.dumps(headers or ["X-Remote-User"]),
        }
        self.kube.seed(CONFIGMAPS, ConfigMap(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE, uid="cm"), data=data))

    async def republish(self, authority: Installation) -> None:
        patch = {"data": {"requestheader-client-ca-file": authority.root_pem}}
        await self.kube.merge_patch(CONFIGMAPS, NAMESPACE, NAME, patch)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FrontProxy]:
        async def fetch(csr: bytes) -> Issued:
            chain = self.ours.authority.sign(csr, names.control_plane(("localhost",)))
            return Issued(chain.decode(), self.ours.root_pem)

        source = CertificateSource(fetch, clock=SystemClock())
        await source.start()
        front = FrontProxy(self.kube, SystemClock(), source)
        leader = Leader(self.kube, namespace="s", lease="", identity="me", host="localhost", port=0)
        records = PodRecords(self.kube, NoDialling(), leader, None)  # type: ignore[arg-type]
        api = AggregatedApi(RunLogsApi(records), front)
        self.port = await api.start("127.0.0.1", 0)
        following = asyncio.create_task(front.run())
        try:
            await eventually(lambda: front._published.ca)
            yield front
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await api.close()
            await source.close()

    async def get(
        self, path: str, shown: tuple[Installation, str] | None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """One request on a connection of its own: status and body; 0 where TLS itself refused."""
        context = ssl.create_default_context(cadata=self.ours.root_pem)
        if shown is not None:
            authority, name = shown
            context = authority.client_context(Subject(None, name, ()))
            context.load_verify_locations(cadata=self.ours.root_pem)
        connector = aiohttp.TCPConnector(ssl=context)
        url = f"https://localhost:{self.port}{path}"
        try:
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.get(url, headers=headers if headers is not None else USER) as answer,
            ):
                text = await answer.text()
                return answer.status, json.loads(text) if text.startswith("{") and "\n" not in text else text
        except (aiohttp.ClientError, ConnectionError, ssl.SSLError):
            return 0, None


@pytest.fixture
def aggregated(tmp_path: Path) -> Aggregated:
    return Aggregated(tmp_path)


async def test_the_front_proxy_is_served(aggregated: Aggregated):
    async with aggregated.serving():
        status, body = await aggregated.get(LOG, (aggregated.proxies, CLIENT))
        assert status == 200
        assert json.loads(body).keys() == {"cursor"}


async def test_an_impostor_without_a_certificate_is_not_believed(aggregated: Aggregated):
    async with aggregated.serving():
        for path in (LOG, ROOT, "/apis", "/anything"):
            status, body = await aggregated.get(
                path, None, {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
            )
            assert (status, body["reason"]) == (401, "Unauthorized"), path


async def test_an_impostor_of_another_authority_does_not_get_through_tls(aggregated: Aggregated):
    async with aggregated.serving():
        assert await aggregated.get(LOG, (aggregated.others, CLIENT)) == (0, None)


async def test_a_member_of_this_installation_is_no_front_proxy(aggregated: Aggregated):
    """Also where the cluster allows every name: a taken-over Runtime Pod has a certificate of ours."""
    await aggregated.kube.merge_patch(CONFIGMAPS, NAMESPACE, NAME, {"data": {"requestheader-allowed-names": "[]"}})
    async with aggregated.serving():
        assert await aggregated.get(LOG, (aggregated.ours, CLIENT)) == (0, None)
        assert (await aggregated.get(LOG, (aggregated.proxies, "any-name")))[0] == 200


async def test_another_client_of_the_same_authority_is_refused_by_its_name(aggregated: Aggregated):
    async with aggregated.serving():
        status, body = await aggregated.get(LOG, (aggregated.proxies, "another-proxy"))
        assert (status, body["reason"]) == (401, "Unauthorized")


async def test_the_front_proxy_must_name_a_user_in_a_published_header(aggregated: Aggregated):
    async with aggregated.serving():
        proxy = (aggregated.proxies, CLIENT)
        assert (await aggregated.get(LOG, proxy, {}))[0] == 401
        assert (await aggregated.get(LOG, proxy, {"X-Other-User": "someone"}))[0] == 401


async def test_a_ca_that_is_published_no_more_is_not_trusted_by_new_connections(aggregated: Aggregated):
    async with aggregated.serving() as front:
        await aggregated.republish(aggregated.others)
        await eventually(lambda: front._published.ca == aggregated.others.root_pem)
        assert await aggregated.get(LOG, (aggregated.proxies, CLIENT)) == (0, None)
        assert (await aggregated.get(LOG, (aggregated.others, CLIENT)))[0] == 200


async def test_a_renewed_certificate_is_shown_without_a_restart_and_clients_of_ours_are_still_not_trusted(
    aggregated: Aggregated,
):
    async def shown() -> bytes:
        context = ssl.create_default_context(cadata=aggregated.ours.root_pem)
        _, writer = await asyncio.open_connection("localhost", aggregated.port, ssl=context)
        certificate = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.transport.abort()
        return bytes(certificate)

    async with aggregated.serving() as front:
        before = await shown()
        await front._source.renew()
        assert await shown() != before
        assert await aggregated.get(LOG, (aggregated.ours, CLIENT)) == (0, None)
        assert (await aggregated.get(LOG, (aggregated.proxies, CLIENT)))[0] == 200


async def test_what_is_published_and_malformed_lets_nobody_in(aggregated: Aggregated):
    async with aggregated.serving() as front:
        patch = {"data": {"requestheader-allowed-names": "front-proxy-client"}}
        await aggregated.kube.merge_patch(CONFIGMAPS, NAMESPACE, NAME, patch)
        await eventually(lambda: not front._published.ca)
        assert await aggregated.get(LOG, (aggregated.proxies, CLIENT)) == (0, None)


async def test_discovery_and_refusals_are_those_of_an_api_server(aggregated: Aggregated):
    async with aggregated.serving():
        proxy = (aggregated.proxies, CLIENT)
        status, body = await aggregated.get(ROOT, proxy)
        assert (status, [each["name"] for each in body["resources"]]) == (200, ["runs/log", "runs/journal"])
        assert (await aggregated.get("/apis/logs.kruntimes.io", proxy))[1]["kind"] == "APIGroup"
        openapi = (await aggregated.get("/openapi/v3", proxy))[1]["paths"]
        (place,) = [entry["serverRelativeURL"] for entry in openapi.values()]
        for path in (place, "/openapi/v2"):
            paths = (await aggregated.get(path, proxy))[1]["paths"]
            assert [each.rpartition("/")[2] for each in paths] == ["journal", "log"]
        for path, code in {
            f"{ROOT}/namespaces/default/runs/absent/log": 404,
            f"{ROOT}/namespaces/default/runs/diagnose-service/other": 404,
            f"{ROOT}/namespaces/default/runs/diagnose-service": 404,
            f"{ROOT}/namespaces/default/runs/%2e%2e/log": 404,
            f"{ROOT}/namespaces/a%2fb/runs/x/log": 404,
            f"{LOG}?tailLines=501": 400,
            f"{LOG}?tailLines=-1": 400,
            f"{LOG}?cursor=nonsense": 400,
            f"{ROOT}/namespaces/default/runs/diagnose-service/journal?writer=../x": 400,
            f"{ROOT}/namespaces/default/runs/diagnose-service/journal?writer=runtimed": 404,
            "/version": 404,
        }.items():
            status, body = await aggregated.get(path, proxy)
            assert (status, body["kind"], body["apiVersion"]) == (code, "Status", "v1"), path


async def test_a_followed_log_that_breaks_does_not_look_like_its_end(aggregated: Aggregated):
    """krt asks on from its last cursor then; a clean end would say that the Run has ended."""
    async with aggregated.serving():
        context = aggregated.proxies.client_context(Subject(None, CLIENT, ()))
        context.load_verify_locations(cadata=aggregated.ours.root_pem)
        url = f"https://localhost:{aggregated.port}{LOG}?follow=true"
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), headers=USER) as session,
            session.get(url) as answer,
        ):
            assert answer.status == 200
            aggregated.kube.fail_next("get", unavailable("down", sent=False), plural="runs")
            with pytest.raises(aiohttp.ClientError):
                await answer.content.read()


async def test_a_run_is_told_apart_from_what_went_with_its_pod():
    """What is known is said: nothing at all is NotFound, part of it has a note."""

    class Partly:
        pace_s = 0.0

        def __init__(self, batch: Batch, ended: bool) -> None:
            self.batch, self.run = batch, Found(namespace="n", name="r", uid="u", ended=ended)

        async def find(self, namespace: str, name: str) -> Found:
            return self.run

        async def again(self, run: Found) -> Found | None:
            return None

        async def read(self, run: Found, offsets: dict[str, int], invocation: str) -> Batch:
            if self.batch.lines:
                offsets["a"] = 1
            return self.batch

        async def journal(self, run: Found, writer: str) -> bytes:
            return b""

    gone = Missing(404, "Pod p is gone")
    with pytest.raises(NotFound, match="Pod p is gone"):
        await RunLogsApi(Partly(Batch([], (gone,)), True)).serve("n", "r", "log", {})
    answer = await RunLogsApi(Partly(Batch([b'{"line":"x"}\n'], (gone,)), True)).serve("n", "r", "log", {})
    assert [list(json.loads(line)) for line in answer.body.splitlines()] == [["line"], ["note"], ["cursor"]]
