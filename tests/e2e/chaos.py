"""Seeded disorder over a running system: users who create, call, cancel and delete while every process is struck.

`Chaos` holds the dice and what it did; `verdict` says, once the dust has settled, what the system must look like. A
seed fixes which steps are taken; the machine's timing is its own. Tests choose length and seed.
"""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from controlplane.kube.client import KubeClient
from controlplane.kube.errors import AlreadyExists, KubeError, NotFound
from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from tests.e2e.embedded import Embedded, alive, descendants
from tests.e2e.stack import function, task

CALLED: Final = """
import json, os
def invoke(request):
    with open(request["ledger"], "a") as ledger:
        ledger.write(request["id"] + "\\n")
    return {"outputs": {"id": request["id"], "uid": os.environ["KRUNTIME_RUN_UID"]}}
"""
RAN: Final = """
import os, sys, time
with open(sys.argv[1], "a") as ledger:
    ledger.write(os.environ["KRUNTIME_RUN_UID"] + "/" + os.environ["KRUNTIME_ATTEMPT"] + "\\n")
time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[3]))
"""
SETTLED_S: Final = 120.0  # no recovery takes longer (L13)
ANSWERS: Final = frozenset({200, 404, 409, 429, 500, 502, 503, 504})
PATIENCE: Final = {"maxAttempts": 100, "backoff": "1s"}


@dataclass
class Made:
    """A Run that was created, what was asked of it since, and how it may end."""

    name: str
    kind: str
    ends: frozenset[str]
    cancelled: bool = False
    deleted: bool = False


