"""A keyed work queue: one key at a time, again if it was touched meanwhile, later if it failed.

Lives here: order and retries. May not live here: what a key means. Deployments, ReplicaSets and Services use it next.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from controlplane.embedded.node.limits import WRITE_RETRY_FIRST_SECONDS, WRITE_RETRY_MAX_SECONDS
from controlplane.kube.backoff import Backoff
from controlplane.kube.errors import KubeError

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)


class Reconciler(Generic[K]):
    """Calls `reconcile(key)` for each touched key. A KubeError puts the key back after a backoff; anything else that is
    raised is our own mistake and ends `run`."""

    def __init__(self, name: str, reconcile: Callable[[K], Awaitable[None]]) -> None:
        self._name = name
        self._reconcile = reconcile
        self._touched: dict[K, None] = {}
        self._wake = asyncio.Event()
        self._backoffs: dict[K, Backoff] = {}

    def touch(self, key: K) -> None:
        """Something that `key` depends on may have changed."""
        self._touched[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Work for ever."""
        while True:
            await self._wake.wait()
            while self._touched:
                key = next(iter(self._touched))
                del self._touched[key]
                try:
                    await self._reconcile(key)
                    self._backoffs.pop(key, None)
                except KubeError as error:
                    self._retry(key, error)
            self._wake.clear()

    def _retry(self, key: K, error: KubeError) -> None:
        backoff = self._backoffs.setdefault(
            key, Backoff(WRITE_RETRY_FIRST_SECONDS, WRITE_RETRY_MAX_SECONDS, random.Random())
        )
        delay = backoff.next_delay()
        _log.warning("%s %s: %s, trying again", self._name, key, error, extra={"retrySeconds": round(delay, 3)})
        asyncio.get_running_loop().call_later(delay, self.touch, key)
