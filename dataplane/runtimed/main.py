"""The process: wires the components of this folder to the Kubernetes API, the Runtime Server, TLS and signals.

Nothing is decided here. It exits 0 after SIGTERM or SIGINT, once its Runs have moved and its calls have ended; 2 for a
wrong environment; 1 when a component failed, so that its container is restarted.
"""

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Final

import uvloop

from controlplane.kube.certificates import CertificateSource
from controlplane.kube.client import KubeClient
from controlplane.kube.clock import SystemClock
from controlplane.kube.events import EventRecorder
from controlplane.kube.journalfile import JournalFile
from controlplane.kube.kubeconfig import ConfigError as NoCredential
from controlplane.kube.records import RecordFiles
from dataplane.runtimed.config import Config, ConfigError, from_environ
from dataplane.runtimed.daemon import Daemon
from dataplane.runtimed.peerhop import peer_of
from dataplane.runtimed.port import Port, admission
from dataplane.runtimed.readiness import Readiness
from dataplane.runtimed.serving import Serving
from dataplane.runtimed.view import Journal, NoJournal
from dataplane.wire.dial import tls_dial
from dataplane.wire.hardening import harden
from dataplane.wire.listener import wire_server
from dataplane.wire.pool import Pool
from runtimes.contract.client import RuntimeClient
from runtimes.contract.endpoint import Server
from runtimes.contract.jsonlog import setup
from runtimes.contract.memory import keep_freed_buffers
from statemachine.events import Role

COMPONENT: Final = "runtimed"
LOGS: Final = "logs"  # in the work folder, where the Runtime Server keeps what Runs print
CALLS_END_MAX_S: Final = 310.0  # the longest call is 300 s; the Pod's grace of 330 s ends after this

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run until told to stop. Configuration comes from the environment alone."""
    setup(COMPONENT)
    logging.getLogger("transitions").setLevel(logging.WARNING)  # it tells every step of a transition
    del argv
    try:
        config = from_environ(os.environ if environ is None else environ)
    except ConfigError as error:
        print(f"InvalidConfiguration: {error}", file=sys.stderr)  # noqa: T201 — before there is anything to log to
        return 2
    harden()
    keep_freed_buffers()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(config))


async def serve(config: Config) -> int:
    """Wire, serve, drain; the exit code."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    clock = SystemClock()
    readiness = Readiness(config.work_dir)
    async with AsyncExitStack() as stack:
        try:
            kube = await KubeClient.connect(
                config.kubeconfig,
                service_account_dir=None if config.kubeconfig else config.service_account_dir,
                user_agent=f"kruntimes-runtimed/{config.pod_name}",
            )
        except NoCredential as error:
            _log.critical("no way to the Kubernetes API: %s", error)
            return 1
        stack.push_async_callback(kube.close)
        recorder = EventRecorder(kube, COMPONENT, clock, instance=config.pod_name)
        certificate = CertificateSource.from_signer(
            signer_url=config.signer_url,
            ca_file=str(config.ca_file),
            token_file=str(config.token_file),
            clock=clock,
        )
        stack.push_async_callback(certificate.close)

        async def connect() -> RuntimeClient:
            return await RuntimeClient.connect(config.socket)

        peers = Pool(tls_dial(cache(certificate.client_context)))
        stack.push_async_callback(peers.close)
        daemon = Daemon(
            config,
            kube=kube,
            clock=clock,
            call_later=loop.call_later,
            connect=connect,
            journal=_journal(config, clock, stack),
            recorder=recorder,
            ca_bundle=lambda: certificate.root_pem or None,
            rng=random.Random(),
            on_server=readiness.server,
            on_lost=readiness.draining,
            on_pod_gone=lambda pod: peers.retire(peer_of(pod)),
        )
        certificate.on_roots = daemon.bundles.look
        stack.push_async_callback(daemon.stop)
        following = [loop.create_task(daemon.run()), loop.create_task(recorder.run())]
        life = loop.create_task(_live(config, daemon, certificate, peers, readiness, stop))
        try:
            done, _ = await asyncio.wait((*following, life), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.exception() is not None:
                    _log.critical("a component failed", exc_info=task.exception())
                    return 1
            await recorder.flush()
            return 0
        finally:
            for task in (*following, life):
                task.cancel()
            await asyncio.gather(*following, life, return_exceptions=True)


def _journal(config: Config, clock: SystemClock, stack: AsyncExitStack) -> Journal:
    folder = _journal_folder(config)
    if folder is None:
        return NoJournal()
    journal = JournalFile(folder, writer=folder.name, role=Role.RUNTIMED, clock=clock)
    stack.callback(journal.close)
    return journal


def _journal_folder(config: Config) -> Path | None:
    """Named as its writer."""
    return None if config.journal_dir is None else config.journal_dir / f"{COMPONENT}-{config.pod_uid}"


async def _live(
    config: Config,
    daemon: Daemon,
    certificate: CertificateSource,
    peers: Pool,
    readiness: Readiness,
    stop: asyncio.Event,
) -> None:
    """From the first certificate to the last call."""
    started = asyncio.get_running_loop().create_task(_start(config, daemon, certificate, peers))
    stopped = asyncio.get_running_loop().create_task(stop.wait())
    await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not started.done():
        started.cancel()  # told to stop before anything was claimed
        await asyncio.gather(started, return_exceptions=True)
        return
    server = started.result()
    try:
        readiness.serving()
        _log.info("serving", extra={"address": config.pod_ip, "port": config.port})
        await stopped
        readiness.draining()
        daemon.start_draining()
        await daemon.drained()
        if not await server.drain(timeout=CALLS_END_MAX_S):
            _log.error("calls were still in flight at the end of the Pod's grace")
    finally:
        server.close()


async def _start(config: Config, daemon: Daemon, certificate: CertificateSource, peers: Pool) -> Server:
    await certificate.start()
    serving = Serving(daemon, daemon.link, peers, namespace=config.namespace, runtime=config.runtime)
    records = RecordFiles(logs=config.work_dir / LOGS, journal=_journal_folder(config), mark=f"{config.pod_uid[:8]}.")
    port = Port(serving, records)
    server = wire_server(port.handle, admit=admission(config.namespace, config.runtime))
    await server.listen_tcp(config.pod_ip, config.port, tls=certificate.server_context())
    await daemon.begin()
    return server
