"""The cluster's client CA: with it a kubeconfig's client certificate can invoke as it can call the API.

Here: following the ConfigMap in which a cluster publishes it, into the TLS context of the front. Not here: reading
users from certificates (`credentials`). A cluster that publishes none, or does not let us read it, has token callers
only.
Next: `process` runs it beside the feed.
"""

import logging
import ssl
from collections.abc import Mapping

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.clustercas import FIELDS, NAMESPACE, cluster_cas
from controlplane.kube.errors import Forbidden, KubeError
from controlplane.kube.resources import CONFIGMAPS

KEY = "client-ca-file"

log = logging.getLogger(__name__)


class ClientCA:
    """Trusts the published CA in `context`. A rotated CA is added at once; the old one goes with the process."""

    def __init__(self, kube: Kube, clock: Clock, context: ssl.SSLContext) -> None:
        self._kube = kube
        self._context = context
        self._informer = cluster_cas(kube, clock, self._changed)

    async def run(self) -> None:
        """Follow for ever; returns at once where we may not read it."""
        try:
            await self._kube.list(CONFIGMAPS, NAMESPACE, fields=FIELDS)
        except Forbidden:
            log.info("client certificates are not accepted: the cluster's client CA may not be read")
            return
        except KubeError as error:
            log.warning("the cluster's client CA cannot be read yet: %s", error)
        await self._informer.run()

    def _changed(self, data: Mapping[str, str]) -> None:
        bundle = data.get(KEY, "")
        if not bundle:
            return
        try:
            self._context.load_verify_locations(cadata=bundle)
        except (ssl.SSLError, ValueError) as error:
            log.error("the cluster's client CA is no certificate bundle: %s", error)
            return
        self._context.verify_mode = ssl.CERT_OPTIONAL
