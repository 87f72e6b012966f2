"""What runtimed writes to the API, and the read that follows a refusal: commands in, objects out.

Here: which endpoint each command goes to. Not here: when (`decide.py`), in which order (`worker.py`). Every write is a
tested JSON Patch (L11). Next: `worker.py`.
"""

from collections.abc import Callable
from typing import Final

from controlplane.kube.api import Kube
from controlplane.kube.errors import NotFound
from controlplane.kube.patches import (
    bundle_patch,
    encoded_bundle,
    finalizer_taken,
    put_finalizer_patch,
    status_patch,
    take_finalizer_patch,
)
from controlplane.kube.resources import RUNS
from controlplane.kube.types import RunObject
from statemachine.commands import PatchStatus, PutFinalizer, TakeFinalizer
from statemachine.run import Run

STATUS: Final = "status"


class Writes:
    """Bound to one namespace's Runs. Every method raises KubeError. `ca_bundle` is what a Ready patch publishes."""

    def __init__(self, kube: Kube, ca_bundle: Callable[[], str | None]) -> None:
        self._kube = kube
        self._ca_bundle = ca_bundle

    @property
    def ca_bundle(self) -> str | None:
        """What is published now, as an endpoint has it."""
        bundle = self._ca_bundle()
        return None if bundle is None else encoded_bundle(bundle)

    async def bundle(self, run: Run) -> RunObject:
        """Publish what is to be published now with the endpoint of a Ready Run."""
        ops = bundle_patch(run, self._ca_bundle() or "")
        return await self._kube.json_patch(RUNS, run.namespace, run.name, ops, subresource=STATUS)

    async def status(self, before: Run, command: PatchStatus) -> RunObject:
        """Write a status over what `before` shows."""
        ops = status_patch(before, command, ca_bundle=self._ca_bundle())
        return await self._kube.json_patch(RUNS, before.namespace, before.name, ops, subresource=STATUS)

    async def put_finalizer(self, obj: RunObject, command: PutFinalizer) -> RunObject:
        """Put ours on; the object as it is then."""
        ops = put_finalizer_patch(obj, command)
        return await self._patch(obj, ops) if ops else obj

    async def take_finalizer(self, obj: RunObject, command: TakeFinalizer) -> RunObject | None:
        """Take ours off. None: nothing else held the object, and it is gone."""
        ops = take_finalizer_patch(obj, command)
        return finalizer_taken(await self._patch(obj, ops)) if ops else obj

    async def read(self, namespace: str, name: str, uid: str) -> RunObject | None:
        """The object as the API has it now; None when it, or the one of that UID, is gone."""
        try:
            obj = await self._kube.get(RUNS, namespace, name)
        except NotFound:
            return None
        return obj if obj.metadata.uid == uid else None

    async def _patch(self, obj: RunObject, ops: list[dict[str, object]]) -> RunObject:
        return await self._kube.json_patch(RUNS, obj.metadata.namespace, obj.metadata.name, ops)
