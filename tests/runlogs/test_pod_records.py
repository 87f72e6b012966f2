"""Logs and journals on a cluster, over real mutual TLS: whom the control plane asks, and who may ask."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controlplane.kube.clock import SystemClock
from controlplane.kube.errors import NotFound, Unavailable
from controlplane.kube.journalfile import JournalFile
from controlplane.kube.records import METHOD_JOURNAL, JournalRequest, RecordFiles
from controlplane.kube.resources import LEASES, PODS, RUNS
from controlplane.kube.types import Lease, LeaseSpec, ObjectMeta
from controlplane.pki import names
from controlplane.runlogs.api import RunLogsApi
from controlplane.runlogs.dialling import Dialling
from controlplane.runlogs.podrecords import Leader, PodRecords
from controlplane.runlogs.service import admit
from dataplane.runtimed.port import Port, admission
from dataplane.wire.listener import wire_server
from dataplane.wire.messages import METHOD_INVOKE
from runtimes.contract.endpoint import Server, connect_tcp
from runtimes.contract.mux import CallError, ConnectionLost, Reply, Request
from statemachine.events import CancelRequested, Role
from statemachine.journal import decode
from statemachine.run import RunUID
from tests.kit.builders import assigned, function_run, runtime_pod
from tests.kit.fakekube import FakeKube
from tests.runlogs.test_runfiles import line
from tests.wire.installation import Installation

UID = "2c24c1f0-9f8f-4f80-82d5-3dd16a12d1e6"
POD = "11111111-0000-0000-0000-000000000000"
OLDER = "22222222-0000-0000-0000-000000000000"
ADDRESSES = {POD: "127.0.0.11", OLDER: "127.0.0.12"}


class Invoked:
    """Counts what comes to the side of invocations."""

    def __init__(self) -> None:
        self.calls: list[Request] = []

    def handle(self, request: Request) -> None:
        self.calls.append(request)
        request.respond(Reply())


class Cluster:
    """Two Pods of one Runtime with runtimeds' ports, and a control plane that asks them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.installation = Installation(folder / "pki")
        self.kube = FakeKube()
        self.port = 0
        self.invoked = Invoked()
        self.servers: dict[str, Any] = {}
        context = self.installation.client_context(names.control_plane(("localhost",)))
        self.dialling = Dialling(lambda: context)

    async def pod(self, uid: str, *, printed: bytes = b"", name: str = "") -> None:
        logs = self.folder / uid / "logs"
        logs.mkdir(parents=True)
        if printed:
            (logs / f"{UID}.ndjson").write_bytes(printed)
        journal = self.folder / uid / "journal"
        files = RecordFiles(logs=logs, journal=journal, mark=f"{uid[:8]}.")
        server = wire_server(Port(self.invoked, files).handle, admit=admission("default", "python"))
        tls = self.installation.server_context(names.runtimed("default", "python", uid))
        self.port = await server.listen_tcp(ADDRESSES[uid], self.port, tls=tls)
        self.servers[uid] = server
        self.kube.seed(PODS, runtime_pod(name or f"pod-{uid[:1]}", uid=uid, ip=ADDRESSES[uid]))

    def api(self, *, lease: str = "", journal: Path | None = None, leader_port: int = 0) -> RunLogsApi:
        leader = Leader(self.kube, namespace="s", lease=lease, identity="me", host="localhost", port=leader_port)
        return RunLogsApi(PodRecords(self.kube, self.dialling, leader, journal, runtimed_port=self.port))

    async def log(self, **query: str) -> list[dict[str, Any]]:
        answer = await self.api().serve("default", "diagnose-service", "log", query)
        return [json.loads(each) for each in answer.body.splitlines()]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.dialling.close()
    for server in made.servers.values():
        server.close()


def write_journal(folder: Path, writer: str, *, records: int = 2) -> None:
    journal = JournalFile(folder, writer=writer, role=Role.RUNTIMED, clock=SystemClock())
    for number in range(records):
        journal.append(RunUID(UID), CancelRequested(at_us=number))
    journal.close()


