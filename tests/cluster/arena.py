"""Where the cluster is broken under load: a namespace with a Runtime and a function of its own, callers, and judges.

The function answers which Pod and attempt it ran on, so that `Calls` can tell whether two ever owned it at once.
"""

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from controlplane.kube.client import KubeClient
from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from tests.cluster.kit import ROOT, SYSTEM, Cluster, fresh, settled
from tests.e2e.stack import function

WHERE: Final = """
import os, socket, time
def invoke(request):
    time.sleep(request.get("sleep", 0))
    if "hog" in request:
        block = bytearray(request["hog"] << 20)
        block[::4096] = b"x" * len(block[::4096])
    return {"outputs": {"n": request["n"], "pod": socket.gethostname(), "attempt": os.environ["KRUNTIME_ATTEMPT"]}}
"""
RUNS_PER_POD: Final = 2
HEALED_S: Final = 120.0  # no recovery takes longer (L13)
CLOCK_SLACK_S: Final = 0.05  # of two readings of one machine's wall clock around a call


@dataclass(frozen=True)
class Call:
    """One call as its caller saw it. `pod` is where it ran, or what the error said."""

    number: int
    began: float
    took: float
    outcome: str
    pod: str
    attempt: str

    @property
    def ended(self) -> float:
        return self.began + self.took


@dataclass(frozen=True)
class Calls:
    """Everything that a caller saw, in the order of the beginnings."""

    all: tuple[Call, ...]

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(call.outcome for call in self.all)

    @property
    def rate(self) -> float:
        """Calls begun in a second, on average."""
        return (len(self.all) - 1) / (self.all[-1].began - self.all[0].began)

    def failed(self) -> list[Call]:
        return [call for call in self.all if call.outcome != "ok"]

    def judge(self, allowed: Collection[str] = (), *, since: float = 0.0, within: float = 0.0) -> None:
        """No call failed but those that may: with an outcome that starts so, begun from `since` on for so long, or in
        flight then. No two attempts ever served at once."""
        for call in self.failed():
            may = any(call.outcome.startswith(each) for each in allowed)
            at = call.began - since
            assert may, f"{call.outcome} {at:+.3f} s after the fault: {call.pod} ({self.outcomes})"
            assert call.ended >= since, f"before the fault: {call}"
            assert at <= within, (
                f"{call.outcome} {at:+.1f} s after the fault, {within:g} s are allowed ({self.outcomes})"
            )
        self.one_owner()

    def one_owner(self) -> None:
        """No call that began after an answer of a later attempt was answered by an earlier one (L2)."""
        first: dict[int, float] = {}
        for call in self.all:
            if call.outcome == "ok":
                attempt = int(call.attempt)
                first[attempt] = min(first.get(attempt, float("inf")), call.ended)
        for call in self.all:
            if call.outcome == "ok":
                later = [ended for attempt, ended in first.items() if attempt > int(call.attempt)]
                assert not later or call.began <= min(later) + CLOCK_SLACK_S, f"two owners at once: {call}"
        pods: dict[str, set[str]] = {}
        for call in self.all:
            if call.outcome == "ok":
                pods.setdefault(call.attempt, set()).add(call.pod)
        assert all(len(where) == 1 for where in pods.values()), pods


class Caller:
    """The load while it runs; `calls` once it has ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._seen: list[Call] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._seen.append(Call(*json.loads(line)))

    @property
    def served(self) -> int:
        """Calls that were answered well so far."""
        return sum(call.outcome == "ok" for call in self._seen)

    @property
    def last(self) -> Call | None:
        """The call that ended last."""
        return self._seen[-1] if self._seen else None

    async def until_served(self, more: int, seconds: float = HEALED_S) -> None:
        """Wait for so many more good answers."""
        wanted = self.served + more
        await settled(lambda: asyncio.sleep(0.02, self.served), lambda served: served >= wanted, seconds)

    async def until_steady(self, seconds: float = 2.0, within: float = HEALED_S) -> None:
        """Wait until all calls of so many seconds went well."""
        deadline = time.monotonic() + within
        while True:
            mark, since = len(self._seen), time.time()
            await asyncio.sleep(seconds)
            fresh_ones = [call for call in self._seen[mark:] if call.began >= since]
            if fresh_ones and all(call.outcome == "ok" for call in self._seen[mark:]):
                return
            assert time.monotonic() < deadline, f"not steady after {within:g} s: {self._seen[-3:]}"

    async def end(self) -> Calls:
        """Stop calling, wait for what is under way."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(60):
            await self._reading
            assert await self._process.wait() == 0
        return Calls(tuple(sorted(self._seen, key=lambda call: call.number)))


