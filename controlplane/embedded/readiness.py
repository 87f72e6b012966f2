"""What `ready` means: Runtime Pods that would take a Run at once, and a gateway that answers.

Lives here: waiting for both, and saying what is missing. May not live here: bringing them about. `bootstrap` calls it
next.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from controlplane.kube.api import Kube
from controlplane.kube.clock import SystemClock
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import PODS
from controlplane.kube.types import Pod

RUNTIME_LABEL: Final = "kruntimes.io/runtime"
GATEWAY_RETRY_SECONDS: Final = 0.05
GATEWAY_TIMEOUT_SECONDS: Final = 5.0

TELL_EVERY_SECONDS: Final = 5.0
"""How often a human who waits is told what for."""

READY_MAX_SECONDS: Final = 120.0
"""A system that is not ready by then will not be: a start takes two seconds, on a busy machine ten."""


class NotReady(Exception):
    """READY_MAX_SECONDS have passed; the message says what is missing."""


class Readiness:
    """Waits for the Runtimes named and the gateway at `url`, verified by the certificates in `ca`."""

    def __init__(self, kube: Kube, *, namespace: str, runtimes: Sequence[str], url: str, ca: Path) -> None:
        self._kube = kube
        self._namespace = namespace
        self._url = url
        self._ca = ca
        self._missing = dict.fromkeys(runtimes, "it has no Pod")
        self._gateway = "nobody listens"
        self._found = asyncio.Event()

    async def wait(self, tell: Callable[[str], None]) -> None:
        """Until everything is there. `tell` hears now and then what is missing. Raises NotReady."""
        async with asyncio.TaskGroup() as group:
            telling = group.create_task(self._tell(tell))
            async with asyncio.TaskGroup() as waits:
                waits.create_task(self._wait_for_runtimes())
                waits.create_task(self._wait_for_gateway())
            telling.cancel()

    def missing(self) -> str:
        """One sentence, "" if nothing is."""
        parts = [f"Runtime {name}: {why}" for name, why in sorted(self._missing.items())]
        return "; ".join(parts + ([f"gateway: {self._gateway}"] if self._gateway else []))

    async def _tell(self, tell: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_MAX_SECONDS
        while loop.time() < deadline:
            await asyncio.sleep(TELL_EVERY_SECONDS)
            tell(f"waiting for {self.missing()}")
        raise NotReady(f"not ready after {READY_MAX_SECONDS:.0f} s: {self.missing()}")

    async def _wait_for_runtimes(self) -> None:
        if not self._missing:
            return
        informer = Informer(
            self._kube,
            PODS,
            namespace=self._namespace,
            labels=RUNTIME_LABEL,
            on_change=self._on_pod,
            clock=SystemClock(),
        )
        following = asyncio.create_task(informer.run())
        try:
            await self._found.wait()
        finally:
            following.cancel()

    def _on_pod(self, change: Change[Pod]) -> None:
        pod = change.current
        name = pod.metadata.labels.get(RUNTIME_LABEL, "") if pod is not None else ""
        if pod is None or name not in self._missing:
            return
        if pod.ready:
            del self._missing[name]
        else:
            self._missing[name] = f"Pod {pod.metadata.name} is not ready ({why_not_ready(pod)})"
        if not self._missing:
            self._found.set()

    async def _wait_for_gateway(self) -> None:
        context = ssl.create_default_context(cafile=self._ca)
        timeout = aiohttp.ClientTimeout(total=GATEWAY_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), timeout=timeout) as session:
            while self._gateway:
                try:
                    async with session.get(f"{self._url}/readyz") as answer:
                        self._gateway = "" if answer.status == 200 else f"it answers {answer.status}"
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._gateway = str(error) or type(error).__name__
                if self._gateway:
                    await asyncio.sleep(GATEWAY_RETRY_SECONDS)


def why_not_ready(pod: Pod) -> str:
    """The first container that waits, keeps ending or is not ready, and what it says."""
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = status.state.waiting if status.state is not None else None
        if waiting is not None:
            return f"{status.name}: {waiting.message or waiting.reason}"
        if status.restart_count:
            return f"{status.name} was restarted {status.restart_count} times"
        if not status.ready:
            return f"{status.name} is not ready"
    return pod.status.phase or "Pending"
