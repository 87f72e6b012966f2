"""Logs and journals on a cluster, put together: the aggregated API, the port where other replicas read this journal.

Only wiring. Every replica serves; the one that leads also keeps the APIService right (`lead`).
"""

import asyncio
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from controlplane.config import Address
from controlplane.kube.api import Kube
from controlplane.kube.certificates import CertificateSource
from controlplane.kube.clock import Clock
from controlplane.kube.records import RecordFiles
from controlplane.metrics import gauge_of
from controlplane.pki.names import is_control_plane
from controlplane.runlogs.api import RunLogsApi
from controlplane.runlogs.dialling import Dialling
from controlplane.runlogs.frontproxy import FrontProxy
from controlplane.runlogs.podrecords import Leader, PodRecords
from controlplane.runlogs.server import AggregatedApi
from runtimes.contract.endpoint import Server
from runtimes.contract.mux import Connection

RECORDS_PORT: Final = 8446  # of every replica: where a leader is asked


class NotAControlPlane(Exception):
    """Who came to the port for replicas is none; its connection is closed."""


class LogsService:
    """`start` listens, `run` follows the cluster's front proxy, `close` ends both."""

    def __init__(
        self,
        *,
        kube: Kube,
        clock: Clock,
        certificate: CertificateSource,
        namespace: str,
        lease: str,
        identity: str,
        host: str,
        journal_dir: Path | None,
        registry: CollectorRegistry,
    ) -> None:
        self._certificate = certificate
        context = certificate.client_context()
        self._dialling = Dialling(lambda: context)
        leader = Leader(kube, namespace=namespace, lease=lease, identity=identity, host=host, port=RECORDS_PORT)
        self._records = PodRecords(kube, self._dialling, leader, journal_dir)
        self._front_proxy = FrontProxy(kube, clock, certificate)
        self._api = AggregatedApi(RunLogsApi(self._records), self._front_proxy)
        self._port = Server(RecordFiles(logs=None, journal=journal_dir).handle, on_connect=admit)
        gauge_of(registry, "kruntimes_logs_served", "Requests for logs and journals answered", lambda: self._api.served)
        gauge_of(registry, "kruntimes_logs_refused", "Such requests refused", lambda: self._api.refused)

    async def start(self, logs: Address, records: Address) -> None:
        """Listen for the API server and for other replicas. Raises OSError."""
        await self._port.listen_tcp(records.host, records.port, tls=self._certificate.server_context())
        await self._api.start(logs.host, logs.port)

    async def run(self) -> None:
        """Follow the front proxy's CA, until cancelled."""
        await self._front_proxy.run()

    async def close(self) -> None:
        """End streams and connections."""
        self._records.ending = True
        await self._api.close()
        self._port.close()
        self._dialling.close()
        await asyncio.sleep(0)


def admit(connection: Connection) -> None:
    """Let control planes of this installation in. Raises NotAControlPlane."""
    tls = connection.get_extra_info("ssl_object")
    if tls is None or not is_control_plane(tls.getpeercert()):
        raise NotAControlPlane(f"peer {connection.get_extra_info('peername')} is no control plane")
