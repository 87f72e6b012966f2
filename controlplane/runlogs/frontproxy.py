"""Whether a request comes from the API server's front proxy: TLS by the request-header client CA, then names.

The cluster publishes that CA, the common names that count and the names of identity headers in a ConfigMap, which is
followed here: a CA that is no longer published is trusted by no new connection. No other CA is trusted for clients, our
own neither: a certificate of this installation is none of the front proxy. Identity headers count only behind it.
`server` asks before it looks at anything else.
"""

import logging
import ssl
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from controlplane.kube.api import Kube
from controlplane.kube.certificates import CertificateSource
from controlplane.kube.clock import Clock
from controlplane.kube.clustercas import cluster_cas
from controlplane.runlogs.api import refusal

_CA: Final = "requestheader-client-ca-file"
_NAMES: Final = "requestheader-allowed-names"
_USER_HEADERS: Final = "requestheader-username-headers"

_log = logging.getLogger(__name__)


class Published(msgspec.Struct, frozen=True):
    """What the cluster says of its front proxy. No `names`: every common name that the CA has signed."""

    ca: str = ""
    names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: Mapping[str, str]) -> "Published":
        """From the ConfigMap's data. ValueError for what is malformed: then nobody is trusted."""
        return cls(data.get(_CA, ""), _strings(data.get(_NAMES, "")), _strings(data.get(_USER_HEADERS, "")))


class FrontProxy:
    """Follows the ConfigMap. `context` is for the listener: each new connection is judged by the CA of its moment."""

    def __init__(self, kube: Kube, clock: Clock, source: CertificateSource) -> None:
        self._source = source
        self._published = Published()
        self._current: ssl.SSLContext | None = None
        self.context = self._new_context("")
        self.context.sni_callback = self._choose
        self._informer = cluster_cas(kube, clock, self._changed)

    async def run(self) -> None:
        """Follow, until cancelled."""
        await self._informer.run()

    def user(self, certificate: Mapping[str, Any] | None, headers: Mapping[str, str]) -> str:
        """Whom the API server has authenticated. `certificate` is the peer's, verified. Raises KubeError (401)."""
        if not certificate:
            raise refusal(401, "Unauthorized", "only the API server's front proxy is served: it shows a certificate")
        common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        if self._published.names and not (len(common) == 1 and common[0] in self._published.names):
            raise refusal(401, "Unauthorized", "the certificate is not that of the API server's front proxy")
        for header in self._published.user_headers:
            if headers.get(header):
                return headers[header]
        raise refusal(401, "Unauthorized", "the front proxy names no user")

    def _changed(self, data: Mapping[str, str]) -> None:
        try:
            published = Published.of(data)
            context = self._new_context(published.ca)
        except (ssl.SSLError, ValueError) as error:
            _log.error("what the cluster publishes of its front proxy cannot be used: %s", error)
            published, context = Published(), self._new_context("")
        if not published.ca:
            _log.warning("the cluster publishes no request-header client CA: logs and journals are not served")
        self._published, self._current = published, context

    def _new_context(self, ca: str) -> ssl.SSLContext:
        context = self._source.front_context()
        context.verify_mode = ssl.CERT_OPTIONAL
        if ca:
            context.load_verify_locations(cadata=ca)
        return context

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        if self._current is not None:
            connection.context = self._current


def _strings(text: str) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(text, type=tuple[str, ...]) if text else ()
    except msgspec.MsgspecError as error:
        raise ValueError(f"{text[:128]!r} is no list of names") from error
