"""The owner's lease: calls and tasks are dispatched only while the API itself has lately shown this Pod to exist.

It is the other half of the fence (L2): whoever replaces an owner waits 60 s after reading that its Pod is gone or
deleting, and this lease has lapsed 45 s after the *start* of the last good read. A watch proves nothing here: it may be
silent for other reasons. Next: `serving.py` and `worker.py` ask `fresh`, `daemon.py` runs it.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final, NoReturn

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import KubeError, NotFound
from controlplane.kube.resources import PODS
from statemachine.run import OWNER_LEASE_MS

READ_EVERY_S: Final = 15.0  # two reads may fail before the lease lapses
READ_TIMEOUT_S: Final = 10.0  # an answer that takes longer is of little use: it counts from its start
RETRY_S: Final = 3.0  # after a failed read

_log = logging.getLogger(__name__)


class Lease:
    """Reads the own Pod every 15 s. `on_lost` is called once, when the Pod is deleting or gone; that is final."""

    def __init__(
        self,
        kube: Kube,
        clock: Clock,
        *,
        namespace: str,
        pod_name: str,
        pod_uid: str,
        on_lost: Callable[[], None],
        on_change: Callable[[], None],
        rng: random.Random | None = None,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._pod_name = pod_name
        self._pod_uid = pod_uid
        self._on_lost = on_lost
        self._on_change = on_change
        self._rng = rng or random.Random()
        self._good_until: float | None = None
        self.lost = False

    @property
    def fresh(self) -> bool:
        """Whether calls and tasks may be dispatched now."""
        return not self.lost and self._good_until is not None and self._clock.monotonic() <= self._good_until

    async def read(self) -> bool:
        """Read the own Pod once; True when the API answered. Raises nothing of the API's."""
        begun = self._clock.monotonic()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                pod = await self._kube.get(PODS, self._namespace, self._pod_name)
        except NotFound:
            self.give_up("the API has no Pod of this name")
            return True
        except (KubeError, TimeoutError) as error:
            _log.warning("cannot read the own Pod: %s", error or "no answer in time")
            return False
        if pod.metadata.uid != self._pod_uid:
            self.give_up("another Pod has this name")
        elif pod.metadata.deleting:
            self.give_up("the own Pod is deleting")
        else:
            was_fresh = self.fresh
            self._good_until = begun + OWNER_LEASE_MS / 1000
            if not was_fresh:
                self._on_change()
        return True

    def give_up(self, why: str) -> None:
        """The Pod is deleting or gone (a read or the watch said so): dispatch nothing more."""
        if not self.lost:
            self.lost = True
            _log.info("the lease is given up: %s", why)
            self._on_lost()

    async def run(self) -> NoReturn:
        """Keep reading for ever."""
        while True:
            answered = await self.read()
            await asyncio.sleep(READ_EVERY_S * self._rng.uniform(0.9, 1.0) if answered else RETRY_S)
