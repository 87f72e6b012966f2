"""The control plane put together: informers feed the loop, the scheduler, recovery and the Runtime controller.

Only wiring: who hears what, and who is started when. `main` gives it the real API, clock and alarms; tests and the
simulation give it theirs.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry

from controlplane.kube import ownerreports
from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import EVENTS, PODS, RUNTIMES
from controlplane.kube.types import Pod, RuntimeObject
from controlplane.lean import LEAN_RUNS
from controlplane.loop import Journal, RunLoop
from controlplane.metrics import LoopMetrics, gauge_of
from controlplane.performer import Performer, Recorder
from controlplane.recovery.recovery import Recovery
from controlplane.runtimecontroller.controller import RuntimeController
from controlplane.runtimecontroller.objects import SELECTOR, kinds
from controlplane.runtimecontroller.podcare import PodCare
from controlplane.runtimecontroller.template import RUNTIME_LABEL, Settings
from controlplane.scheduler.scheduler import Scheduler
from controlplane.succession import no_successor
from controlplane.tasks import Tasks
from controlplane.timers import CallLater, Timers, Vigil

COMPONENT: Final = "kruntimes-controlplane"


class ControlPlane:
    """Everything that decides about Runs and Runtimes, over one API. Make it inside a running event loop."""

    def __init__(
        self,
        *,
        kube: Kube,
        clock: Clock,
        call_later: CallLater,
        recorder: Recorder,
        journal: Journal | None,
        settings: Settings,
        registry: CollectorRegistry,
        successor_awaited: Callable[[], Awaitable[bool]] = no_successor,
    ) -> None:
        self.tasks = Tasks()
        self.timers = Timers(clock, call_later)
        self.vigil = Vigil(clock, call_later)
        self.loop = RunLoop(
            kube=kube,
            performer=Performer(kube=kube, recorder=recorder),
            clock=clock,
            timers=self.timers,
            vigil=self.vigil,
            call_later=call_later,
            tasks=self.tasks,
            journal=journal,
            metrics=LoopMetrics(registry),
        )
        self.scheduler = Scheduler(decide=self.loop.decide, clock=clock, timers=self.timers, call_later=call_later)
        self.recovery = Recovery(
            kube=kube,
            clock=clock,
            timers=self.timers,
            vigil=self.vigil,
            tasks=self.tasks,
            run=self.loop.run,
            decide=self.loop.decide,
        )
        self.runtimes = RuntimeController(
            kube=kube,
            clock=clock,
            call_later=call_later,
            tasks=self.tasks,
            recorder=recorder,
            settings=settings,
            totals=self.scheduler.planner.totals,
            successor_awaited=successor_awaited,
        )
        self.pod_care = PodCare(kube=kube, vigil=self.vigil, tasks=self.tasks, recorder=recorder)
        scheduler = self.scheduler
        self.loop.follow(scheduler.run_changed, settled=scheduler.run_settled, due=scheduler.run_due)
        self.loop.follow(self.recovery.run_changed)
        self.loop.follow(self.runtimes.run_changed)
        informer = functools.partial(Informer, kube, clock=clock)
        self.informers: tuple[Informer[Any], ...] = (
            informer(RUNTIMES, on_change=self._runtime_changed),
            informer(PODS, labels=RUNTIME_LABEL, on_change=self._pod_changed),
            informer(LEAN_RUNS, on_change=self.loop.changed),
            *(
                informer(kind, labels=SELECTOR, on_change=_of(kind, self.runtimes.owned_changed))
                for kind in kinds(settings)
            ),
        )
        # Not waited for at the start: decisions do not rest on reports.
        self._reports = informer(EVENTS, fields=ownerreports.SELECTOR, on_change=self.recovery.report_seen)
        self.started = asyncio.Event()
        self._gauges(registry, clock)

    async def run(self) -> None:
        """Follow the API and decide, until cancelled. Raises what a component died of: a defect of ours."""
        try:
            async with asyncio.TaskGroup() as group:
                for informer in (*self.informers, self._reports):
                    group.create_task(informer.run())
                group.create_task(self.tasks.watch())
                group.create_task(self._start())
        finally:
            self._stop()
            await self.tasks.close()

    async def _start(self) -> None:
        """Decide only once everything has been seen: an empty cache proves nothing."""
        for informer in self.informers:
            await informer.synced.wait()
        self.runtimes.start()
        self.recovery.start()
        self.scheduler.start()
        self.started.set()

    def _stop(self) -> None:
        self.started.clear()
        for component in (self.scheduler, self.recovery, self.runtimes, self.loop, self.timers, self.vigil):
            component.close()

    def _runtime_changed(self, change: Change[RuntimeObject]) -> None:
        self.scheduler.runtime_changed(change)
        self.runtimes.runtime_changed(change)

    def _pod_changed(self, change: Change[Pod]) -> None:
        self.scheduler.pod_changed(change)
        self.recovery.pod_changed(change)
        self.runtimes.pod_changed(change)
        self.pod_care.pod_changed(change)

    def _gauges(self, registry: CollectorRegistry, clock: Clock) -> None:
        planner = self.scheduler.planner
        gauge_of(registry, "kruntimes_runs_waiting", "Runs that want a Pod", lambda: planner.waiting)
        gauge_of(registry, "kruntimes_bindings_assumed", "Bindings under way", lambda: planner.assumed)

        def stale_s() -> float:
            since = [at for informer in self.informers if (at := informer.stale_since()) is not None]
            return clock.monotonic() - min(since) if since else 0.0

        gauge_of(registry, "kruntimes_stale_seconds", "How long the stalest watch has not been heard", stale_s)


def _of(kind: Any, handle: Callable[[Any, Change[Any]], None]) -> Callable[[Change[Any]], None]:
    return functools.partial(handle, kind)