async def test_lines_come_from_every_pod_where_the_run_was_in_the_order_of_time(cluster: Cluster):
    await cluster.pod(POD, printed=line("third", 3) + line("fourth", 4, "i"))
    await cluster.pod(OLDER, printed=line("first", 1) + line("second", 2))
    cluster.kube.seed(RUNS, function_run(uid=UID, status=assigned("Ready", pod="pod-1", pod_uid=POD)))
    lines = await cluster.log()
    assert [each.get("line") for each in lines] == ["first", "second", "third", "fourth", None]
    assert [each.get("line") for each in await cluster.log(invocation="i")] == ["fourth", None]
    assert [each.get("line") for each in await cluster.log(tailLines="1")] == ["fourth", None]
    with (cluster.folder / OLDER / "logs" / f"{UID}.ndjson").open("ab") as file:
        file.write(line("late", 5))
    assert [each.get("line") for each in await cluster.log(cursor=lines[-1]["cursor"])] == ["late", None]


async def test_a_long_log_comes_in_parts_and_none_of_it_is_lost(cluster: Cluster):
    lines = [line(f"{number} {'x' * 1000}") for number in range(4_000)]
    await cluster.pod(POD, printed=b"".join(lines))
    await cluster.pod(OLDER, printed=b"".join(lines[:2_500]))
    cluster.kube.seed(RUNS, function_run(uid=UID, status=assigned("Ready", pod="pod-1", pod_uid=POD)))
    answer = await cluster.api().serve("default", "diagnose-service", "log", {})
    assert answer.stream is not None
    parts = [part async for part in answer.stream]
    assert max(map(len, parts)) < 6 << 20
    found = [json.loads(each) for part in parts for each in part.splitlines()]
    assert len([each for each in found if "line" in each]) == 6_500
    assert "cursor" in found[-1]
    tail = await cluster.log(tailLines="3")
    assert [each["line"].split()[0] for each in tail[:-1]] == ["3997", "3998", "3999"]


async def test_what_went_with_a_pod_is_said(cluster: Cluster):
    gone = "33333333-0000-0000-0000-000000000000"
    cluster.kube.seed(RUNS, function_run(uid=UID, status=assigned("Ready", pod="lost", pod_uid=gone)))
    with pytest.raises(NotFound, match="Pod lost is gone, and what diagnose-service printed there went with it"):
        await cluster.log()
    await cluster.pod(OLDER, printed=line("before it moved"))
    lines = await cluster.log()
    assert lines[0]["line"] == "before it moved"
    assert "Pod lost is gone" in lines[1]["note"]
    with pytest.raises(NotFound, match="Pod lost"):
        await cluster.api().serve("default", "diagnose-service", "journal", {"writer": "runtimed"})


async def test_an_owner_that_does_not_answer_is_no_empty_log(cluster: Cluster):
    await cluster.pod(POD)
    cluster.servers[POD].close()
    cluster.kube.seed(RUNS, function_run(uid=UID, status=assigned("Ready", pod="pod-1", pod_uid=POD)))
    with pytest.raises(Unavailable, match="Pod pod-1 does not say what was printed"):
        await cluster.log()


async def test_a_pod_with_the_certificate_of_another_is_not_believed(cluster: Cluster):
    await cluster.pod(POD, printed=line("forged"))
    stolen = runtime_pod("pod-2", uid=OLDER, ip=ADDRESSES[POD])  # its address now is that of another Pod
    cluster.kube.seed(PODS, stolen)
    cluster.kube.seed(RUNS, function_run(uid=UID, status=assigned("Ready", pod="pod-2", pod_uid=OLDER)))
    assert "pod-2 does not say what was printed: TLS failed" in (await cluster.log())[1]["note"]


