"""The Pods of one Runtime and what is taken of them: a ledger that always knows the least loaded Pod with room.

Pure bookkeeping without I/O or clock. `planner` keeps one Pool per Runtime; nobody else changes it.
"""

import heapq
from collections.abc import Mapping
from typing import Final

import msgspec

from statemachine.run import PodUID

Requests = tuple[tuple[str, int], ...]
"""What a Run takes: resource names with whole amounts, sorted as the API gave them."""

SHUN_FIRST_US: Final = 1_000_000  # a Pod that refused a binding is left alone for a second, then two, and so on
SHUN_MAX_US: Final = 60_000_000  # a Pod that never claims costs at most one attempt a minute
HEAP_SLACK: Final = 64  # outdated heap entries are swept out once they outnumber the Pods by this many


class PodView(msgspec.Struct, frozen=True):
    """What the scheduler needs of a Pod. `open`: Ready, not deleting, of this Runtime."""

    uid: PodUID
    name: str
    open: bool


class _Pod:
    """One Pod's account. It exists before the Pod has been seen when a Run that holds it was seen first."""

    __slots__ = ("name", "open", "shun_until_us", "shuns", "uid", "used", "version")

    def __init__(self, uid: PodUID) -> None:
        self.uid = uid
        self.name = ""
        self.open = False
        self.used: dict[str, int] = {}
        self.version = 0
        self.shuns = 0
        self.shun_until_us = 0


class Pool:
    """One Runtime's Pods. `capacity` is None while there is no such Runtime: then nothing is picked."""

    def __init__(self) -> None:
        self.capacity: dict[str, int] | None = None
        self._pods: dict[PodUID, _Pod] = {}
        self._heap: list[tuple[float, str, PodUID, int]] = []

    def set_capacity(self, capacity: Mapping[str, int] | None) -> None:
        """What each Pod offers; loads are judged anew."""
        self.capacity = None if capacity is None else dict(capacity)
        self._rebuild()

    def see(self, view: PodView) -> None:
        """A Pod appeared or changed."""
        pod = self._account(view.uid)
        if view.open and not pod.open:
            pod.shuns, pod.shun_until_us = 0, 0
        pod.name, pod.open = view.name, view.open
        self._push(pod)

    def forget(self, uid: PodUID) -> None:
        """A Pod is gone. What Runs still hold of it stays on its account until they let go."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.open = False
            pod.version += 1
            self._drop_if_empty(pod)

    def take(self, uid: PodUID, requests: Requests) -> None:
        """Book what a Run takes, also beyond what is there: the API says so."""
        pod = self._account(uid)
        for resource, amount in requests:
            pod.used[resource] = pod.used.get(resource, 0) + amount
        self._push(pod)

    def give(self, uid: PodUID, requests: Requests) -> None:
        """Book back what a Run had taken."""
        pod = self._account(uid)
        for resource, amount in requests:
            left = pod.used.get(resource, 0) - amount
            assert left >= 0, "more is given back than was taken"
            if left:
                pod.used[resource] = left
            else:
                pod.used.pop(resource, None)
        self._push(pod)
        self._drop_if_empty(pod)

    def shun(self, uid: PodUID, now_us: int) -> None:
        """The Pod refused a binding or let it lapse: leave it alone for a while, longer each time in a row."""
        pod = self._pods.get(uid)
        if pod is not None and pod.open:
            pod.shun_until_us = now_us + min(SHUN_FIRST_US << min(pod.shuns, 16), SHUN_MAX_US)
            pod.shuns += 1
            self._push(pod)

    def trust(self, uid: PodUID) -> None:
        """The Pod claimed a binding: it is no longer left alone."""
        pod = self._pods.get(uid)
        if pod is not None and pod.shuns:
            pod.shuns, pod.shun_until_us = 0, 0
            self._push(pod)

    def next_trust_us(self, now_us: int) -> int | None:
        """When the first shunned Pod may be picked again, None if there is none."""
        return min((pod.shun_until_us for pod in self._pods.values() if pod.shun_until_us > now_us), default=None)

    def ever_fits(self, requests: Requests) -> bool:
        """Whether an empty Pod could take it."""
        capacity = self.capacity
        return capacity is not None and all(amount <= capacity.get(resource, 0) for resource, amount in requests)

    def pick(self, requests: Requests, now_us: int) -> _Pod | None:
        """The least loaded open Pod with room, by name where loads are equal; None if there is none."""
        passed: list[tuple[float, str, PodUID, int]] = []
        found: _Pod | None = None
        heap = self._heap
        while heap:
            _, _, uid, version = heap[0]
            pod = self._pods.get(uid)
            if pod is None or pod.version != version:
                heapq.heappop(heap)
                continue
            if pod.shun_until_us <= now_us and self._has_room(pod, requests):
                found = pod
                break
            passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return found

    def totals(self) -> tuple[dict[str, int], dict[str, int]]:
        """What all open Pods offer together, and what Runs hold of them."""
        total: dict[str, int] = dict.fromkeys(self.capacity or (), 0)
        used: dict[str, int] = dict.fromkeys(self.capacity or (), 0)
        for pod in self._pods.values():
            if pod.open:
                for resource, amount in (self.capacity or {}).items():
                    total[resource] += amount
            for resource, amount in pod.used.items():
                used[resource] = used.get(resource, 0) + amount
        return total, used

    def is_empty(self) -> bool:
        """Nothing known: no Runtime, no Pod, nothing taken."""
        return self.capacity is None and not self._pods

    def _account(self, uid: PodUID) -> _Pod:
        pod = self._pods.get(uid)
        if pod is None:
            pod = self._pods[uid] = _Pod(uid)
        return pod

    def _drop_if_empty(self, pod: _Pod) -> None:
        if not pod.open and not pod.used:
            self._pods.pop(pod.uid, None)

    def _has_room(self, pod: _Pod, requests: Requests) -> bool:
        capacity = self.capacity
        if capacity is None:
            return False
        used = pod.used
        return all(used.get(resource, 0) + amount <= capacity.get(resource, 0) for resource, amount in requests)

    def _load(self, pod: _Pod) -> float:
        """The fullest resource's share, 1.0 = nothing left of it."""
        capacity = self.capacity or {}
        if len(capacity) == 1:
            for resource, amount in capacity.items():
                return pod.used.get(resource, 0) / amount if amount else 1.0
        return max((pod.used.get(r, 0) / amount if amount else 1.0 for r, amount in capacity.items()), default=1.0)

    def _push(self, pod: _Pod) -> None:
        """Put the Pod where its load belongs; a full one stays out until something is given back."""
        pod.version += 1
        if not pod.open or self.capacity is None or not self._has_any_room(pod):
            return
        heapq.heappush(self._heap, (self._load(pod), pod.name, pod.uid, pod.version))
        if len(self._heap) > 2 * len(self._pods) + HEAP_SLACK:
            self._rebuild()

    def _has_any_room(self, pod: _Pod) -> bool:
        used = pod.used
        return any(used.get(resource, 0) < amount for resource, amount in (self.capacity or {}).items())

    def _rebuild(self) -> None:
        self._heap = []
        if self.capacity is None:
            return
        for pod in self._pods.values():
            pod.version += 1
            if pod.open and self._has_any_room(pod):
                self._heap.append((self._load(pod), pod.name, pod.uid, pod.version))
        heapq.heapify(self._heap)
