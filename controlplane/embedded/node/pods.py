"""All Pods of this node: one actor each, from the moment the API shows a Pod until nothing of it is left.

Lives here: making actors and routing reports to them; what no Pod claims is ended. `main` runs it next.
"""

import asyncio
import logging
import shutil
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from controlplane.embedded import spawning
from controlplane.embedded.node.context import NodeContext
from controlplane.embedded.node.limits import JOURNALS_KEPT
from controlplane.embedded.node.pod import PodActor
from controlplane.kube.errors import KubeError
from controlplane.kube.informer import Change
from controlplane.kube.resources import PODS
from controlplane.kube.types import Pod

T = TypeVar("T")

_log = logging.getLogger(__name__)


class PodManager:
    """Starts actors once both are known: which Pods the API has, and which processes the supervisor has."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._actors: dict[str, PodActor] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, spawning.Started] = {}
        self._ended: dict[str, spawning.Exited] = {}
        self._over: set[str] = set()  # nothing of them runs any more, but the API still has them
        self._enumerated = asyncio.Event()
        self._begun = False
        self._stop_grace: float | None = None
        self._failed = asyncio.get_running_loop().create_future()

    def on_report(self, report: spawning.Report) -> None:
        """The supervisor's reports, Shutdown excepted."""
        match report:
            case spawning.Enumerated():
                self._enumerated.set()
            case spawning.Started() if not self._begun:
                self._running[report.id] = report
            case spawning.Exited() if not self._begun:
                self._running.pop(report.id, None)
                self._ended[report.id] = report
            case spawning.Started() | spawning.Exited() | spawning.Refused():
                actor = self._actors.get(report.id.partition("/")[0])
                if actor is not None:
                    actor.report(report)
                elif isinstance(report, spawning.Exited):
                    self._context.spawner.forget(report.id)
            case _:
                pass

    def on_pod(self, change: Change[Pod]) -> None:
        """A Pod came, changed or went."""
        if not self._begun:
            return
        if change.current is None:
            assert change.previous is not None
            self._over.discard(change.previous.metadata.uid)
            actor = self._actors.get(change.previous.metadata.uid)
            if actor is not None:
                actor.vanish()
        elif (actor := self._actors.get(change.current.metadata.uid)) is not None:
            actor.observe(change.current)
        elif change.current.metadata.uid not in self._over:
            self._admit(change.current)

    async def begin(self, pods: Mapping[str, Pod], synced: asyncio.Event) -> None:
        """Take up every Pod, end what belongs to none, then follow."""
        await synced.wait()
        await self._enumerated.wait()
        self._begun = True
        for id in [*self._running, *self._ended]:
            if id.partition("/")[0] not in pods:
                self._context.spawner.signal(id, signal.SIGKILL)
                self._context.spawner.forget(id)
        for folder in (self._context.data_dir / "pods").iterdir():
            if folder.name not in pods:
                shutil.rmtree(folder, ignore_errors=True)
        _bound_journals(self._context.data_dir / "journal", pods)
        for pod in list(pods.values()):
            self._admit(pod)
        self._running.clear()
        self._ended.clear()

    async def shut_down(self, grace_seconds: float) -> None:
        """End the containers of all Pods; returns when none runs any more."""
        self._stop_grace = grace_seconds
        for actor in self._actors.values():
            actor.shut_down(grace_seconds)
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def failure(self) -> None:
        """Raises what an actor died of: our own mistake, which ends the node (and a new one adopts everything)."""
        await self._failed

    def _admit(self, pod: Pod) -> None:
        if not pod.spec.node_name:
            self._spawn_task(f"bind {pod.metadata.uid}", self._bind(pod))
            return
        if pod.spec.node_name != self._context.node_name:
            return
        actor = PodActor(self._context, pod)
        uid = pod.metadata.uid
        actor.restore(_of(uid, self._running), _of(uid, self._ended))
        self._actors[uid] = actor
        if self._stop_grace is not None:
            actor.shut_down(self._stop_grace)
        self._spawn_task(uid, actor.run())

    async def _bind(self, pod: Pod) -> None:
        """A Pod that names no node runs here: there is no other."""
        ops = [
            {"op": "test", "path": "/metadata/uid", "value": pod.metadata.uid},
            {"op": "add", "path": "/spec/nodeName", "value": self._context.node_name},
        ]
        try:
            await self._context.kube.json_patch(PODS, pod.metadata.namespace, pod.metadata.name, ops)
        except KubeError as error:
            _log.warning("pod %s not bound: %s", pod.metadata.name, error)

    def _spawn_task(self, key: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"pod {key}")
        self._tasks[key] = task

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.pop(key, None)
            if self._actors.pop(key, None) is not None:
                self._over.add(key)
            if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
                self._failed.set_exception(error)

        task.add_done_callback(over)


def _bound_journals(folder: Path, pods: Mapping[str, Pod]) -> None:
    """Of journals whose Pod is gone only the newest stay."""
    if not folder.is_dir():
        return
    gone = [
        path
        for path in folder.iterdir()
        if path.name.startswith("runtimed-") and path.name[len("runtimed-") :] not in pods
    ]
    for path in sorted(gone, key=lambda path: path.stat().st_mtime, reverse=True)[JOURNALS_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def _of(uid: str, reports: dict[str, T]) -> dict[str, T]:
    return {id: report for id, report in reports.items() if id.startswith(f"{uid}/")}
