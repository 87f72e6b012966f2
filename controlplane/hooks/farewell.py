"""Before an uninstallation: nothing stays behind that only kruntimes could take away.

Custom resources are the user's and stay. So that they can be deleted later, when nobody of ours is there, no Run keeps
our finalizer: deciding ends, Runtime Pods drain (calls in flight end, tasks have their grace, Runs go back to Pending),
then the finalizers and the identities of Pods go. Each step may be repeated. A later installation takes the Runs up.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from controlplane.kube.api import Kube
from controlplane.kube.errors import Conflict, Invalid, NotFound
from controlplane.kube.resources import DEPLOYMENTS, PODS, RUNS
from controlplane.kube.translate import FINALIZER
from controlplane.kube.types import Pod, RunObject
from controlplane.runtimecontroller.objects import IDENTITY, SELECTOR
from controlplane.runtimecontroller.template import RUNTIME_LABEL

CONTROL_PLANE: Final = "kruntimes-controlplane"
CONTROL_PLANE_LABELS: Final = "app.kubernetes.io/name=kruntimes,app.kubernetes.io/component=controlplane"
CONTROL_PLANE_END_S: Final = 60.0
LOOK_S: Final = 0.5
ROUNDS: Final = 20  # of taking finalizers: a Run that somebody changed in between is looked at again
SHOWN: Final = 5  # names in a message

_log = logging.getLogger(__name__)


class NotDone(Exception):
    """Something is not gone in time; the message says what, and what may be done."""


class Farewell:
    """See the file's docstring. `drain_s` bounds the wait for Runtime Pods."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        drain_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._drain_s = drain_s
        self._sleep = sleep
        self._monotonic = monotonic

    async def run(self) -> None:
        """All of it. Raises NotDone, KubeError."""
        await self._end_deciding()
        await self._end_pods()
        await self._take_finalizers()
        await self._delete_identities()
        _log.info("custom resources stay, and nothing holds them")

    async def _end_deciding(self) -> None:
        await self._scale_to_zero(self._namespace, CONTROL_PLANE)
        await self._gone(CONTROL_PLANE_LABELS, self._namespace, CONTROL_PLANE_END_S, "control plane")

    async def _end_pods(self) -> None:
        deployments = await self._kube.list(DEPLOYMENTS, labels=SELECTOR)
        for deployment in deployments.items:
            await self._scale_to_zero(deployment.metadata.namespace, deployment.metadata.name)
        await self._gone(RUNTIME_LABEL, None, self._drain_s, "Runtimes")

    async def _scale_to_zero(self, namespace: str, name: str) -> None:
        try:
            await self._kube.merge_patch(DEPLOYMENTS, namespace, name, {"spec": {"replicas": 0}})
        except NotFound:
            return

    async def _gone(self, labels: str, namespace: str | None, within_s: float, whose: str) -> None:
        """Wait until no Pod with these labels may still run something. Raises NotDone."""
        deadline = self._monotonic() + within_s
        while left := [pod for pod in (await self._kube.list(PODS, namespace, labels=labels)).items if _runs(pod)]:
            if self._monotonic() >= deadline:
                names = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in left[:SHOWN])
                raise NotDone(
                    f"{len(left)} Pods of {whose} still run after {within_s:g} s ({names}): wait for their calls or "
                    "delete them, and uninstall again; helm uninstall --no-hooks leaves them and their Runs as they are"
                )
            await self._sleep(LOOK_S)

    async def _take_finalizers(self) -> None:
        for _ in range(ROUNDS):
            held = [run for run in (await self._kube.list(RUNS)).items if FINALIZER in run.metadata.finalizers]
            if not held:
                return
            _log.info("taking finalizers", extra={"runs": len(held)})
            for run in held:
                await self._take_finalizer(run)
        raise NotDone(f"{len(held)} Runs are changed again and again, and keep the finalizer {FINALIZER}")

    async def _take_finalizer(self, run: RunObject) -> None:
        place = f"/metadata/finalizers/{run.metadata.finalizers.index(FINALIZER)}"
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": run.metadata.uid},
            {"op": "test", "path": place, "value": FINALIZER},
            {"op": "remove", "path": place},
        ]
        try:
            await self._kube.json_patch(RUNS, run.metadata.namespace, run.metadata.name, ops)
        except (Invalid, NotFound):
            return  # it has changed: the next round sees how

    async def _delete_identities(self) -> None:
        for kind in IDENTITY:
            for obj in (await self._kube.list(kind, labels=SELECTOR)).items:
                metadata = obj.metadata
                try:
                    await self._kube.delete(kind, metadata.namespace, metadata.name, uid=metadata.uid)
                except (NotFound, Conflict):
                    continue


def _runs(pod: Pod) -> bool:
    return not pod.finished
