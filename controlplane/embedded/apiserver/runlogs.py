"""`logs.kruntimes.io` on one machine: Runs from the store, logs and journals from the files of this machine.

Lives here: where they are. May not live here: what is answered (`controlplane.runlogs.api`, as on a cluster), who may
read (RBAC on `runs/log`, `runs/journal`). `server.py` answers with it what an aggregated API answers on a cluster.
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from controlplane.embedded.apiserver import errors, limits
from controlplane.embedded.apiserver.endpoints import Reply
from controlplane.embedded.apiserver.hub import Hub
from controlplane.embedded.apiserver.records import Key
from controlplane.embedded.apiserver.requests import Call
from controlplane.embedded.apiserver.store import Store
from controlplane.kube.errors import KubeError
from controlplane.kube.runfiles import JournalDamaged, Offsets, read_log, whole_journal
from controlplane.runlogs.api import Batch, Found, RunLogsApi, refusal
from statemachine.journal import MAGIC
from statemachine.run import TERMINAL

_RUNS: Final = "kruntimes.io/runs"


class _Meta(msgspec.Struct):
    uid: str = ""


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    assigned_pod: str = ""
    assigned_pod_uid: str = msgspec.field(default="", name="assignedPodUID")


class _Spec(msgspec.Struct):
    runtime: str = ""


class _Run(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class RunLogs:
    """Answers calls on the group."""

    def __init__(self, store: Store, hub: Hub, data_dir: Path) -> None:
        self._api = RunLogsApi(FileRecords(store, hub, data_dir))

    async def serve(self, call: Call) -> Reply:
        """`…/runs/{name}/log` and `…/runs/{name}/journal`. Raises 404 for an unknown Run or path."""
        target = call.target
        if target.resource != "runs" or not target.subresource or target.tail:
            raise errors.no_such_resource()
        if call.verb != "get":
            raise errors.method_not_allowed(call.method, "GET")
        try:
            answer = await self._api.serve(target.namespace, target.name, target.subresource, call.query)
        except KubeError as error:
            status = error.status
            details = msgspec.to_builtins(status.details) if status.details is not None else {}
            raise errors.ApiError(status.code, status.reason, status.message, details=details) from error
        return Reply(answer.body, content_type=answer.content_type, stream=answer.stream)


class FileRecords:
    """Reads under DIR/pods and DIR/journal. Files are read in a worker thread, and only on request."""

    def __init__(self, store: Store, hub: Hub, data_dir: Path) -> None:
        self.pace_s = limits.LOG_FOLLOW_SECONDS
        self._store = store
        self._hub = hub
        self._pods_dir = data_dir / "pods"
        self._journal_dir = data_dir / "journal"

    async def find(self, namespace: str, name: str) -> Found:
        row = self._store.get(Key(_RUNS, namespace, name))
        if row is None:
            raise refusal(404, "NotFound", f'runs.kruntimes.io "{name}" not found', name=name)
        run = msgspec.json.decode(row.value, type=_Run)
        return Found(
            namespace=namespace,
            name=name,
            uid=run.metadata.uid,
            runtime=run.spec.runtime,
            pod=run.status.assigned_pod,
            pod_uid=run.status.assigned_pod_uid,
            ended=run.status.phase in TERMINAL,
        )

    async def again(self, run: Found) -> Found | None:
        if self._hub.ended or self._store.get(Key(_RUNS, run.namespace, run.name)) is None:
            return None
        now = await self.find(run.namespace, run.name)
        return now if now.uid == run.uid else None

    async def read(self, run: Found, offsets: Offsets, invocation: str) -> Batch:
        return Batch(await asyncio.to_thread(_collect_lines, self._pods_dir, run.uid, offsets, invocation))

    async def journal(self, run: Found, writer: str) -> bytes:
        try:
            body = await asyncio.to_thread(whole_journal, self._journal_dir / writer, run.uid)
        except JournalDamaged as damage:
            raise refusal(500, "InternalError", f"Internal error occurred: {damage}") from damage
        if body == MAGIC:
            raise refusal(404, "NotFound", f"writer {writer!r} has no journal of this Run", name=run.name)
        return body


def _collect_lines(pods_dir: Path, uid: str, offsets: Offsets, invocation: str) -> list[bytes]:
    found: list[tuple[str, bytes]] = []
    for folder in sorted(pods_dir.glob("*/volumes/*/logs")):
        more = True
        while more:
            try:
                part = read_log(folder, uid, offsets, invocation)
            except PermissionError:
                break
            found += part.lines
            more = part.more
    found.sort(key=lambda pair: pair[0])
    return [line for _, line in found]