async def test_the_owners_journal_is_read_from_its_runtimed(cluster: Cluster):
    await cluster.pod(POD)
    write_journal(cluster.folder / POD / "journal", f"runtimed-{POD}")
    cluster.kube.seed(RUNS, function_run(uid=UID, status=assigned("Ready", pod="pod-1", pod_uid=POD)))
    for writer in ("runtimed", f"runtimed-{POD}"):
        answer = await cluster.api().serve("default", "diagnose-service", "journal", {"writer": writer})
        assert len(list(decode(answer.body))) == 2
    with pytest.raises(NotFound, match="no Pod of Runtime python"):
        await cluster.api().serve("default", "diagnose-service", "journal", {"writer": f"runtimed-{OLDER}"})


@asynccontextmanager
async def leading(cluster: Cluster) -> AsyncIterator[int]:
    """Another control plane, which leads and has a journal."""
    write_journal(cluster.folder / "leader", "controlplane", records=3)
    server = Server(RecordFiles(logs=None, journal=cluster.folder / "leader").handle, on_connect=admit)
    tls = cluster.installation.server_context(names.control_plane(("localhost",)))
    port = await server.listen_tcp("127.0.0.13", 0, tls=tls)
    cluster.kube.seed(PODS, runtime_pod("leader", namespace="s", uid="leader", ip="127.0.0.13"))
    cluster.kube.seed(
        LEASES, Lease(metadata=ObjectMeta(name="l", namespace="s"), spec=LeaseSpec(holder_identity="leader"))
    )
    try:
        yield port
    finally:
        server.close()


async def test_a_replica_that_waits_answers_with_the_leaders_journal(cluster: Cluster):
    cluster.kube.seed(RUNS, function_run(uid=UID))
    async with leading(cluster) as port:
        api = cluster.api(lease="l", journal=cluster.folder / "own", leader_port=port)
        answer = await api.serve("default", "diagnose-service", "journal", {})
        assert len(list(decode(answer.body))) == 3


async def test_a_run_that_no_journal_knows_is_not_found_with_a_reason(cluster: Cluster):
    cluster.kube.seed(RUNS, function_run(uid=UID))
    with pytest.raises(NotFound, match="has no record of this Run: its journal goes back to its own start"):
        await cluster.api(journal=cluster.folder / "own").serve("default", "diagnose-service", "journal", {})


@pytest.mark.parametrize("subject", [names.gateway(()), names.runtimed("default", "python", OLDER)])
async def test_only_control_planes_read_a_leaders_journal(cluster: Cluster, subject: names.Subject):
    async with leading(cluster) as port:
        tls = cluster.installation.client_context(subject)
        with pytest.raises((ConnectionLost, ConnectionError, OSError)):
            connection = await connect_tcp("127.0.0.13", port, tls=tls, server_hostname="localhost")
            await connection.call(METHOD_JOURNAL, JournalRequest(run_uid=UID), timeout=5)


@pytest.mark.parametrize("subject", [names.gateway(()), names.runtimed("default", "python", OLDER)])
async def test_gateways_and_peers_read_no_records_and_the_control_plane_invokes_nothing(
    cluster: Cluster, subject: names.Subject
):
    await cluster.pod(POD, printed=line("printed"))

    async def call(who: names.Subject, method: str) -> Reply:
        tls = cluster.installation.client_context(who)
        host = names.runtimed_host(POD)
        connection = await connect_tcp(ADDRESSES[POD], cluster.port, tls=tls, server_hostname=host)
        try:
            return await connection.call(method, JournalRequest(run_uid=UID), timeout=5)
        finally:
            connection.close()

    await call(subject, METHOD_JOURNAL)  # goes to the side of invocations, which knows no such method
    assert [request.method for request in cluster.invoked.calls] == [METHOD_JOURNAL]
    with pytest.raises(CallError, match="Invoke is not for it"):
        await call(names.control_plane(()), METHOD_INVOKE)
    assert len(cluster.invoked.calls) == 1
