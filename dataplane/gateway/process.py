"""One gateway process: what it is made of, how it starts, drains and ends.

Here: the life of the parts. Not here: configuration (`config`), signals (`main`).
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from controlplane.kube.api import Kube
from controlplane.kube.certificates import CertificateSource
from controlplane.kube.client import KubeClient
from controlplane.kube.clock import Clock
from controlplane.kube.events import EventRecorder
from controlplane.kube.types import ObjectReference
from dataplane.gateway.answer import Answer
from dataplane.gateway.auth import Gatekeeper
from dataplane.gateway.clientca import ClientCA
from dataplane.gateway.config import Config
from dataplane.gateway.exchange import Request
from dataplane.gateway.feed import Feed
from dataplane.gateway.forward import Forwarder
from dataplane.gateway.front import Front
from dataplane.gateway.holding import Changes
from dataplane.gateway.invoke import Invoker
from dataplane.gateway.limits import DRAIN_MAX_S
from dataplane.gateway.metrics import Metrics
from dataplane.gateway.site import Site
from dataplane.gateway.suspects import OwnerReports, Suspects
from dataplane.wire.dial import tls_dial
from dataplane.wire.door import Door
from dataplane.wire.pool import Peer, Pool
from statemachine.ownership import Owner, PodFact, Projection
from statemachine.reasons import Reason

COMPONENT = "kruntimes-gateway"
"""`reportingComponent` of our Events; recovery listens to those with reason OwnerUnreachable."""

log = logging.getLogger(__name__)


async def serve(
    config: Config, clock: Clock, stop: asyncio.Event, on_listening: Callable[[int], None] | None = None
) -> None:
    """Serve until `stop` is set, then drain and return. Raises what makes a start impossible, or a defect's error."""
    async with AsyncExitStack() as life:
        kube = await KubeClient.connect(config.kubeconfig, user_agent=COMPONENT, clock=clock)
        life.push_async_callback(kube.close)
        certificates = CertificateSource.from_signer(
            signer_url=config.signer_url,
            ca_file=str(config.ca_file),
            token_file=str(config.token_file),
            hosts=config.hosts,
            clock=clock,
        )
        life.push_async_callback(certificates.close)
        if not await _unless_stopped(certificates.start(), stop):
            return
        gateway = Gateway(config, clock, kube, certificates)
        await gateway.run(stop, on_listening)


