"""Logs and journals on a cluster: runtimeds have those of their Pods, the control plane that leads has its own journal.

Lives here: whom to ask, and what is known of those who are gone. May not live here: connections (`dialling`), what is
answered (`api`). Runs, Pods and the Lease are read from the API when somebody asks: any replica can answer.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Final

from controlplane.kube.api import Kube
from controlplane.kube.errors import NotFound
from controlplane.kube.resources import LEASES, PODS, RUNS
from controlplane.kube.runfiles import JournalDamaged, Offsets, whole_journal
from controlplane.kube.types import Pod, RunObject
from controlplane.pki.names import runtimed_host
from controlplane.runlogs.api import CONTROL_PLANE, Batch, Found, Missing, refusal
from controlplane.runlogs.dialling import Damaged, Dialling, Member, NoAnswer
from statemachine.journal import MAGIC
from statemachine.run import TERMINAL

RUNTIME_LABEL: Final = "kruntimes.io/runtime"
RUNTIMED_PORT: Final = 8443
PACE_S: Final = 0.5  # how often a followed log is looked at: two reads of the API and one of the owner
ASKED_MAX: Final = 64  # Pods of one Runtime that are asked for what a Run printed before it moved
AT_ONCE: Final = 4
READ_MAX_BYTES: Final = 2 << 20  # of lines at once, whoever has them: memory of a control plane is for deciding
LATER: Final = "later"  # in place of a file's name: this Pod was not asked yet
MARK_CHARS: Final = 8  # of a Pod's UID, before each of its offsets


class Leader:
    """Who leads, and whether that is this process."""

    def __init__(self, kube: Kube, *, namespace: str, lease: str, identity: str, host: str, port: int) -> None:
        self._kube = kube
        self._namespace = namespace
        self._lease = lease
        self._identity = identity
        self._host = host
        self._port = port

    async def member(self) -> tuple[str, Member | None]:
        """The leader's name, and where it is unless it is this process. Raises KubeError."""
        if not self._lease:
            return self._identity, None
        try:
            holder = (await self._kube.get(LEASES, self._namespace, self._lease)).spec.holder_identity
        except NotFound:
            holder = None
        if not holder:
            raise refusal(503, "ServiceUnavailable", "no control plane leads at the moment; try again")
        if holder == self._identity:
            return holder, None
        try:
            pod = await self._kube.get(PODS, self._namespace, holder)
        except NotFound as error:
            why = f"the control plane that led, {holder}, is gone and no other leads yet; try again"
            raise refusal(503, "ServiceUnavailable", why) from error
        return holder, Member(pod.status.pod_ip, self._port, self._host)


