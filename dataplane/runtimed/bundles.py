"""Keeps the caBundle of the Ready functions here true when the installation's roots change.

A Run is Ready for months, a root is replaced once in years: who reads the endpoint then must find the root that is to
come before the old one goes. One tested patch for each Run and change, one after another. Nothing else of a Run is
written here; `worker` and the lifecycle know nothing of it. `daemon` runs it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from controlplane.kube.errors import Invalid, KubeError, NotFound
from dataplane.runtimed.view import View
from dataplane.runtimed.writes import Writes
from statemachine.run import Phase, PodUID

PAUSE_S: Final = 0.02  # between two Runs: a rotation is no burst of writes
RETRY_S: Final = 5.0

_log = logging.getLogger(__name__)


class Bundles:
    """`views` are the Runs that are here. `look` once there may be something to write."""

    def __init__(self, me: PodUID, writes: Writes, views: Callable[[], Iterable[View]]) -> None:
        self._me = me
        self._writes = writes
        self._views = views
        self._look = asyncio.Event()

    def look(self) -> None:
        """The roots are others than before, or Runs were found that an earlier process of this Pod made Ready."""
        self._look.set()

    async def run(self) -> NoReturn:
        """Write what is to be written, for ever."""
        while True:
            await self._look.wait()
            self._look.clear()
            for view in list(self._views()):
                if not await self._refresh(view):
                    await asyncio.sleep(RETRY_S)
                    self._look.set()

    async def _refresh(self, view: View) -> bool:
        """False: the API gave no answer."""
        obj, run = view.obj, view.run
        if obj is None or run is None or run.phase is not Phase.READY or run.status.pod_uid != self._me:
            return True
        if obj.status.endpoint is None or obj.status.endpoint.ca_bundle == self._writes.ca_bundle:
            return True
        await asyncio.sleep(PAUSE_S)
        try:
            await self._writes.bundle(run)
        except (Invalid, NotFound):
            return True  # it has moved on: its next endpoint is new
        except KubeError as error:
            _log.warning("a caBundle is not renewed yet: %s", error, extra={"run": run.uid})
            return False
        return True