class Gateway:
    """The parts of one process, wired."""

    def __init__(self, config: Config, clock: Clock, kube: Kube, certificates: CertificateSource) -> None:
        self._config = config
        self._tls = certificates.server_context(require_client=False)
        self._tls.set_alpn_protocols(["http/1.1"])
        client_tls = certificates.client_context()
        self._projection = Projection()
        self._changes = Changes()
        self._suspects = Suspects(clock)
        self._events = EventRecorder(kube, COMPONENT, clock, instance=socket.gethostname())
        self._reports = OwnerReports(clock, self._tell_recovery)
        self._pool = Pool(tls_dial(lambda: client_tls))
        verb, subresource = config.permission
        self._gatekeeper = Gatekeeper(kube, clock, verb=verb, subresource=subresource)
        self._feed = Feed(kube, clock, self._projection, self._changes, on_pod=self._pod_changed)
        self._client_ca = ClientCA(kube, clock, self._tls)
        self._ready = False
        self._invoker = Invoker(
            projection=self._projection,
            changes=self._changes,
            gatekeeper=self._gatekeeper,
            forwarder=Forwarder(self._pool),
            suspects=self._suspects,
            clock=clock,
            on_owner_refused=self._reports.refused,
            to_owner=config.to_owner,
        )
        self._metrics = Metrics(clock)
        site = Site(self._invoker, self._metrics, ready=lambda: self._ready)
        self._front = Front(site.answer, clock, on_answer=site.count)
        self._metrics_front = Front(self._metrics_page, clock)
        self._export()

    async def run(self, stop: asyncio.Event, on_listening: Callable[[int], None] | None = None) -> None:
        """Serve until `stop`, drain, close. A watch that ends by a defect ends the process."""
        following = [
            asyncio.create_task(self._feed.run(), name="feed"),
            asyncio.create_task(self._client_ca.run(), name="client CA"),
            asyncio.create_task(self._events.run(), name="events"),
        ]
        following[0].add_done_callback(lambda _: stop.set())
        doors: list[Door] = []
        try:
            if not await _unless_stopped(self._feed.synced(), stop):
                await asyncio.gather(*(task for task in following if task.done()))
                return
            doors.append(Door(self._front, tls=self._tls))
            port = await self._listen(doors[0], self._config.host, self._config.port)
            if self._config.metrics_port is not None:
                doors.append(Door(self._metrics_front, tls=None))
                await self._listen(doors[1], self._config.metrics_host, self._config.metrics_port)
            self._ready = True
            log.info("listening", extra={"host": self._config.host, "port": port})
            if on_listening is not None:
                on_listening(port)
            await stop.wait()
            await self._drain(doors)
            await asyncio.gather(*(task for task in following[:1] if task.done()))
        finally:
            for door in doors:
                door.close()
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await self._gatekeeper.close()
            await self._pool.close()

    async def _drain(self, doors: list[Door]) -> None:
        """Fail readiness, serve on while endpoints catch up, then let what is in flight finish."""
        log.info("draining", extra={"inFlight": self._invoker.in_flight})
        self._ready = False
        self._front.draining = True
        await asyncio.sleep(self._config.endpoint_lag_s)
        for door in doors:
            door.stop()
        if not await self._invoker.idle(timeout_s=DRAIN_MAX_S):
            log.warning("calls are cut off by the end of the drain", extra={"inFlight": self._invoker.in_flight})
        await self._front.shutdown(1.0)
        await self._metrics_front.shutdown(0.0)

    async def _listen(self, door: Door, host: str, port: int) -> int:
        every = host in ("", "::")  # the resolver takes "::" for IPv6 alone
        return await door.open(None if every else host, port, share=self._config.share_port)

    def _pod_changed(self, before: PodFact, now: PodFact | None) -> None:
        """Warm connections before calls need them; let go of those to Pods that are gone."""
        self._suspects.clear(before.uid)
        if now is None or not now.serving:
            self._pool.retire(_peer(before))
        elif now.ready:
            self._pool.warm(_peer(now))

    def _tell_recovery(self, owner: Owner) -> None:
        run = owner.run
        about = ObjectReference(
            api_version="kruntimes.io/v1alpha1", kind="Run", namespace=run.namespace, name=run.name, uid=run.uid
        )
        message = f"nobody listens at Pod {run.pod_uid}, the owner of attempt {run.attempt}"
        self._events.emit(about, "Warning", Reason.OWNER_UNREACHABLE.value, message)

    @property
    def accepts_certificates(self) -> bool:
        """The cluster's client CA is known: client certificates are asked for."""
        return self._tls.verify_mode is ssl.CERT_OPTIONAL

    def metrics_text(self) -> bytes:
        """What Prometheus reads."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self._metrics)
        return generate_latest(registry)

    async def _metrics_page(self, request: Request) -> Answer:
        return Answer(status=200, body=self.metrics_text(), content_type=CONTENT_TYPE_LATEST)

    def _export(self) -> None:
        invoker, feed, gatekeeper = self._invoker, self._feed, self._gatekeeper
        gauge, counter = self._metrics.gauge, self._metrics.counter
        gauge("kruntimes_gateway_in_flight", "Invocations in flight.", lambda: invoker.in_flight)
        gauge("kruntimes_gateway_body_bytes", "Bytes of request bodies in memory.", lambda: invoker.body_bytes)
        gauge("kruntimes_gateway_arriving", "Calls whose body is not all here.", lambda: invoker.arriving)
        gauge("kruntimes_gateway_held_moving", "Calls that wait for a moving Run.", lambda: invoker.caps.moving)
        gauge("kruntimes_gateway_held_unknown", "Calls that wait for an unknown UID.", lambda: invoker.caps.unknown)
        gauge("kruntimes_gateway_runs", "Runs in the projection.", lambda: len(self._projection))
        gauge(
            "kruntimes_gateway_stale_seconds",
            "Age of the least current watch; 0 when all are open.",
            feed.stale_seconds,
        )
        gauge("kruntimes_gateway_connections", "Client connections.", lambda: len(self._front.connections))
        counter("kruntimes_gateway_token_reviews", "TokenReviews asked.", lambda: gatekeeper.reviews_asked[0])
        counter("kruntimes_gateway_access_reviews", "Access reviews asked.", lambda: gatekeeper.reviews_asked[1])


def _peer(pod: PodFact) -> Peer:
    return Peer(pod.address, pod.port, pod.uid, pod.namespace, pod.runtime)


async def _unless_stopped(starting: Coroutine[Any, Any, None], stop: asyncio.Event) -> bool:
    """Wait for `starting`; False, and it is cancelled, when `stop` comes first."""
    task = asyncio.create_task(starting)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False
    await task
    return True
