"""The API server's process: configuration from the environment, parts put together, serving until a signal.

Lives here: wiring. May not live here: behaviour. The supervisor calls `main`; tests call `Running.start`.
"""

import asyncio
import datetime
import logging
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence

import uvloop

from controlplane.embedded.apiserver import limits, serving, transport
from controlplane.embedded.apiserver.bootstrap import Bootstrap, admin_token, packaged_crds, private_directory
from controlplane.embedded.apiserver.builtin import BUILTIN
from controlplane.embedded.apiserver.chores import Chores
from controlplane.embedded.apiserver.collector import Collector
from controlplane.embedded.apiserver.config import Config, ConfigError
from controlplane.embedded.apiserver.definitions import Definitions
from controlplane.embedded.apiserver.discovery import Discovery
from controlplane.embedded.apiserver.endpoints import Endpoints
from controlplane.embedded.apiserver.errors import ApiError
from controlplane.embedded.apiserver.hub import Hub
from controlplane.embedded.apiserver.identity import Authenticator, ServiceAccountTokens, StaticTokens, signing_key
from controlplane.embedded.apiserver.namespaces import Namespaces
from controlplane.embedded.apiserver.objects import Objects
from controlplane.embedded.apiserver.openapi import OpenAPI
from controlplane.embedded.apiserver.podlogs import PodLogs
from controlplane.embedded.apiserver.rbac import Authorizer
from controlplane.embedded.apiserver.registry import Registry
from controlplane.embedded.apiserver.requestlog import RequestLog
from controlplane.embedded.apiserver.reviews import Reviews
from controlplane.embedded.apiserver.runlogs import RunLogs
from controlplane.embedded.apiserver.server import Front
from controlplane.embedded.apiserver.store import Store
from controlplane.embedded.apiserver.subresources import Subresources
from controlplane.embedded.apiserver.upkeep import Upkeep
from controlplane.pki.building import PkiError
from runtimes.contract import jsonlog

_log = logging.getLogger(__name__)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Running:
    """A server that answers. `await stop()` ends watches, lets requests finish and closes the store."""

    def __init__(self, config: Config) -> None:
        data = private_directory(config.data_dir)
        tokens_dir = private_directory(data / "tokens")
        self.admin_token = admin_token(tokens_dir)
        self._context = serving.server_context(config.pki_dir, config.host)
        self.store = Store(data / "state.db")
        self.hub = Hub(self.store)
        self.store.on_commit = self.hub.publish
        self.chores = Chores()
        registry = Registry(BUILTIN)
        objects = Objects(self.store, _now)
        authorizer = Authorizer(self.store)
        definitions = Definitions(self.store, objects, registry, self.hub, self.chores)
        root_ca = (config.pki_dir / "root.crt").read_text()
        namespaces = Namespaces(self.store, objects, registry, self.chores, root_ca=root_ca, now=_now)
        self._upkeep = Upkeep(self.store, objects, registry, self.chores, _now)
        accounts = ServiceAccountTokens(signing_key(config.pki_dir / "sa.key"), self.store, time.time)
        authenticator = Authenticator(StaticTokens(tokens_dir), accounts)
        self.hub.observe(authorizer.forget)
        self.hub.observe(definitions.follow)
        Bootstrap(objects, registry, definitions, namespaces).run(packaged_crds(config.crd_dir))
        Collector(self.store, objects, registry, self.chores).start(self.hub)
        namespaces.start(self.hub)
        self._request_log = RequestLog(private_directory(data / "logs") / "requests.ndjson")
        endpoints = Endpoints(self.store, self.hub, objects, authorizer, _now)
        reviews = Reviews(self.store, authenticator, authorizer, accounts, _now)
        front = Front(
            registry=registry,
            discovery=Discovery(registry, f"{config.host}:{config.port}"),
            openapi=OpenAPI(registry),
            endpoints=endpoints,
            reviews=reviews,
            subresources=Subresources(objects, endpoints, reviews, PodLogs(self.store, self.hub, data / "pods")),
            run_logs=RunLogs(self.store, self.hub, data),
            authenticator=authenticator,
            authorizer=authorizer,
            request_log=self._request_log,
            now=_now,
        )
        self._config = config
        self._web = transport.server(front.handle)
        self._server: asyncio.Server | None = None
        self._worker: asyncio.Task[None] | None = None
        self.port = config.port

    async def start(self) -> None:
        """Raises OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        host, port = self._config.host, self._config.port
        self._server = await loop.create_server(self._web, host, port, ssl=self._context, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self.hub.observe(self._upkeep.follow)
        self._worker = loop.create_task(self.chores.run())

    async def stop(self) -> None:
        """Also after a failed start."""
        if self._server is not None:
            self._server.close()
        self.hub.end_all()
        await self._web.shutdown(limits.SHUTDOWN_GRACE_SECONDS)
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        await self._upkeep.settle()
        self._request_log.close()
        self.store.close()


async def _serve(config: Config) -> int:
    running = Running(config)
    try:
        await running.start()
    except OSError as error:
        await running.stop()
        _log.error("cannot listen", extra={"address": f"{config.host}:{config.port}", "error": str(error)})
        return 1
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    _log.info("serving", extra={"address": f"{config.host}:{running.port}"})
    await stopped.wait()
    await running.stop()
    return 0


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. 0 after a clean end, 1 when it cannot start, 2 for a bad configuration."""
    jsonlog.setup("apiserver")
    del argv
    try:
        config = Config.from_environ(os.environ if environ is None else environ)
    except ConfigError as error:
        _log.error("bad configuration", extra={"error": str(error)})
        return 2
    try:
        return uvloop.run(_serve(config))
    except (OSError, ValueError, PkiError, ApiError, sqlite3.Error) as error:
        _log.error("cannot start", extra={"error": str(error)})
        return 1


if __name__ == "__main__":
    sys.exit(main())
