"""Keeps what every Runtime needs in the API, and its status true.

A Runtime is applied when its spec changes, when this process first sees it, and when something of it was changed or
removed by others. One task at a time works for one Runtime. Deletion: garbage collection follows owners, and
`identities` removes the rest once the last Pod has drained.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import KubeError, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.resources import RUNTIMES, Kind
from controlplane.kube.types import PlainObject, Pod, RuntimeObject
from controlplane.performer import Recorder
from controlplane.runtimecontroller.identities import Identities, Key
from controlplane.runtimecontroller.objects import DEPLOYMENT, MANAGER, object_name, unwanted_objects, wanted_objects
from controlplane.runtimecontroller.status import RuntimeReason, Trouble, shown_status, wanted_status
from controlplane.runtimecontroller.template import CA_CONFIG_MAP, RUNTIME_LABEL, Settings, problems
from controlplane.tasks import Tasks
from controlplane.timers import Alarm, CallLater
from statemachine.run import Run

Totals = tuple[Mapping[str, int], Mapping[str, int]]

STATUS_INTERVAL_S: Final = 1.0  # spec: capacity is written at most once a second
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
SUCCESSOR_LOOK_S: Final = 2.0  # how often one that is about to be replaced looks whether it still is
SUCCESSOR_WAIT_S: Final = 60.0  # a successor that does not come is not waited for longer
DRIFT_S: Final = 1.0  # what others change is put right this much later: nobody can make us write in a circle

_log = logging.getLogger(__name__)


class _Work:
    """One Runtime: as last seen, what is to be done for it and what was done."""

    def __init__(self, runtime: RuntimeObject) -> None:
        self.runtime = runtime
        self.pods: dict[str, Pod] = {}
        self.applying = False
        self.apply_again = False
        self.left_since: float | None = None
        self.failures = 0
        self.trouble: Trouble | None = None
        self.applied: dict[str, int] = {}
        self.seen: dict[str, int | None] = {}
        self.drift_alarm: Alarm | None = None
        self.apply_alarm: Alarm | None = None
        self.status_alarm: Alarm | None = None
        self.status_busy = False
        self.status_again = False
        self.status_at = float("-inf")

    def disarm(self) -> None:
        """Nothing more is to be done for it."""
        for alarm in (self.apply_alarm, self.status_alarm, self.drift_alarm):
            if alarm is not None:
                alarm.cancel()


class RuntimeController:
    """All Runtimes of the cluster. `totals` gives capacity and use of one, as the scheduler counts them."""

    def __init__(
        self,
        *,
        kube: Kube,
        clock: Clock,
        call_later: CallLater,
        tasks: Tasks,
        recorder: Recorder,
        settings: Settings,
        totals: Callable[[Key], Totals],
        successor_awaited: Callable[[], Awaitable[bool]],
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._call_later = call_later
        self._tasks = tasks
        self._recorder = recorder
        self._settings = settings
        self._totals = totals
        self._successor_awaited = successor_awaited
        self._works: dict[Key, _Work] = {}
        self._pods_early: dict[Key, dict[str, Pod]] = {}
        self._identities = Identities(kube=kube, call_later=call_later, tasks=tasks, in_use=self._in_use)
        self._started = False

    def start(self) -> None:
        """Write from now on: call it once the first lists are in."""
        self._started = True
        for work in self._works.values():
            self._apply_soon(work, 0)
            self._status_soon(work, 0)
        self._identities.start()

    def close(self) -> None:
        """Write no more."""
        self._started = False
        self._identities.close()
        for work in self._works.values():
            work.disarm()

    def publish_roots(self, root_pem: str) -> None:
        """These are the roots to trust from now on: every namespace with a Runtime is told."""
        if root_pem != self._settings.root_pem:
            self._settings = msgspec.structs.replace(self._settings, root_pem=root_pem)
            for work in self._works.values():
                self._apply_soon(work, 0)

    def runtime_changed(self, change: Change[RuntimeObject]) -> None:
        """A Runtime appeared, changed or went."""
        runtime = change.current
        if runtime is None:
            assert change.previous is not None
            self._forget(change.previous)
            return
        key = _key(runtime)
        work = self._works.get(key)
        if work is not None and _version(runtime) < _version(work.runtime):
            return  # older than the answer to our own write
        if work is None or work.runtime.metadata.uid != runtime.metadata.uid:
            work = self._works[key] = _Work(runtime)
            work.pods = self._pods_early.pop(key, {})
            self._apply_soon(work, 0)
        else:
            changed = work.runtime.metadata.generation != runtime.metadata.generation
            work.runtime = runtime
            if changed:
                work.failures = 0
                self._apply_soon(work, 0)
        self._status_soon(work, 0)

    def pod_changed(self, change: Change[Pod]) -> None:
        """A Pod of any Runtime appeared, changed or went."""
        pod = change.current or change.previous
        assert pod is not None
        key = (pod.metadata.namespace, pod.metadata.labels.get(RUNTIME_LABEL, ""))
        work = self._works.get(key)
        pods = work.pods if work is not None else self._pods_early.setdefault(key, {})
        if change.current is None:
            pods.pop(pod.metadata.uid, None)
            if work is None and not pods:
                del self._pods_early[key]
                self._identities.look(key)
        else:
            pods[pod.metadata.uid] = pod
        if work is not None:
            self._status_soon(work, 0)

    def owned_changed(self, kind: Kind[PlainObject], change: Change[PlainObject]) -> None:
        """One of the objects made here changed or went."""
        self._identities.changed(kind, change)
        obj = change.current or change.previous
        assert obj is not None
        mark = None if change.current is None else _mark(kind, obj)
        for work in self._owners(obj):
            work.seen[kind.plural] = mark
            if self._started and work.drift_alarm is None and mark != work.applied.get(kind.plural):
                work.drift_alarm = self._call_later(DRIFT_S, functools.partial(self._look_for_drift, work))

    def run_changed(self, previous: Run | None, run: Run) -> None:
        """A Run is seen in a new state, or is gone: what is used may have changed."""
        held = previous is not None and previous.holds_slot
        if held != (run.holds_slot and not run.gone):
            work = self._works.get((run.namespace, run.spec.runtime))
            if work is not None:
                self._status_soon(work, STATUS_INTERVAL_S)

    def _forget(self, runtime: RuntimeObject) -> None:
        key = _key(runtime)
        work = self._works.get(key)
        if work is None or work.runtime.metadata.uid != runtime.metadata.uid:
            return
        del self._works[key]
        if work.pods:
            self._pods_early[key] = work.pods
        work.disarm()
        self._identities.look(key)

    def _in_use(self, key: Key) -> bool:
        """Whether a Runtime of that name is there, or a Pod that may still drain."""
        return key in self._works or key in self._pods_early

    def _owners(self, obj: PlainObject) -> list[_Work]:
        """Whose object it is: that of its name, or of every Runtime of the namespace."""
        metadata = obj.metadata
        return [
            work
            for (namespace, name), work in self._works.items()
            if namespace == metadata.namespace and metadata.name in (CA_CONFIG_MAP, object_name(name))
        ]

    def _look_for_drift(self, work: _Work) -> None:
        work.drift_alarm = None
        if not work.applying and any(work.seen.get(plural, mark) != mark for plural, mark in work.applied.items()):
            self._apply_soon(work, 0)

    # Applying

    def _apply_soon(self, work: _Work, delay_s: float) -> None:
        if not self._started:
            return
        if work.applying:
            work.apply_again = True
            return
        if work.apply_alarm is not None:
            work.apply_alarm.cancel()
        work.apply_alarm = self._call_later(delay_s, lambda: self._apply(work))

    def _apply(self, work: _Work) -> None:
        work.apply_alarm = None
        if self._identities.removing(_key(work.runtime)):
            self._apply_soon(work, RETRY_FIRST_S)
        elif self._started and self._current(work) and not work.runtime.metadata.deleting:
            work.applying = True
            self._tasks.spawn(self._apply_all(work))

    async def _apply_all(self, work: _Work) -> None:
        runtime = work.runtime
        try:
            left = await self._left_to_successor(work)
            trouble = None if left else await self._apply_objects(work, runtime)
        finally:
            work.applying = False
        if left:
            work.apply_again = False
            self._apply_soon(work, SUCCESSOR_LOOK_S)
            return
        if trouble is not None and trouble != work.trouble:
            self._recorder.emit(runtime, "Warning", trouble.reason.value, trouble.message)
        elif trouble is None and work.failures == 0 and not runtime.status.conditions and work.trouble is None:
            message = f"Deployment {object_name(runtime.metadata.name)} and what it needs are in place"
            self._recorder.emit(runtime, "Normal", RuntimeReason.APPLIED.value, message)
        retry = trouble is not None and trouble.reason is RuntimeReason.APPLY_FAILED
        work.trouble = trouble
        work.failures = work.failures + 1 if retry else 0
        if work.apply_again:
            work.apply_again = False
            self._apply_soon(work, 0)
        elif retry:
            self._apply_soon(work, min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(work.failures - 1, 16)))
        self._status_soon(work, 0)

    async def _left_to_successor(self, work: _Work) -> bool:
        """Whether a Deployment that is there is left to another control plane, whose template may be another."""
        if work.seen.get(DEPLOYMENT.plural) is None or not await self._successor_awaited():
            work.left_since = None
            return False
        now = self._clock.monotonic()
        if work.left_since is None:
            work.left_since = now
            _log.info("this control plane is being replaced", extra={"runtime": work.runtime.metadata.name})
        return now - work.left_since < SUCCESSOR_WAIT_S

    async def _apply_objects(self, work: _Work, runtime: RuntimeObject) -> Trouble | None:
        wrong = problems(runtime.spec.template, object_name(runtime.metadata.name))
        if wrong:
            return Trouble(RuntimeReason.TEMPLATE_INVALID, "; ".join(wrong))
        for wanted in wanted_objects(runtime, self._settings):
            try:
                obj = await self._kube.server_side_apply(
                    wanted.kind, runtime.metadata.namespace, wanted.name, wanted.body, manager=MANAGER
                )
            except KubeError as error:
                _log.warning(
                    "cannot apply %s %s: %s",
                    wanted.kind.kind,
                    wanted.name,
                    error,
                    extra={"code": error.status.code, "runtime": runtime.metadata.name},
                )
                return Trouble(RuntimeReason.APPLY_FAILED, f"{wanted.kind.kind} {wanted.name}: {error}")
            work.applied[wanted.kind.plural] = _mark(wanted.kind, obj)
        for kind, name in unwanted_objects(runtime, self._settings):
            try:
                await self._kube.delete(kind, runtime.metadata.namespace, name)
            except NotFound:
                continue
            except KubeError as error:
                return Trouble(RuntimeReason.APPLY_FAILED, f"{kind.kind} {name} is to go: {error}")
        return None

    # Status

    def _status_soon(self, work: _Work, delay_s: float) -> None:
        """Write the status after this delay, and at most once in the interval; an earlier alarm stands."""
        if not self._started:
            return
        if work.status_busy:
            work.status_again = True
            return
        wait_s = max(delay_s, work.status_at + STATUS_INTERVAL_S - self._clock.monotonic())
        if work.status_alarm is not None:
            if delay_s > 0:
                return
            work.status_alarm.cancel()
        work.status_alarm = self._call_later(wait_s, lambda: self._write_status(work))

    def _write_status(self, work: _Work) -> None:
        work.status_alarm = None
        if not self._started or not self._current(work):
            return
        runtime = work.runtime
        status = wanted_status(
            runtime, work.pods.values(), self._totals(_key(runtime)), work.trouble, self._clock.now_us()
        )
        if status != shown_status(runtime):
            work.status_busy = True
            work.status_at = self._clock.monotonic()
            self._tasks.spawn(self._patch_status(work, runtime, status))

    async def _patch_status(self, work: _Work, runtime: RuntimeObject, status: dict[str, Any]) -> None:
        metadata = runtime.metadata
        ops: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": metadata.uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        try:
            shown = await self._kube.json_patch(RUNTIMES, metadata.namespace, metadata.name, ops, subresource="status")
        except NotFound:
            work.status_again = False  # its watch tells the rest
        except KubeError as error:
            _log.info("status of Runtime %s not written: %s", metadata.name, error)
            work.status_again = True
        else:
            if _version(shown) > _version(work.runtime):
                work.runtime = shown
        work.status_busy = False
        if work.status_again:
            work.status_again = False
            self._status_soon(work, 0)

    def _current(self, work: _Work) -> bool:
        """Whether this is still the Runtime of its name."""
        return self._works.get(_key(work.runtime)) is work


def _key(runtime: RuntimeObject) -> Key:
    return runtime.metadata.namespace, runtime.metadata.name


def _version(runtime: RuntimeObject) -> int:
    return int(runtime.metadata.resource_version or 0)


def _mark(kind: Kind[PlainObject], obj: PlainObject) -> int:
    """What changes when somebody changes more than a status: a Deployment's generation, else the revision."""
    return obj.metadata.generation if kind is DEPLOYMENT else int(obj.metadata.resource_version)
