"""All of one Pod: its Runs' workers, what they share, and how the Pod starts and drains.

Here: who gets a worker, when the Pod is ready, what ends it. Not here: what one Run does (`worker.py`), how calls are
answered (`serving.py`), sockets and certificates (`main.py`). The Kubernetes API, the clock and the way to the Runtime
Server come in through the constructor.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.codec import whole_quantity
from controlplane.kube.errors import KubeError
from controlplane.kube.informer import Change
from controlplane.kube.resources import RUNS
from controlplane.kube.translate import run_from_object
from controlplane.kube.types import Pod as PodObject
from controlplane.kube.types import RunObject, RuntimeObject
from dataplane.runtimed.alarms import CallLater
from dataplane.runtimed.artifacts import Artifacts, UploadFailed
from dataplane.runtimed.artifactstore import Store
from dataplane.runtimed.bundles import Bundles
from dataplane.runtimed.config import Config, endpoint_url
from dataplane.runtimed.crew import Crew
from dataplane.runtimed.decide import Host
from dataplane.runtimed.facts import RuntimeFacts
from dataplane.runtimed.failures import ServerLost
from dataplane.runtimed.gate import Gate
from dataplane.runtimed.gitauth import GitAuth
from dataplane.runtimed.gitcache import GitCache
from dataplane.runtimed.lease import Lease
from dataplane.runtimed.local import Local
from dataplane.runtimed.ports import Recorder, Tools
from dataplane.runtimed.preparation import Preparation
from dataplane.runtimed.routing import Here
from dataplane.runtimed.server_link import Connect, ServerLink
from dataplane.runtimed.slots import Room, room
from dataplane.runtimed.view import Journal, View
from dataplane.runtimed.watches import Watches
from dataplane.runtimed.workdir import WorkDir
from dataplane.runtimed.worker import Worker
from dataplane.runtimed.writes import Writes
from runtimes.contract import messages as m
from statemachine.ownership import PodFact, Projection
from statemachine.run import OWNED, TERMINAL, Epoch, Mode, PodUID, RunUID

LINGER_S: Final = 2.0  # from its drain on a Pod passes calls on this long, while endpoints catch up
LINGER_ALONE_S: Final = 0.2  # where no other Pod is ready there is nobody to pass them to
DRAIN_LOOK_S: Final = 1.0  # how often a drain looks again
UNWRITTEN_MAX_S: Final = 15.0  # of a drain: then only calls and tasks in flight keep the process, not an absent API

_log = logging.getLogger(__name__)


class Daemon:
    """`run` follows the API and the Runtime Server, `begin` takes up what is there, `start_draining` moves it away."""

    def __init__(
        self,
        config: Config,
        *,
        kube: Kube,
        clock: Clock,
        call_later: CallLater,
        connect: Connect,
        journal: Journal,
        recorder: Recorder,
        ca_bundle: Callable[[], str | None],
        rng: random.Random,
        on_server: Callable[[bool], None] = lambda up: None,
        on_lost: Callable[[], None] = lambda: None,
        on_pod_gone: Callable[[PodFact], None] = lambda pod: None,
    ) -> None:
        """`on_server` hears of the Runtime Server coming and going, `on_lost` that the own Pod is deleting or gone,
        `on_pod_gone` of peers that will not be dialled again."""
        self.draining = False
        self.capacity: dict[str, int] | None = None
        self._crew = Crew(self, on_left=self._left, on_failed=self._take_up)
        self.workdir = WorkDir(config.work_dir)
        self.artifacts = Artifacts(self.workdir, Store(config.artifacts) if config.artifacts is not None else None)
        self._kube = kube
        self.link = ServerLink(
            connect, name=config.pod_name, on_up=self._server_up, on_gap=self._wake, on_dead=self._server_dead
        )
        self.lease = Lease(
            kube,
            clock,
            namespace=config.namespace,
            pod_name=config.pod_name,
            pod_uid=config.pod_uid,
            on_lost=self._own_pod_lost,
            on_change=self._wake,
            rng=rng,
        )
        self._facts = RuntimeFacts(config.namespace, config.runtime, config.port)
        self._me = PodUID(config.pod_uid)
        self._namespace, self._runtime_name = config.namespace, config.runtime
        self._on_server = on_server
        self._on_lost = on_lost
        self._on_pod_gone = on_pod_gone
        self._own_pod_ready = False
        self._begun = False
        self._greeted = asyncio.Event()
        self._changed = asyncio.Event()
        writes = Writes(kube, ca_bundle)
        self.bundles = Bundles(self._me, writes, lambda: (worker.view for worker in self.workers.values()))
        self._tools = Tools(
            clock=clock,
            call_later=call_later,
            link=self.link,
            writes=writes,
            preparation=Preparation(
                self.link,
                self.workdir,
                auth=GitAuth.of(config.git_hosts, config.git_credentials_dir),
                cache=GitCache(config.source_cache_dir) if config.source_cache_dir is not None else None,
            ),
            workdir=self.workdir,
            artifacts=self.artifacts,
            journal=journal,
            recorder=recorder,
            endpoint_url=lambda uid: endpoint_url(config, uid),
            rng=rng,
        )
        self._watches = Watches(
            config,
            kube,
            clock,
            rng,
            on_run=self._run_changed,
            on_pod=self._pod_changed,
            on_runtime=self._runtime_changed,
        )

    @property
    def workers(self) -> Mapping[RunUID, Worker]:
        """The Runs that are here."""
        return self._crew.workers

    # --- life

    async def run(self) -> NoReturn:
        """Follow everything; ends only by cancellation, or by a defect."""
        async with asyncio.TaskGroup() as group:
            for work in (*self._watches.all(), self.link.run(), self.lease.run(), self.bundles.run()):
                group.create_task(work)
        raise AssertionError("what is followed has no end")

    async def begin(self) -> None:
        """Wait for the first lists and Hello; then take up what an earlier life left, and claim from here on."""
        await asyncio.gather(self._watches.listed(), self._greeted.wait())
        held = await self._held()
        given = {uid for uid, obj in self._watches.runs.items() if self._is_ours(obj)}
        for uid in given:
            self._crew.start(RunUID(uid), self._tools, starting=True).observe(self._watches.runs[uid])
        for epoch, entry in held.items():
            obj = self._watches.runs.get(epoch.run_uid)
            run = run_from_object(obj) if obj is not None else None
            if run is not None and run.phase in OWNED and run.epoch == epoch:
                continue
            worker = self.workers.get(epoch.run_uid)
            worker = worker or self._crew.start(epoch.run_uid, self._tools, starting=True)
            worker.take_over(epoch, Mode.TASK if entry.kind == "task" else Mode.FUNCTION)
            if obj is not None:
                worker.observe(obj)
        self._begun = True
        self._crew.wake()
        self.bundles.look()
        kept = {(epoch.run_uid, epoch.attempt) for epoch in held}
        self.artifacts.sweep(self._living)
        await self.workdir.sweep(epochs=kept, runs=set(self._watches.runs) | {epoch.run_uid for epoch in held})

    async def _held(self) -> dict[Epoch, m.HeldEpoch]:
        while True:
            try:
                return await self.link.held()
            except ServerLost:
                await self.link.until_up()

    def start_draining(self) -> None:
        """Move every Run away, claim none. Idempotent."""
        if not self.draining:
            _log.info("draining", extra={"runs": len(self.workers)})
            self.draining = True
            self._crew.wake()

    async def drained(self) -> None:
        """After `start_draining`: wait until no Run, call or task is left here, and endpoints have caught up."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self.workers:
            if not self._busy() and loop.time() > begun + UNWRITTEN_MAX_S:
                _log.warning("the API did not take the end of %d Runs", len(self.workers))
                break
            self._changed.clear()
            try:
                async with asyncio.timeout(DRAIN_LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # the last call may have ended, which tells nobody
        await asyncio.sleep(max(0.0, begun + (LINGER_S if self._others_ready() else LINGER_ALONE_S) - loop.time()))

    async def stop(self) -> None:
        """End all tasks of the workers; nothing is written."""
        await self._crew.stop()
        await self.artifacts.stop()
        self.link.close()

    def _others_ready(self) -> bool:
        return any(pod.uid != self._me for pod in self.projection.ready_pods(self._namespace, self._runtime_name))

    def _busy(self) -> bool:
        return any(
            (worker.jobs.gate is not None and worker.jobs.gate.in_flight > 0)
            or (worker.local is not None and worker.local.dispatched and not worker.local.cleared)
            for worker in self.workers.values()
        )

    # --- what workers ask (worker.Pod)

    def host(self) -> Host:
        return Host(
            pod_uid=self._me,
            draining=self.draining,
            server_up=self.link.up,
            fresh=self.lease.fresh,
            heard=self._own_pod_ready,
        )

    def room(self, uid: RunUID, requests: tuple[tuple[str, int], ...]) -> Room:
        if self.capacity is None:
            return Room.FREE
        others = (worker.holding for other, worker in self.workers.items() if other != uid)
        return room(requests, self.capacity, (local for local in others if local is not None))

    def shown(self, view: View) -> None:
        if view.run is not None:
            self._facts.run_seen(view.run)
        else:
            self._facts.run_gone(view.uid)

    def slot_freed(self) -> None:
        self._crew.wake()
        self._changed.set()

    # --- what serving asks (serving.Facts)

    @property
    def projection(self) -> Projection:
        return self._facts.projection

    def here(self, uid: str) -> Here:
        worker = self.workers.get(RunUID(uid))
        return Here(
            pod_uid=self._me,
            local=worker.local if worker is not None else None,
            run=worker.view.run if worker is not None else None,
            fresh=self.lease.fresh,
            draining=self.draining,
        )

    def gate(self, local: Local) -> Gate | None:
        worker = self.workers.get(local.epoch.run_uid)
        return worker.jobs.gate if worker is not None and worker.local is local else None

    async def fact_of(self, uid: str, *, timeout: float) -> bool:
        return await self._facts.fact_of(uid, timeout=timeout)

    # --- what the API and the Runtime Server say

    def _run_changed(self, change: Change[RunObject]) -> None:
        obj = change.current
        if obj is None:
            assert change.previous is not None
            self._run_gone(RunUID(change.previous.metadata.uid))
            return
        uid = RunUID(obj.metadata.uid)
        worker = self.workers.get(uid)
        if worker is not None:
            worker.observe(obj)
        elif not self._crew.is_news(obj):
            return  # a watch line from before the end of the worker that wrote what it says
        elif self._begun and self._is_ours(obj):
            self._crew.start(uid, self._tools).observe(obj)
        else:
            self._facts.run_seen(run_from_object(obj))

    def _run_gone(self, uid: RunUID) -> None:
        worker = self.workers.get(uid)
        if worker is not None:
            worker.removed()
        else:
            self._facts.run_gone(uid)
            self._forget(uid)

    def _forget(self, uid: RunUID) -> None:
        """The object is gone, and so is what it left."""
        self.workdir.forget_log(uid)
        self.artifacts.forget(uid)

    async def _living(self) -> set[str]:
        try:
            runs = await self._kube.list(RUNS, self._namespace)
        except KubeError as error:
            raise UploadFailed(f"which Runs are left cannot be read: {error}") from error
        return {obj.metadata.uid for obj in runs.items}

    def _is_ours(self, obj: RunObject) -> bool:
        run = run_from_object(obj)
        unfinished = run.holds_slot or (run.phase in TERMINAL and run.finalizer)
        return unfinished and run.status.pod_uid == self._me

    def _pod_changed(self, change: Change[PodObject]) -> None:
        pod = change.current
        uid = (pod or change.previous).metadata.uid  # type: ignore[union-attr]
        if pod is None:
            left = self._facts.pod_gone(uid)
            if left is not None:
                self._on_pod_gone(left)
        else:
            self._facts.pod_seen(pod)
        if uid != self._me:
            return
        was_ready, self._own_pod_ready = self._own_pod_ready, pod is not None and pod.ready
        if pod is None or pod.metadata.deleting:
            self.lease.give_up("the watch shows the own Pod deleting or gone")
        elif self._own_pod_ready != was_ready:
            self._crew.wake()

    def _runtime_changed(self, change: Change[RuntimeObject]) -> None:
        if change.current is None:
            return  # a Runtime that is being deleted drains its Pods; what it declared still holds for them
        try:
            declared = change.current.spec.capacity.resources
            self.capacity = {name: whole_quantity(value) for name, value in declared.items()}
        except ValueError as error:
            _log.warning("the Runtime's capacity cannot be read: %s", error)
        self._crew.wake()

    def _server_up(self, hello: m.HelloReply, replaced: bool) -> None:
        _log.info("the Runtime Server said Hello", extra={"instance": hello.instance_id, "held": len(hello.held)})
        if replaced:
            self._server_died()
        self._greeted.set()
        self._on_server(True)
        self._crew.wake()

    def _server_dead(self) -> None:
        self._on_server(False)
        self._server_died()
        self._crew.wake()

    def _server_died(self) -> None:
        for worker in list(self.workers.values()):
            worker.server_died()

    def _own_pod_lost(self) -> None:
        self.start_draining()
        self._on_lost()

    def _wake(self) -> None:
        self._crew.wake()

    # --- the crew

    def _left(self, uid: RunUID) -> None:
        """Nothing of a Run is here any more."""
        self._changed.set()
        if uid not in self._watches.runs:
            self._forget(uid)
        else:
            self._take_up(uid)
        self._crew.wake()

    def _take_up(self, uid: RunUID) -> None:
        """A worker for a Run that became ours while its last one ended, or whose last one failed."""
        obj = self._watches.runs.get(uid)
        if obj is not None and uid not in self.workers and self._is_ours(obj) and self._crew.is_news(obj):
            self._crew.start(uid, self._tools).observe(obj)