class Arena:
    """A namespace in which one function is Ready."""

    def __init__(self, cluster: Cluster, client: KubeClient, namespace: str, capacity: int) -> None:
        self.cluster = cluster
        self.client = client
        self.namespace = namespace
        self.capacity = capacity
        self.name = "called"
        self.history: list[Any] = []
        """Every state of the function in which the API showed it."""
        self.address = ""
        self.token = ""

    async def run(self) -> Any:
        return await self.client.get(RUNS, self.namespace, self.name)

    async def ready(self, *, attempt: int = 1, seconds: float = HEALED_S) -> Any:
        """The function, once it is Ready with at least this attempt."""
        return await settled(
            self.run, lambda run: run.status.phase == "Ready" and run.status.attempt >= attempt, seconds
        )

    async def owner(self) -> Any:
        """The Pod that owns the function."""
        return await self.client.get(PODS, self.namespace, (await self.run()).status.assigned_pod)

    def kubectl(self, *arguments: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, **options)

    async def begin(self, pods: int) -> None:
        """Wait for the Runtime's Pods, make the function, let a caller in."""
        self.kubectl("create", "serviceaccount", "caller")
        self.kubectl(
            "create", "rolebinding", "caller", "--clusterrole=view", f"--serviceaccount={self.namespace}:caller"
        )
        await self.until_pods(pods)
        await self.client.create(RUNS, self.namespace, function(self.name, WHERE, mode={"concurrency": 64}))
        await self.ready(seconds=20)
        address = ("get", "svc", "runtime-gateway", "-n", SYSTEM, "-o", "jsonpath={.spec.clusterIP}")
        self.address = self.cluster.kubectl(*address)
        self.token = self.kubectl("create", "token", "caller", "--audience=kruntimes").strip()

    async def until_pods(self, number: int, seconds: float = HEALED_S) -> None:
        """Wait until so many Pods of the Runtime are Ready, and no others are there."""
        await settled(
            lambda: self.client.list(PODS, self.namespace),
            lambda pods: len(pods.items) == number and all(pod.ready for pod in pods.items),
            seconds,
        )

    async def until_others(self, uids: Collection[str], number: int, seconds: float = HEALED_S) -> None:
        """Wait until so many Pods of the Runtime are Ready that are none of these."""
        await settled(
            lambda: self.client.list(PODS, self.namespace),
            lambda pods: sum(pod.ready and pod.metadata.uid not in uids for pod in pods.items) == number,
            seconds,
        )

    @asynccontextmanager
    async def calls(self, per_second: float, *, gateway: str = "", **body: Any) -> AsyncIterator[Caller]:
        """A caller at this rate, once it is served: by the Service, or by one gateway Pod's address."""
        run = await self.run()
        what = {
            "url": run.status.endpoint.url,
            "address": gateway or self.address,
            "port": 8443 if gateway else 443,
            "ca": base64.b64decode(run.status.endpoint.ca_bundle).decode(),
            "token": self.token,
            "perSecond": per_second,
            "body": body,
        }
        command = (sys.executable, "-m", "tests.cluster.load")
        pipe = subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
        try:
            assert process.stdin is not None
            process.stdin.write(json.dumps(what).encode() + b"\n")
            await process.stdin.drain()
            caller = Caller(process)
            await caller.until_served(10, 20)
            yield caller
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @asynccontextmanager
    async def gateway(self, **environment: str) -> AsyncIterator[str]:
        """The address of a gateway Pod like the Deployment's, but for these variables, and outside of the Service."""
        deployment = json.loads(self.cluster.kubectl("get", "deploy", "runtime-gateway", "-n", SYSTEM, "-o", "json"))
        spec = deployment["spec"]["template"]["spec"]
        spec["containers"][0]["env"] += [{"name": name, "value": value} for name, value in environment.items()]
        name = fresh("gateway")
        await self.client.create(PODS, SYSTEM, {"metadata": {"name": name}, "spec": spec})
        try:
            pod = await settled(lambda: self.client.get(PODS, SYSTEM, name), lambda pod: pod.ready, 60)
            yield pod.status.pod_ip
        finally:
            await self.client.delete(PODS, SYSTEM, name, grace_seconds=1)

    async def no_slot_is_lost(self) -> None:
        """Everything that the Runtime offers can be taken, and given back."""
        names = [f"filler-{number}" for number in range(self.capacity - 1)]
        for name in names:
            await self.client.create(RUNS, self.namespace, function(name, WHERE))
        for name in names:
            await settled(lambda name=name: self.client.get(RUNS, self.namespace, name), _ready, 30)
        await self._used(self.capacity)
        for name in names:
            await self.client.delete(RUNS, self.namespace, name)
        await self._used(1)

    async def _used(self, number: int) -> None:
        await settled(
            lambda: self.client.get(RUNTIMES, self.namespace, "python"),
            lambda runtime: int(runtime.status.capacity.used.get("runs", 0)) == number,
            20,
        )

    async def follow(self) -> None:
        """Keep every state of the function, until cancelled."""
        found = await self.client.list(RUNS, self.namespace, fields=f"metadata.name={self.name}")
        revision = found.resource_version
        async for event in self.client.watch(
            RUNS, self.namespace, resource_version=revision, fields=f"metadata.name={self.name}"
        ):
            if event.object is not None:
                self.history.append((time.time(), event.object))


@asynccontextmanager
async def arena(
    cluster: Cluster, *, pods: int = 2, change: Callable[[dict[str, Any]], None] = lambda runtime: None
) -> AsyncIterator[Arena]:
    """A namespace with a Runtime of so many Pods and a function that is Ready; gone afterwards. `change` may alter the
    Runtime before it is made."""
    namespace = fresh("arena")
    like = json.loads(cluster.kubectl("get", "runtime", "python", "-n", "default", "-o", "json"))
    spec = {
        "replicas": pods,
        "capacity": {"resources": {"runs": str(RUNS_PER_POD)}},
        "template": like["spec"]["template"],
    }
    runtime = {"apiVersion": like["apiVersion"], "kind": "Runtime", "metadata": {"name": "python"}, "spec": spec}
    change(runtime)
    cluster.kubectl("create", "namespace", namespace)
    try:
        cluster.apply(runtime, namespace=namespace)
        async with cluster.client() as client:
            made = Arena(cluster, client, namespace, pods * RUNS_PER_POD)
            await made.begin(pods)
            yield made
    finally:
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def _ready(run: Any) -> bool:
    return bool(run.status.phase == "Ready")
