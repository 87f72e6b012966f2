"""Credentials that a program or an identity provider hands out: exec plugins, OIDC, GCP, through kubernetes_asyncio.

One kubeconfig user, asked when its credential is about to end or when the server said 401, never for each request.
`transport.py` is the only caller.
"""

import asyncio
from typing import Any, Final

import msgspec

from controlplane.kube.clock import Clock
from controlplane.kube.kubeconfig import Access, ConfigError
from controlplane.kube.library import pieces

ASK_INTERVAL_S: Final = 60.0  # the library keeps a credential until five minutes before its end
REFUSED_INTERVAL_S: Final = 5.0  # a credential that the server refuses is asked for anew this often at most
ASK_TIMEOUT_S: Final = 60.0  # a plugin may open a browser; a silent one must not hang a caller for ever


class Credential(msgspec.Struct, frozen=True):
    """An Authorization header, or the files of a client certificate, as the plugin gave them."""

    authorization: str | None = None
    certificate: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return "Credential(…)"


class Plugin:
    """The credential of one kubeconfig user that is not written in the kubeconfig."""

    def __init__(self, access: Access, clock: Clock) -> None:
        self._context = access.context
        self._clock = clock
        self._loader = pieces().KubeConfigLoader(config_dict=access.plugin, config_base_path="")
        self._asked_at = 0.0
        self._refused_at = -REFUSED_INTERVAL_S

    def due(self) -> bool:
        """Whether it is time to ask again."""
        return self._clock.monotonic() - self._asked_at >= ASK_INTERVAL_S

    def refused(self) -> bool:
        """The server said 401. True if the plugin may be asked again now; then it will not answer from memory."""
        now = self._clock.monotonic()
        if now - self._refused_at < REFUSED_INTERVAL_S:
            return False
        self._refused_at = now
        self._loader.__dict__.pop("exec_plugin_expiry", None)
        return True

    async def ask(self) -> Credential:
        """The credential that is good now. Raises ConfigError with what the plugin said."""
        self._asked_at = self._clock.monotonic()
        configuration = pieces().Configuration()
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await self._loader.load_and_set(configuration)
        except Exception as error:
            what = str(error) or type(error).__name__
            raise ConfigError(f"the credential plugin of context {self._context!r} failed: {what}") from error
        cert: Any = configuration.cert_file
        key: Any = configuration.key_file
        return Credential(configuration.api_key.get("BearerToken"), (cert, key) if cert and key else None)
