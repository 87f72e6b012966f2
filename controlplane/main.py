"""The control plane's process: configuration, connections, signals. Only wiring; `plane` holds the parts."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import uvloop
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from controlplane.config import PKI_SECRET, SYSTEM_NAMESPACE, Address, Config, ConfigError
from controlplane.kube.client import KubeClient
from controlplane.kube.clock import SystemClock
from controlplane.kube.errors import KubeError
from controlplane.kube.events import EventRecorder
from controlplane.kube.journalfile import JournalFile
from controlplane.kube.kubeconfig import ConfigError as KubeconfigError
from controlplane.leadership import Alone, Leadership, LeaseLeadership
from controlplane.metrics import gauge_of
from controlplane.pki.building import PkiError
from controlplane.pki.ca import Authority
from controlplane.pki.installation import open_installation
from controlplane.pki.rotation import Rotation, follow_published
from controlplane.pki.signer import Signer
from controlplane.plane import COMPONENT, ControlPlane
from controlplane.runlogs.apiservice import ApiServiceCare
from controlplane.runlogs.service import LogsService
from controlplane.runtimecontroller.template import Settings
from controlplane.succession import Succession, no_successor
from runtimes.contract import jsonlog
from statemachine.events import Role

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status: 0, 1 for a failure, 2 for a configuration that is wrong."""
    jsonlog.setup("controlplane")
    logging.getLogger("transitions").setLevel(logging.WARNING)  # it reports every step
    arguments = sys.argv[1:] if argv is None else argv
    env = os.environ if environ is None else environ
    if arguments:
        _log.error("the control plane takes its configuration from the environment, not from arguments")
        return EXIT_USAGE
    try:
        config = Config.read(env)
    except ConfigError as error:
        _log.error("%s", error)
        return EXIT_USAGE
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_until_stopped(config, env))
        except (KubeconfigError, KubeError, PkiError, OSError) as error:
            _log.error("cannot start: %s", error)
            return EXIT_FAILED
        except Exception:
            _log.exception("the control plane met a defect and ends")
            return EXIT_FAILED


async def _until_stopped(config: Config, environ: Mapping[str, str]) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    work = loop.create_task(_serve(config, environ))
    stop = loop.create_task(stopped.wait())
    await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
    if work.cancelled():
        _log.info("stopped")
        return EXIT_OK
    work.result()
    _log.warning("another control plane leads; this one ends")
    return EXIT_FAILED


async def _serve(config: Config, environ: Mapping[str, str]) -> None:
    """Everything, until cancelled or until another process leads. Raises what could not be opened."""
    clock = SystemClock()
    authority = None if config.pki_secret else Authority.load(config.pki_dir, clock=clock)
    registry = CollectorRegistry()
    async with await KubeClient.connect(
        environ.get("KUBECONFIG") or None, environ=environ, user_agent=COMPONENT, clock=clock
    ) as kube:
        if authority is None:
            await open_installation(kube, config.namespace, config.pki_secret, config.pki_dir, clock=clock)
            authority = Authority.load(config.pki_dir, clock=clock)
        leadership = _leadership(config, kube, clock)
        leads = asyncio.Event()
        recorder = EventRecorder(kube, COMPONENT, clock)
        journal = _journal(config, clock, registry)
        gauge_of(registry, "kruntimes_events_dropped", "Kubernetes Events not recorded", lambda: recorder.dropped)
        signer = Signer(kube, authority, clock)
        secret, namespace = config.pki_secret or PKI_SECRET, config.namespace or SYSTEM_NAMESPACE
        rotation = Rotation(kube, clock, namespace=namespace, name=secret, folder=config.pki_dir)
        succession = Succession(kube, namespace=config.namespace, pod=config.identity)
        plane = ControlPlane(
            kube=kube,
            clock=clock,
            call_later=asyncio.get_running_loop().call_later,
            recorder=recorder,
            journal=journal,
            settings=Settings(
                daemon_image=config.daemon_image,
                signer_url=config.signer_url,
                gateway_url=config.gateway_url,
                source_cache=config.source_cache,
                root_pem=authority.published.decode(),
                network_policy=config.network_policy,
                system_namespace=config.namespace,
            ),
            registry=registry,
            successor_awaited=succession.awaited if config.lease else no_successor,
        )
        metrics: web.AppRunner | None = None
        logs: LogsService | None = None
        try:
            await signer.start(config.signer_bind.host, config.signer_bind.port, config.signer_hosts)
            logs = await _serve_logs(config, kube, clock, signer, registry)
            # A replica that waits is ready, too: it signs.
            metrics = await _serve_metrics(
                config.metrics_bind, registry, lambda: plane.started.is_set() or not leads.is_set()
            )
            async with asyncio.TaskGroup() as group:
                work: list[asyncio.Task[None]] = [group.create_task(recorder.run())]
                work.append(group.create_task(follow_published(authority, plane.runtimes.publish_roots)))
                work.append(group.create_task(rotation.run()))
                if logs is not None:
                    work.append(group.create_task(logs.run()))
                await leadership.acquired()
                leads.set()
                if logs is not None:
                    care = ApiServiceCare(kube, clock, lambda: authority.root_pem)
                    work.append(group.create_task(care.run()))
                rotation.lead()
                work.append(group.create_task(plane.run()))
                await leadership.lost()
                for task in work:
                    task.cancel()
        finally:
            await leadership.release()
            if logs is not None:
                await logs.close()
            await signer.close()
            if metrics is not None:
                await metrics.cleanup()
            if journal is not None:
                journal.close()


def _leadership(config: Config, kube: KubeClient, clock: SystemClock) -> Leadership:
    if not config.lease:
        return Alone()
    return LeaseLeadership(kube, clock, namespace=config.namespace, name=config.lease, identity=config.identity)


async def _serve_logs(
    config: Config, kube: KubeClient, clock: SystemClock, signer: Signer, registry: CollectorRegistry
) -> LogsService | None:
    """Logs and journals for the API server of a cluster; None on one machine, where the API server has them itself."""
    if config.logs_bind is None or config.records_bind is None:
        return None
    logs = LogsService(
        kube=kube,
        clock=clock,
        certificate=signer.certificate,
        namespace=config.namespace,
        lease=config.lease,
        identity=config.identity,
        host=config.signer_hosts[0],
        journal_dir=config.journal_dir,
        registry=registry,
    )
    await logs.start(config.logs_bind, config.records_bind)
    return logs


def _journal(config: Config, clock: SystemClock, registry: CollectorRegistry) -> JournalFile | None:
    if config.journal_dir is None:
        return None
    journal = JournalFile(config.journal_dir, writer="controlplane", role=Role.CONTROL_PLANE, clock=clock)
    gauge_of(registry, "kruntimes_journal_dropped", "Journal records not written", lambda: journal.dropped)
    gauge_of(registry, "kruntimes_journal_healthy", "1 while the journal can be written", lambda: journal.healthy)
    return journal


async def _serve_metrics(
    bind: Address | None, registry: CollectorRegistry, is_ready: Callable[[], bool]
) -> web.AppRunner | None:
    """`/metrics`, `/healthz` (the process answers) and `/readyz` (it serves its part), for the cluster's own probes."""
    if bind is None:
        return None

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        good = is_ready()
        return web.Response(status=200 if good else 503, text="ok\n" if good else "starting\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthy)
    app.router.add_get("/readyz", ready)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, bind.host, bind.port).start()
    return runner