@dataclass
class Chaos:
    """The dice, the users and the strikes. `ledger` is where user code notes that it ran."""

    stack: Embedded
    client: KubeClient
    https: aiohttp.ClientSession
    seed: int
    ledger: Path
    made: list[Made] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    strikes: list[str] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))
    _stopped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self._sleepers: set[asyncio.Task[None]] = set()
        self._prefix = f"chaos-{self.seed}"

    # --- users

    async def create(self) -> None:
        """Make one Run of a kind that the dice choose."""
        name = f"{self._prefix}-{next(self._names)}"
        kind, manifest, ends = self._kind(name)
        await self._insist(lambda: self.client.create(RUNS, "default", manifest))
        self.made.append(Made(name, kind, frozenset(ends)))

    def _kind(self, name: str) -> tuple[str, dict[str, Any], set[str]]:
        dice, ledger = self.dice, str(self.ledger)

        def ran(seconds: float, code: int, **spec: Any) -> dict[str, Any]:
            return task(name, RAN, mode={"args": [ledger, str(seconds), str(code)]}, **spec)

        kinds: list[Callable[[], tuple[str, dict[str, Any], set[str]]]] = [
            lambda: ("stays", function(name, CALLED, retryPolicy=PATIENCE), {"Ready"}),
            lambda: ("stays", function(name, CALLED, retryPolicy=PATIENCE, mode={"concurrency": 4}), {"Ready"}),
            lambda: ("idle", function(name, CALLED, retryPolicy=PATIENCE, mode={"idleTimeoutSeconds": 1}), {"Timeout"}),
            lambda: ("life", function(name, CALLED, retryPolicy=PATIENCE, timeout="2s"), {"Timeout"}),
            lambda: ("broken", function(name, "import nothing_of_that_name"), {"Failed"}),
            lambda: ("quick", ran(0, 0, retryPolicy=PATIENCE), {"Succeeded"}),
            lambda: ("slow", ran(2, 0, retryPolicy=PATIENCE), {"Succeeded"}),
            lambda: ("once", ran(0.3, 0), {"Succeeded", "Failed"}),
            lambda: ("fails", ran(0, 3, retryPolicy={"maxAttempts": 2, "backoff": "1s"}), {"Failed"}),
            lambda: ("late", ran(30, 0, timeout="2s", retryPolicy=PATIENCE), {"Timeout"}),
        ]
        return dice.choice(kinds)()

    async def cancel(self) -> None:
        """Ask for the end of a Run that exists."""
        if one := self._one(lambda m: not m.deleted):
            one.cancelled = True
            await self._insist(
                lambda: self.client.merge_patch(RUNS, "default", one.name, {"spec": {"cancelRequested": True}})
            )

    async def delete(self) -> None:
        """Delete a Run."""
        if one := self._one(lambda m: not m.deleted):
            one.deleted = True
            await self._insist(lambda: self.client.delete(RUNS, "default", one.name))

    async def call(self) -> None:
        """Invoke a Run, ready or not."""
        one = self._one(lambda m: m.kind in ("stays", "idle", "life"))
        if one is None:
            return
        try:
            run = await self.client.get(RUNS, "default", one.name)
        except KubeError:
            return
        url = f"{self.stack.gateway}/v1/namespaces/default/runtimes/python/runs/{run.metadata.uid}:invoke"
        mark = f"{one.name}/{self.dice.getrandbits(64):x}"
        body = json.dumps({"ledger": str(self.ledger), "id": mark})
        began = time.monotonic()
        try:
            async with self.https.post(url, data=body, headers={"X-Kruntime-Timeout-Ms": "8000"}) as answer:
                said = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.answers[type(error).__name__] += 1  # the gateway itself was struck
            return
        self.answers[f"{answer.status} {said.get('reason', '')}".strip()] += 1
        if answer.status not in ANSWERS or said.get("reason") == "InternalError":
            self.wrong.append(f"{answer.status} {said}")
        elif answer.status == 200 and said["outputs"] != {"id": mark, "uid": run.metadata.uid}:
            self.wrong.append(f"an answer of another call: {said} for {mark}")
        ran = self.ledger.read_text().count(mark) if self.ledger.exists() else 0
        if answer.status in (503, 404, 409) and ran:
            self.wrong.append(f"{answer.status} {said.get('reason')} for a call that ran: {mark}")
        if time.monotonic() - began > 15:
            self.wrong.append(f"an answer took {time.monotonic() - began:.1f} s of a deadline of 8 s")

    def _one(self, wanted: Callable[[Made], bool]) -> Made | None:
        choices = [one for one in self.made if wanted(one)]
        return self.dice.choice(choices) if choices else None

    async def _insist(self, verb: Callable[[], Any]) -> None:
        """A user's verb, again while the API server is being struck."""
        deadline = time.monotonic() + 60
        while True:
            try:
                await verb()
                return
            except (AlreadyExists, NotFound):
                return
            except KubeError as error:
                assert error.retryable, error
                assert time.monotonic() < deadline, f"the API did not come back: {error}"
                await asyncio.sleep(0.1)

    # --- strikes

    async def kill(self) -> None:
        """kill -9 of a child, a worker of user code included."""
        pid = self._victim()
        if pid:
            os.kill(pid, signal.SIGKILL)

    async def freeze(self) -> None:
        """Stop a child for a while."""
        pid = self._victim()
        if pid is None or pid in self._stopped:
            return
        self._stopped.add(pid)
        os.kill(pid, signal.SIGSTOP)
        thaw = asyncio.create_task(self._thaw(pid, self.dice.uniform(0.2, 4.0)))
        self._sleepers.add(thaw)
        thaw.add_done_callback(self._sleepers.discard)

    async def _thaw(self, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stopped.discard(pid)
        if alive(pid):
            os.kill(pid, signal.SIGCONT)

    async def remove_pod(self) -> None:
        """Delete a Pod of the Runtime, now and then with a grace of its own."""
        try:
            pods = (await self.client.list(PODS, "default", labels="kruntimes.io/runtime=python")).items
        except KubeError:
            return
        if pods:
            name = self.dice.choice(sorted(pod.metadata.name for pod in pods))
            grace = self.dice.choice([None, None, 1])
            self.strikes.append(f"delete pod {name} grace {grace}")
            await self._insist(lambda: self.client.delete(PODS, "default", name, grace_seconds=grace))

    async def scale(self) -> None:
        """Another number of replicas."""
        replicas = self.dice.choice([1, 2, 2, 3])
        self.strikes.append(f"scale to {replicas}")
        await self._insist(
            lambda: self.client.merge_patch(RUNTIMES, "default", "python", {"spec": {"replicas": replicas}})
        )

    def _victim(self) -> int | None:
        try:
            running = self.stack.processes()
            supervisor = self.stack.state()["supervisor"]["pid"]
        except (OSError, ValueError):
            return None
        below = sorted(set(descendants(supervisor)) - set(running.values())) if self.dice.random() < 0.2 else []
        names = {**running, **{f"user code {pid}": pid for pid in below}}
        if self.dice.random() < 0.1:
            names["supervisor"] = supervisor
        name = self.dice.choice(sorted(names))
        if not alive(names[name]):
            return None
        self.strikes.append(f"{'struck'} {name.split('/')[-1]} {names[name]}")
        return names[name]

    # --- the whole

    async def run(self, steps: int, *, pods: bool = True, pause: float = 0.05) -> None:
        """Take that many steps, then let go of everything that is stopped."""
        verbs: list[tuple[int, Callable[[], Any]]] = [
            (10, self.create),
            (12, self.call),
            (3, self.cancel),
            (5, self.delete),
            (2, self.kill),
            (1, self.freeze),
            *([(1, self.remove_pod), (1, self.scale)] if pods else []),
        ]
        running: set[asyncio.Task[None]] = set()
        for _ in range(steps):
            verb = self.dice.choices([v for _, v in verbs], [w for w, _ in verbs])[0]
            running.add(asyncio.create_task(verb()))
            if len(running) >= 24:
                _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self.dice.uniform(0, 2 * pause))
        await asyncio.gather(*running)
        while self._sleepers:
            await asyncio.wait(set(self._sleepers))

    async def settle(self) -> list[str]:
        """Wait until every Run is where it must end; returns what is not, after the longest recovery there is."""
        deadline = time.monotonic() + SETTLED_S
        while True:
            try:
                found = {r.metadata.name: r for r in (await self.client.list(RUNS, "default")).items}
                pods = {pod.metadata.uid for pod in (await self.client.list(PODS, "default")).items}
            except KubeError as error:
                astray = [f"the API does not answer: {error}"]
            else:
                astray = [text for one in self.made if (text := self._astray(one, found.get(one.name), pods))]
            if not astray or time.monotonic() > deadline:
                return astray
            await asyncio.sleep(0.25)

    def _astray(self, one: Made, run: Any, pods: set[str]) -> str:
        if run is None:
            return "" if one.deleted else f"{one.name} ({one.kind}) is gone, and nobody deleted it"
        ends = one.ends | ({"Cancelled"} if one.cancelled else set())
        if one.cancelled:
            ends -= {"Ready"}
        shown = f"{one.name} ({one.kind}) is {run.status.phase}/{run.status.reason}: {run.status.message}"
        if one.deleted or run.status.phase not in ends:
            return f"{shown}, attempt {run.status.attempt}, {one}"
        # An owner that died between the result and its last write leaves the finalizer: deletion takes it off.
        if run.status.phase != "Ready" and run.metadata.finalizers and run.status.assigned_pod_uid in pods:
            return f"{shown}, and keeps its finalizer"
        ready = next((c for c in run.status.conditions if c.type == "Ready"), None)
        if run.status.phase == "Ready" and (ready is None or ready.status != "True"):
            return f"{shown}, and not Ready=True: {ready}"
        return ""

    async def clear(self) -> None:
        """Delete what is left of this chaos."""
        for one in self.made:
            await self._insist(lambda one=one: self.client.delete(RUNS, "default", one.name))
            one.deleted = True

    def ran_twice(self) -> list[str]:
        """Calls and task attempts that user code noted more than once."""
        if not self.ledger.exists():
            return []
        return [mark for mark, times in Counter(self.ledger.read_text().split()).items() if times > 1]