class PodRecords:
    """See the file's docstring. `journal_dir` is this process's own journal."""

    def __init__(
        self,
        kube: Kube,
        dialling: Dialling,
        leader: Leader,
        journal_dir: Path | None,
        *,
        runtimed_port: int = RUNTIMED_PORT,
    ) -> None:
        self.pace_s = PACE_S
        self._kube = kube
        self._dialling = dialling
        self._leader = leader
        self._journal_dir = journal_dir
        self._port = runtimed_port
        self.ending = False

    async def find(self, namespace: str, name: str) -> Found:
        return _found(await self._kube.get(RUNS, namespace, name))

    async def again(self, run: Found) -> Found | None:
        if self.ending:
            raise refusal(503, "ServiceUnavailable", "this control plane ends; ask again, from the last cursor on")
        try:
            now = await self.find(run.namespace, run.name)
        except NotFound:
            return None
        return now if now.uid == run.uid else None

    async def read(self, run: Found, offsets: Offsets, invocation: str) -> Batch:
        pods = await self._pods(run)
        owner = [pod for pod in pods if pod.metadata.uid == run.pod_uid]
        others = [pod for pod in pods if pod.metadata.uid != run.pod_uid]
        if offsets:
            others = [pod for pod in others if any(name.startswith(_mark(pod)) for name in offsets)]
        missing: list[Missing] = []
        if run.pod_uid and not owner:
            missing.append(Missing(404, f"Pod {run.pod} is gone, and what {run.name} printed there went with it"))
        if len(others) > ASKED_MAX:
            missing.append(Missing(503, f"only {ASKED_MAX} of the other {len(others)} Pods of the Runtime were asked"))
        turns, found, more = asyncio.Semaphore(AT_ONCE), list[tuple[str, bytes]](), False

        async def one(pod: Pod) -> None:
            nonlocal more
            mark = _mark(pod)
            known = {name: offset for name, offset in offsets.items() if name.startswith(mark)}
            async with turns:
                if sum(len(line) for _, line in found) >= READ_MAX_BYTES:
                    offsets[f"{mark}{LATER}"], more = 0, True
                    return
                try:
                    part = await self._dialling.log(self._member(pod), run.uid, known, invocation)
                except NoAnswer as error:
                    if pod in owner or known:
                        missing.append(Missing(503, f"Pod {pod.metadata.name} does not say what was printed: {error}"))
                    return
            # A Pod speaks for its own files alone: what it says of others' offsets is not taken.
            offsets.update({name: offset for name, offset in known.items() if name.startswith(mark)})
            found.extend(part.lines)
            more = more or part.more

        await asyncio.gather(*map(one, [*owner, *others[:ASKED_MAX]]))
        found.sort(key=lambda pair: pair[0])
        return Batch([line for _, line in found], tuple(missing), more)

    async def journal(self, run: Found, writer: str) -> bytes:
        if writer == CONTROL_PLANE:
            holder, member = await self._leader.member()
            who = f"the control plane that leads, {holder},"
            asked = self._own_journal(run.uid) if member is None else self._dialling.journal(member, run.uid)
            return await self._journal(run, who, asked)
        pods = [pod for pod in await self._pods(run) if writer == f"runtimed-{pod.metadata.uid}"]
        if pods:
            who, member = f"the runtimed of Pod {pods[0].metadata.name}", self._member(pods[0])
            return await self._journal(run, who, self._dialling.journal(member, run.uid))
        named = run.pod if writer == f"runtimed-{run.pod_uid}" else writer.removeprefix("runtimed-")
        why = f"Pod {named} is no Pod of Runtime {run.runtime}, or is gone and its journal with it"
        raise refusal(404, "NotFound", why, name=run.name)

    async def _journal(self, run: Found, who: str, asked: Awaitable[bytes]) -> bytes:
        try:
            records = await asked
        except NoAnswer as error:
            raise refusal(503, "ServiceUnavailable", f"{who} does not answer: {error}", name=run.name) from error
        except (Damaged, JournalDamaged) as damage:
            raise refusal(500, "InternalError", f"Internal error occurred: {damage}", name=run.name) from damage
        if not records:
            why = f"{who} has no record of this Run: its journal goes back to its own start"
            raise refusal(404, "NotFound", why, name=run.name)
        return MAGIC + records

    async def _own_journal(self, uid: str) -> bytes:
        if self._journal_dir is None:
            return b""
        return (await asyncio.to_thread(whole_journal, self._journal_dir, uid)).removeprefix(MAGIC)

    async def _pods(self, run: Found) -> Sequence[Pod]:
        """The Pods of the Run's Runtime that have a runtimed to ask, newest first."""
        listed = await self._kube.list(PODS, run.namespace, labels=f"{RUNTIME_LABEL}={run.runtime}")
        alive = [pod for pod in listed.items if pod.status.pod_ip and not pod.finished]
        return sorted(alive, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)

    def _member(self, pod: Pod) -> Member:
        return Member(pod.status.pod_ip, self._port, runtimed_host(pod.metadata.uid))


def _mark(pod: Pod) -> str:
    return f"{pod.metadata.uid[:MARK_CHARS]}."


def _found(run: RunObject) -> Found:
    return Found(
        namespace=run.metadata.namespace,
        name=run.metadata.name,
        uid=run.metadata.uid,
        runtime=run.spec.runtime,
        pod=run.status.assigned_pod or "",
        pod_uid=run.status.assigned_pod_uid or "",
        ended=run.status.phase in TERMINAL,
    )
