"""What of the Kubernetes API this Pod follows: the Runs and Pods of its Runtime, and the Runtime itself.

Here: three informers and when their first lists are in. Not here: what a change means (`daemon.py`).
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from controlplane.kube.types import Pod, RunObject, RuntimeObject
from dataplane.runtimed.config import Config

RUNTIME_LABEL: Final = "kruntimes.io/runtime"
CAPACITY_WAIT_S: Final = 5.0  # then the scheduler's word is taken until the Runtime can be read

_log = logging.getLogger(__name__)


class Watches:
    """Handlers are called on the loop, must be quick and must not raise."""

    def __init__(
        self,
        config: Config,
        kube: Kube,
        clock: Clock,
        rng: random.Random,
        *,
        on_run: Callable[[Change[RunObject]], None],
        on_pod: Callable[[Change[Pod]], None],
        on_runtime: Callable[[Change[RuntimeObject]], None],
    ) -> None:
        where, name = config.namespace, config.runtime
        self._runs: Informer[RunObject] = Informer(
            kube, RUNS, namespace=where, fields=f"spec.runtime={name}", on_change=on_run, clock=clock, rng=rng
        )
        self._pods: Informer[Pod] = Informer(
            kube, PODS, namespace=where, labels=f"{RUNTIME_LABEL}={name}", on_change=on_pod, clock=clock, rng=rng
        )
        self._runtime: Informer[RuntimeObject] = Informer(
            kube, RUNTIMES, namespace=where, fields=f"metadata.name={name}", on_change=on_runtime, clock=clock, rng=rng
        )

    @property
    def runs(self) -> Mapping[str, RunObject]:
        """The Runs of the Runtime by UID, as last heard."""
        return self._runs.store

    def all(self) -> tuple[Coroutine[Any, Any, Any], ...]:
        """What has to run for ever."""
        return self._runs.run(), self._pods.run(), self._runtime.run()

    async def listed(self) -> None:
        """Wait for the first lists, which are read from the API's storage; for the Runtime only a while."""
        await asyncio.gather(self._runs.synced.wait(), self._pods.synced.wait())
        try:
            async with asyncio.timeout(CAPACITY_WAIT_S):
                await self._runtime.synced.wait()
        except TimeoutError:
            _log.warning("the Runtime cannot be read yet: its capacity is not checked here")
