"""A whole gateway without Kubernetes: real TLS, real frames, facts and decisions given by hand."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from controlplane.kube.api import Kube
from controlplane.kube.clock import SystemClock
from controlplane.kube.errors import unavailable
from controlplane.kube.resources import TOKENREVIEWS, Kind
from controlplane.kube.types import (
    SubjectAccessReview,
    SubjectAccessReviewStatus,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from controlplane.pki import names
from dataplane.gateway.auth import Gatekeeper
from dataplane.gateway.forward import Forwarder
from dataplane.gateway.front import Front
from dataplane.gateway.holding import Changes
from dataplane.gateway.invoke import Invoker
from dataplane.gateway.metrics import Metrics
from dataplane.gateway.site import Site
from dataplane.gateway.suspects import OwnerReports, Suspects
from dataplane.wire.dial import tls_dial
from dataplane.wire.door import Door
from dataplane.wire.listener import wire_server
from dataplane.wire.messages import METHOD_MODE, InvokeReply, InvokeRequest, ModeReply, ModeRequest
from dataplane.wire.pool import Pool
from runtimes.contract.mux import Reply, Request
from statemachine.ownership import Owner, PodFact, Projection, RunFact
from statemachine.run import Mode, Phase, PodUID, RunUID
from tests.kit.waiting import eventually
from tests.wire.installation import Installation

RUN = RunUID("2c24c1f0-9f8f-4f80-82d5-3dd16a12d1e6")
POD = PodUID("7d4f0f2a-6a4e-4c53-9b4b-3f1f7f1b2c3d")
PATH = f"/v1/namespaces/default/runtimes/python/runs/{RUN}:invoke"


class FakeKube:
    """Answers reviews: `users` by token, `allowed` (user, Run name). `down` makes it unreachable."""

    def __init__(self) -> None:
        self.users: dict[str, UserInfo] = {"good": UserInfo(username="jane", groups=("system:authenticated",))}
        self.allowed: set[tuple[str, str]] = {("jane", "hello")}
        self.down = False
        self.asked: list[TokenReview | SubjectAccessReview] = []
        self.answering = asyncio.Event()
        self.answering.set()

    async def create_review(self, kind: Kind[Any], review: Any) -> Any:
        self.asked.append(review)
        await self.answering.wait()
        if self.down:
            raise unavailable("connection refused", sent=False)
        if kind is TOKENREVIEWS:
            user = self.users.get(review.spec.token)
            status = TokenReviewStatus(authenticated=user is not None, user=user or UserInfo())
            return TokenReview(spec=review.spec, status=status)
        attributes = review.spec.resource_attributes
        allowed = (review.spec.user, attributes.name) in self.allowed
        return SubjectAccessReview(spec=review.spec, status=SubjectAccessReviewStatus(allowed=allowed))


Handler = Callable[[Request, InvokeRequest], Awaitable[Reply]]


async def echo(request: Request, head: InvokeRequest) -> Reply:
    timing = (("runtimed", 0.2), ("worker", 0.1))
    return Reply(InvokeReply(status=200, server_timing=timing), request.body)


class FakeRuntimed:
    """A Pod's runtimed on a port of its own: records what it gets, answers as `handler` says."""

    def __init__(self, installation: Installation, pod_uid: PodUID = POD) -> None:
        self.pod_uid = pod_uid
        self.handler: Handler = echo
        self.seen: list[InvokeRequest] = []
        self.modes: dict[str, Mode] = {}
        self.asked = 0
        self.silent = False
        """It does not say what kind of Run one is."""
        self.called = asyncio.Event()
        self.server = wire_server(self._handle, admit=lambda identity: True)
        self._context = installation.server_context(names.runtimed("default", "python", pod_uid))
        self.port = 0

    async def start(self) -> "FakeRuntimed":
        self.port = await self.server.listen_tcp("127.0.0.1", 0, tls=self._context)
        return self

    async def _handle(self, request: Request) -> Reply:
        if request.method == METHOD_MODE:
            self.asked += 1
            if self.silent:
                await asyncio.Event().wait()
            return Reply(ModeReply(self.modes.get(request.decode(ModeRequest).run_uid)))
        head = request.decode(InvokeRequest)
        self.seen.append(head)
        self.called.set()
        return await self.handler(request, head)

    def fact(self, *, ready: bool = True) -> PodFact:
        return PodFact(self.pod_uid, "default", "python", "127.0.0.1", self.port, ready)


