"""Decides which waiting Run goes to which Pod: facts in, decisions out, no I/O and no clock.

Three steps a decision: a Pod is *reserved* by picking it, the binding is *assumed* (it counts from here on) and *bound*
by whoever carries the decision out. `bind_settled` ends the assumption: by then the Run itself says what it holds.
First come, first served among Runs that ask for the same; one that asks for more does not hold up those that ask for
less. `scheduler` calls it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from controlplane.scheduler.pool import PodView, Pool, Requests
from statemachine.reasons import Reason
from statemachine.run import Phase, PodUID, Run, RunUID

RuntimeKey = tuple[str, str]
"""Namespace and name of a Runtime."""

ASSUMED_MAX: Final = 256  # bindings under way at once: more only grow the API's queue, and planning again is cheap
TOLD_MAX: Final = 32  # reasons being written at once: a crowd that waits must not hold up the next binding
STALE_ENTRIES_MIN: Final = 64  # places of Runs that left are swept out once they outnumber the others by this many


class Bind(msgspec.Struct, frozen=True):
    """Bind the Run to this Pod."""

    run_uid: RunUID
    pod_name: str
    pod_uid: PodUID


class Wait(msgspec.Struct, frozen=True):
    """Tell why the Run waits."""

    run_uid: RunUID
    reason: Reason
    message: str


Decision = Bind | Wait


class _Hold(NamedTuple):
    """What one Run takes of which Pod."""

    key: RuntimeKey
    pod_uid: PodUID
    requests: Requests


class _Waiting:
    """One Run in Pending that wants a Pod."""

    __slots__ = ("arrival", "backing_off", "created_us", "key", "next_attempt_us", "on_record", "requests", "uid")

    def __init__(self, run: Run, arrival: int) -> None:
        self.arrival = arrival  # decides among Runs of one second: the API's timestamps are no finer
        self.uid = run.uid
        self.key: RuntimeKey = (run.namespace, run.spec.runtime)
        self.requests: Requests = run.spec.requests
        self.created_us = run.created_us
        self.next_attempt_us = run.status.next_attempt_us
        self.backing_off = run.status.next_attempt_us is not None  # until `due` says otherwise
        scheduled = run.status.scheduled
        self.on_record = None if scheduled is None or scheduled.status else scheduled.reason


class _Place(NamedTuple):
    """A place in a queue: the older Run first, then the one that was seen first."""

    created_us: int
    arrival: int
    uid: RunUID


class _Queues:
    """The waiting Runs of one Runtime, one queue per shape of request."""

    __slots__ = ("by_shape", "unexplained")

    def __init__(self) -> None:
        self.by_shape: dict[Requests, list[_Place]] = {}
        self.unexplained: OrderedDict[RunUID, None] = (
            OrderedDict()
        )  # Runs whose reason on record may be wrong, oldest first


class Planner:
    """The scheduler's state. Every method is a fact except `plan`, which decides."""

    def __init__(self, *, assumed_max: int = ASSUMED_MAX, told_max: int = TOLD_MAX) -> None:
        self._assumed_max = assumed_max
        self._told_max = told_max
        self._pools: dict[RuntimeKey, Pool] = {}
        self._queues: dict[RuntimeKey, _Queues] = {}
        self._pod_keys: dict[PodUID, RuntimeKey] = {}
        self._waiting: dict[RunUID, _Waiting] = {}
        self._held: dict[RunUID, _Hold] = {}
        self._assumed: dict[RunUID, _Hold] = {}
        self._told: set[RunUID] = set()  # Runs whose reason is being written
        self._dirty: dict[RuntimeKey, None] = {}
        self._arrivals = 0

    def runtime_seen(self, key: RuntimeKey, capacity: Mapping[str, int] | None) -> None:
        """A Runtime is there with this capacity a Pod, or (None) it is gone or going."""
        pool = self._pool(key)
        if pool.capacity == capacity:
            self._prune(key)
            return
        pool.set_capacity(capacity)
        queues = self._queues.get(key)
        if queues is not None:
            queues.unexplained.update((uid, None) for queue in queues.by_shape.values() for *_, uid in sorted(queue))
        self._touched(key)
        self._prune(key)

    def pod_seen(self, key: RuntimeKey, view: PodView) -> None:
        """A Pod of a Runtime appeared or changed."""
        before = self._pod_keys.get(view.uid)
        if before is not None and before != key:
            self.pod_gone(view.uid)
        self._pod_keys[view.uid] = key
        self._pool(key).see(view)
        self._touched(key)

    def pod_gone(self, uid: PodUID) -> None:
        """A Pod went away."""
        key = self._pod_keys.pop(uid, None)
        if key is not None:
            self._pool(key).forget(uid)
            self._touched(key)
            self._prune(key)

    def run_seen(self, run: Run) -> None:
        """A Run, as last seen: what it holds counts, and whether it waits."""
        self._hold(run)
        waits = run.phase is Phase.PENDING and not run.cancel_requested and not run.deleting
        if waits and run.uid not in self._assumed:
            self._enqueue(run)
        else:
            self._leave(run.uid)

    def run_gone(self, uid: RunUID) -> None:
        """A Run is gone, and all it held with it."""
        self._leave(uid)
        self._told.discard(uid)
        self._release(self._held, uid)
        self._release(self._assumed, uid)

    def bind_settled(self, run: Run, *, due: bool = True) -> None:
        """A `Bind` of this Run has been carried out or not; this is how it stands.

        `due`: no backoff holds it any more. One that was not bound must not wait for that of its last failure again.
        """
        self._release(self._assumed, run.uid)
        self.run_seen(run)
        if due:
            self.due(run.uid)

    def wait_settled(self, run: Run) -> None:
        """A `Wait` of this Run has been written or not; this is how it stands."""
        self._told.discard(run.uid)
        self._touched((run.namespace, run.spec.runtime))  # room for another one to be told
        self.run_seen(run)
        waiting = self._waiting.get(run.uid)
        if waiting is not None and not waiting.backing_off:
            self._ask_why(waiting)  # it may not have been written

    def due(self, uid: RunUID) -> None:
        """The Run's backoff has passed."""
        waiting = self._waiting.get(uid)
        if waiting is not None and waiting.backing_off:
            waiting.backing_off = False
            self._queue_up(waiting)

    def refused(self, key: RuntimeKey, pod_uid: PodUID, now_us: int) -> None:
        """The Pod refused a binding or did not claim it."""
        self._pool(key).shun(pod_uid, now_us)
        self._touched(key)

    def claimed(self, key: RuntimeKey, pod_uid: PodUID) -> None:
        """The Pod claimed a binding."""
        self._pool(key).trust(pod_uid)

    def plan(self, now_us: int) -> list[Decision]:
        """What to do now. Each decision must be settled; reasons are told once per change."""
        decisions: list[Decision] = []
        for key in list(self._dirty):
            if len(self._assumed) >= self._assumed_max:
                break
            if self._bind(key, now_us, decisions):
                del self._dirty[key]
        return decisions

    def next_wake_us(self, now_us: int) -> int | None:
        """When a Pod that was left alone may be picked again, if a Run waits for one; then call `wake`."""
        moments = (self._pools[key].next_trust_us(now_us) for key in self._queues if key in self._pools)
        return min((moment for moment in moments if moment is not None), default=None)

    def wake(self) -> None:
        """Time has passed: look at every Runtime with waiting Runs again."""
        for key in self._queues:
            self._touched(key)

    def totals(self, key: RuntimeKey) -> tuple[dict[str, int], dict[str, int]]:
        """A Runtime's capacity of all open Pods, and what is held of it, assumed bindings included."""
        pool = self._pools.get(key)
        return pool.totals() if pool is not None else ({}, {})

    @property
    def waiting(self) -> int:
        """How many Runs want a Pod and have none."""
        return len(self._waiting)

    @property
    def assumed(self) -> int:
        """How many bindings are under way."""
        return len(self._assumed)

    def _bind(self, key: RuntimeKey, now_us: int, decisions: list[Decision]) -> bool:
        """Bind what can be bound of one Runtime; False when the bound on assumed bindings ended it early."""
        queues = self._queues.get(key)
        if queues is None:
            return True
        pool = self._pool(key)
        heads: list[tuple[_Place, Requests]] = []
        for shape in list(queues.by_shape):
            self._push_head(queues, shape, heads)
        heads = [head for head in heads if pool.ever_fits(head[1])]
        heapq.heapify(heads)
        while heads:
            if len(self._assumed) >= self._assumed_max:
                return False
            place, shape = heapq.heappop(heads)
            uid = place.uid
            pod = pool.pick(shape, now_us)
            if pod is None:
                continue  # nor for any later Run that asks for the same
            heapq.heappop(queues.by_shape[shape])
            del self._waiting[uid]
            queues.unexplained.pop(uid, None)
            hold = _Hold(key, pod.uid, shape)
            self._assumed[uid] = hold
            pool.take(pod.uid, shape)
            decisions.append(Bind(uid, pod.name, pod.uid))
            self._push_head(queues, shape, heads)
        explained = self._explain(key, queues, pool, decisions)
        if not queues.by_shape:
            del self._queues[key]
        self._prune(key)
        return explained

    def _push_head(self, queues: _Queues, shape: Requests, heads: list[tuple[_Place, Requests]]) -> None:
        """Put the oldest waiting Run of this shape among the heads, skipping those that wait no longer."""
        queue = queues.by_shape[shape]
        while queue:
            waiting = self._waiting.get(queue[0].uid)
            if waiting is not None and not waiting.backing_off:
                heapq.heappush(heads, (queue[0], shape))
                return
            heapq.heappop(queue)
        del queues.by_shape[shape]

    def _explain(self, key: RuntimeKey, queues: _Queues, pool: Pool, decisions: list[Decision]) -> bool:
        """Tell those that wait why, where that is news; False when the bound on reasons under way ended it early."""
        while queues.unexplained:
            if len(self._told) >= self._told_max:
                return False
            uid, _ = queues.unexplained.popitem(last=False)
            waiting = self._waiting.get(uid)
            if waiting is None or waiting.backing_off or uid in self._told:
                continue
            if pool.capacity is None:
                reason = Reason.RUNTIME_NOT_FOUND
            elif pool.ever_fits(waiting.requests):
                reason = Reason.NO_CAPACITY
            else:
                reason = Reason.NEVER_FITS
            if waiting.on_record is not reason:
                self._told.add(uid)
                decisions.append(Wait(uid, reason, _sentence(reason, key, waiting.requests, pool.capacity)))
        return True

    def _enqueue(self, run: Run) -> None:
        known = self._waiting.get(run.uid)
        if known is None:
            self._arrivals += 1
        waiting = self._waiting[run.uid] = _Waiting(run, self._arrivals if known is None else known.arrival)
        if known is not None and known.next_attempt_us == waiting.next_attempt_us:
            waiting.backing_off = known.backing_off  # it is queued already, or its backoff still runs
        elif not waiting.backing_off:
            self._queue_up(waiting)

    def _queue_up(self, waiting: _Waiting) -> None:
        queues = self._queues.setdefault(waiting.key, _Queues())
        queue = queues.by_shape.setdefault(waiting.requests, [])
        if len(queue) > 2 * len(self._waiting) + STALE_ENTRIES_MIN:
            queue[:] = [entry for entry in queue if entry.uid in self._waiting]
            heapq.heapify(queue)
        heapq.heappush(queue, _Place(waiting.created_us, waiting.arrival, waiting.uid))
        self._ask_why(waiting)

    def _leave(self, uid: RunUID) -> None:
        """The Run waits no longer. Its place in the queue is passed over when it comes up."""
        waiting = self._waiting.pop(uid, None)
        if waiting is not None:
            self._touched(waiting.key)

    def _ask_why(self, waiting: _Waiting) -> None:
        self._queues[waiting.key].unexplained[waiting.uid] = None
        self._touched(waiting.key)

    def _hold(self, run: Run) -> None:
        key = (run.namespace, run.spec.runtime)
        pod_uid = run.status.pod_uid if run.holds_slot else None
        hold = None if pod_uid is None else _Hold(key, pod_uid, run.spec.requests)
        if self._held.get(run.uid) == hold:
            return
        self._release(self._held, run.uid)
        if hold is not None:
            self._release(self._assumed, run.uid)
            self._held[run.uid] = hold
            self._pool(key).take(hold.pod_uid, hold.requests)

    def _release(self, holds: dict[RunUID, _Hold], uid: RunUID) -> None:
        hold = holds.pop(uid, None)
        if hold is not None:
            self._pool(hold.key).give(hold.pod_uid, hold.requests)
            self._touched(hold.key)
            self._prune(hold.key)

    def _pool(self, key: RuntimeKey) -> Pool:
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool()
        return pool

    def _touched(self, key: RuntimeKey) -> None:
        self._dirty[key] = None

    def _prune(self, key: RuntimeKey) -> None:
        pool = self._pools.get(key)
        if pool is not None and pool.is_empty():
            del self._pools[key]


def _sentence(reason: Reason, key: RuntimeKey, requests: Requests, capacity: Mapping[str, int] | None) -> str:
    match reason:
        case Reason.RUNTIME_NOT_FOUND:
            return f"The namespace {key[0]} has no Runtime {key[1]}"
        case Reason.NEVER_FITS:
            offer = _amounts((capacity or {}).items())
            return f"Requests {_amounts(requests)}, but a Pod of Runtime {key[1]} has {offer}"
        case _:
            return f"No ready Pod of Runtime {key[1]} has room for {_amounts(requests)}"


def _amounts(amounts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{resource}={amount}" for resource, amount in amounts) or "nothing"
