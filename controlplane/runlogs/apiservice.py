"""Keeps the CA that the API server trusts for us in the APIService: the chart makes the object, without one.

The bundle is what the installation trusts now, so it holds both roots while one replaces the other. The control plane
that leads writes it: when the object appears or was changed, and when the roots have.
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import KubeError, NotFound
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import APISERVICES
from controlplane.kube.types import APIService
from controlplane.runlogs.api import GROUP, VERSION

NAME: Final = f"{VERSION}.{GROUP}"
LOOK_S: Final = 5.0  # at the roots, in memory: as often as holders of certificates look
RETRY_S: Final = 2.0

_log = logging.getLogger(__name__)


class ApiServiceCare:
    """`trusted_pem` gives the roots of this moment."""

    def __init__(self, kube: Kube, clock: Clock, trusted_pem: Callable[[], bytes]) -> None:
        self._kube = kube
        self._trusted_pem = trusted_pem
        self._shown: APIService | None = None
        self._changed = asyncio.Event()
        self._informer = Informer(kube, APISERVICES, fields=f"metadata.name={NAME}", on_change=self._seen, clock=clock)

    async def run(self) -> NoReturn:
        """Follow and write, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            group.create_task(self._keep())
        raise AssertionError("what is followed has no end")

    def _seen(self, change: Change[APIService]) -> None:
        self._shown = change.current
        self._changed.set()

    async def _keep(self) -> NoReturn:
        pause_s = LOOK_S
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            pause_s = LOOK_S if await self._right() else RETRY_S

    async def _right(self) -> bool:
        """Write the bundle unless it is there; False when it must be tried again."""
        bundle = base64.b64encode(self._trusted_pem()).decode()
        if self._shown is None or self._shown.spec.ca_bundle == bundle:
            return True
        try:
            self._shown = await self._kube.merge_patch(APISERVICES, None, NAME, {"spec": {"caBundle": bundle}})
        except NotFound:
            return True
        except KubeError as error:
            _log.warning("the APIService %s does not get its CA bundle: %s", NAME, error)
            return False
        _log.info("wrote the CA bundle of APIService %s", NAME)
        return True
