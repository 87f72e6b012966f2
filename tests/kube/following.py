"""An informer of ConfigMaps whose changes are written down in a line each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from controlplane.kube.client import KubeClient
from controlplane.kube.clock import SystemClock
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import CONFIGMAPS
from controlplane.kube.types import ConfigMap
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube

MAPS = "/api/v1/namespaces/default/configmaps"


class Seen:
    """What an informer told: "+name@version", "~name@version", "-name", "LISTED"."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def change(self, change: Change[ConfigMap]) -> None:
        if change.current is None:
            assert change.previous is not None
            self.lines.append(f"-{change.previous.metadata.name}")
        else:
            sign = "+" if change.previous is None else "~"
            self.lines.append(f"{sign}{change.current.metadata.name}@{change.current.metadata.resource_version}")

    def listed(self) -> None:
        self.lines.append("LISTED")


@asynccontextmanager
async def running(informer: Informer[ConfigMap]) -> AsyncIterator[asyncio.Task[None]]:
    task: asyncio.Task[None] = asyncio.create_task(informer.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def following(
    kube: FakeKube | KubeClient, seen: Seen, clock: ManualClock | SystemClock | None = None
) -> Informer[ConfigMap]:
    return Informer(
        kube,
        CONFIGMAPS,
        namespace="default",
        on_change=seen.change,
        on_listed=seen.listed,
        clock=clock or ManualClock(),
    )