def run_fact(
    uid: RunUID = RUN,
    phase: Phase = Phase.READY,
    *,
    attempt: int = 1,
    pod_uid: PodUID | None = POD,
    name: str = "hello",
) -> RunFact:
    return RunFact(uid, "default", "python", name, phase, attempt, None if pod_uid is None else "pod", pod_uid)


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes
    interim: list[int] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """The reason of an error, after the checks that every error passes (I1)."""
        status = self.json
        assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
        assert status["code"] == self.status
        assert status["message"]
        assert status["kruntimes"]["hop"]
        assert isinstance(status["kruntimes"]["retryable"], bool)
        assert status["kruntimes"]["invocationId"] == self.headers["x-kruntime-invocation-id"]
        retry_after = status["details"].get("retryAfterSeconds")
        assert (None if retry_after is None else str(retry_after)) == self.headers.get("retry-after")
        return cast(str, status["reason"])


class Client:
    """One keep-alive connection that can send any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self, *, head_only: bool = False) -> Response:
        interim: list[int] = []
        async with asyncio.timeout(15):
            while True:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip("\r\n").split("\r\n")
                status = int(first.split(" ")[1])
                if status >= 200:
                    break
                interim.append(status)
            pairs = [line.split(": ", 1) for line in lines]
            headers = {name.lower(): value for name, value in pairs}
            assert len(headers) == len(pairs), "a response header stands twice"
            body = b"" if head_only else await self.reader.readexactly(int(headers["content-length"]))
        return Response(status, headers, body, interim)

    async def request(
        self, method: str = "POST", path: str = PATH, body: bytes = b"{}", headers: dict[str, str] | None = None
    ) -> Response:
        self.send(encode_request(method, path, body, headers))
        return await self.receive(head_only=method == "HEAD")

    async def closed(self) -> bool:
        """True once the server has closed the connection and nothing more came."""
        async with asyncio.timeout(15):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    def close(self) -> None:
        self.writer.close()


def encode_request(
    method: str = "POST", path: str = PATH, body: bytes = b"{}", headers: dict[str, str] | None = None
) -> bytes:
    fields = {"Host": "localhost", "Authorization": "Bearer good", "Content-Length": str(len(body))} | (headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value != "-")]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Stage:
    """The gateway and what surrounds it. Facts are given with `see_run` and `see_pod`, as a feed would."""

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        self.kube = FakeKube()
        self.clock = SystemClock()
        self.projection = Projection()
        self.changes = Changes()
        self.suspects = Suspects(self.clock)
        self.reported: list[Owner] = []
        self.reports = OwnerReports(self.clock, self.reported.append)
        context = installation.client_context(names.gateway(("localhost",)))
        self.pool = Pool(tls_dial(lambda: context))
        self.gatekeeper = Gatekeeper(cast(Kube, self.kube), self.clock)
        self.invoker = Invoker(
            projection=self.projection,
            changes=self.changes,
            gatekeeper=self.gatekeeper,
            forwarder=Forwarder(self.pool),
            suspects=self.suspects,
            clock=self.clock,
            on_owner_refused=self.reports.refused,
        )
        self.ready = True
        self.metrics = Metrics(self.clock)
        self.site = Site(self.invoker, self.metrics, ready=lambda: self.ready)
        self.front = Front(self.site.answer, self.clock, on_answer=self.site.count)
        self.port = 0
        self.door: Door | None = None
        self.clients: list[Client] = []

    def see_run(self, fact: RunFact) -> None:
        self.projection.run_seen(fact)
        self.changes.changed(fact.uid)

    def lose_run(self, uid: RunUID) -> None:
        self.projection.run_gone(uid)
        self.changes.changed(uid)

    def see_pod(self, fact: PodFact) -> None:
        self.projection.pod_seen(fact)
        self.changes.all_changed()

    async def held(self) -> None:
        """Return once some call waits for a fact."""
        await eventually(lambda: len(self.changes) > 0)

    async def client(self) -> Client:
        context = self.installation.client_context(None)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname="localhost", limit=4 * 1024 * 1024
        )
        self.clients.append(Client(reader, writer))
        return self.clients[-1]


@asynccontextmanager
async def stage(installation: Installation) -> AsyncIterator[Stage]:
    the_stage = Stage(installation)
    context = installation.server_context(names.gateway(("localhost",)), clients=ssl.CERT_NONE)
    door = the_stage.door = Door(the_stage.front, tls=context)
    the_stage.port = await door.open("127.0.0.1", 0)
    try:
        yield the_stage
    finally:
        for client in the_stage.clients:
            client.close()
        door.close()
        await the_stage.front.shutdown(0.1)
        await the_stage.gatekeeper.close()
        await the_stage.pool.close()
