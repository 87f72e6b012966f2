"""`logs.kruntimes.io`: the log and the journal of one Run, from the files of this machine.

Lives here: finding, filtering and following them. May not live here: who may read (RBAC on `runs/log`, `runs/journal`).
`server.py` answers with it what an aggregated API answers on a cluster.
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from controlplane.embedded.apiserver import errors, limits
from controlplane.embedded.apiserver.endpoints import Reply
from controlplane.embedded.apiserver.hub import Hub
from controlplane.embedded.apiserver.records import Key
from controlplane.embedded.apiserver.requests import Call
from controlplane.embedded.apiserver.store import Store
from controlplane.kube.journalfile import segments
from statemachine.journal import MAGIC, Damaged, decode, encode
from statemachine.run import TERMINAL

_RUNS: Final = "kruntimes.io/runs"
_NDJSON: Final = "application/x-ndjson"
_WRITER: Final = "controlplane"

Offsets = dict[str, int]


class _Line(msgspec.Struct):
    time: str = ""
    invocation: str = ""


class _Meta(msgspec.Struct):
    uid: str = ""


class _Status(msgspec.Struct):
    phase: str = ""


class _Run(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    status: _Status = msgspec.field(default_factory=_Status)


class RunLogs:
    """Reads under DIR/pods and DIR/journal. Files are read in a worker thread, and only on request."""

    def __init__(self, store: Store, hub: Hub, data_dir: Path) -> None:
        self._store = store
        self._hub = hub
        self._pods_dir = data_dir / "pods"
        self._journal_dir = data_dir / "journal"

    async def serve(self, call: Call) -> Reply:
        """`…/runs/{name}/log` and `…/runs/{name}/journal`. Raises 404 for an unknown Run or path."""
        target = call.target
        if target.resource != "runs" or target.subresource not in {"log", "journal"} or target.tail:
            raise errors.no_such_resource()
        if call.verb != "get":
            raise errors.method_not_allowed(call.method, "GET")
        row = self._store.get(Key(_RUNS, target.namespace, target.name))
        if row is None:
            raise errors.not_found("runs", "kruntimes.io", target.name)
        uid = str(msgspec.json.decode(row.value)["metadata"]["uid"])
        if target.subresource == "journal":
            return await self._journal(uid, call.query.get("writer") or _WRITER)
        return await self._log(row.key, uid, call)

    async def _journal(self, uid: str, writer: str) -> Reply:
        """One segment with this Run's records of one writer, as `krt replay` reads it."""
        if "/" in writer or writer in {".", ".."}:
            raise errors.bad_request("writer: a name of a journal, not a path")
        body = await asyncio.get_running_loop().run_in_executor(None, _collect_journal, self._journal_dir / writer, uid)
        if body == MAGIC:
            raise errors.no_such_resource(f"writer {writer!r} has no journal of this Run")
        return Reply(body, content_type="application/octet-stream")

    async def _log(self, key: Key, uid: str, call: Call) -> Reply:
        tail = call.number("tailLines", 0)
        if tail > limits.LOG_TAIL_MAX_LINES:
            raise errors.bad_request(f"tailLines: Invalid value: {tail}: at most {limits.LOG_TAIL_MAX_LINES}")
        offsets = _from_cursor(call.query.get("cursor", ""))
        invocation = call.query.get("invocation", "")
        lines = await self._read(uid, offsets, invocation)
        lines = lines[-tail:] if tail else lines
        if call.flag("follow"):
            return Reply(content_type=_NDJSON, stream=self._follow(key, uid, offsets, invocation, lines))
        return Reply(_batch(lines, offsets), content_type=_NDJSON)

    async def _read(self, uid: str, offsets: Offsets, invocation: str) -> list[bytes]:
        """Lines behind the offsets, which it moves, in the order of their times."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, _collect_lines, self._pods_dir, uid, offsets, invocation)

    async def _follow(
        self, key: Key, uid: str, offsets: Offsets, invocation: str, lines: list[bytes]
    ) -> AsyncIterator[bytes]:
        """Lines as they come, each batch with the cursor behind it, until the Run is gone or has ended.

        What an ended Run printed is read once more: its last lines are written while its phase is."""
        while True:
            if lines:
                yield _batch(lines, offsets)
            ended = self._has_ended(key, uid)
            await asyncio.sleep(limits.LOG_FOLLOW_SECONDS)
            lines = await self._read(uid, offsets, invocation)
            if ended:
                if lines:
                    yield _batch(lines, offsets)
                return

    def _has_ended(self, key: Key, uid: str) -> bool:
        row = self._store.get(key)
        if row is None or self._hub.ended:
            return True
        run = msgspec.json.decode(row.value, type=_Run)
        return run.metadata.uid != uid or run.status.phase in TERMINAL


def _collect_lines(pods_dir: Path, uid: str, offsets: Offsets, invocation: str) -> list[bytes]:
    found: list[tuple[str, bytes]] = []
    for path in sorted(pods_dir.glob(f"*/volumes/*/logs/{uid}*.ndjson")):
        try:
            with path.open("rb") as file:
                name = str(path.stat().st_ino)
                file.seek(offsets.get(name, 0))
                data = file.read()
        except OSError:
            continue
        whole = data[: data.rfind(b"\n") + 1]
        offsets[name] = offsets.get(name, 0) + len(whole)
        for line in whole.splitlines(keepends=True):
            try:
                known = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError:
                continue
            if not invocation or known.invocation == invocation:
                found.append((known.time, line))
    found.sort(key=lambda pair: pair[0])
    return [line for _, line in found]


def _collect_journal(directory: Path, uid: str) -> bytes:
    """Raises 500 where a segment is damaged, naming the place."""
    parts = [MAGIC]
    files = segments(directory)
    for number, path in enumerate(files):
        try:
            for entry in decode(path.read_bytes(), last=number == len(files) - 1):
                if entry.record is not None and entry.record.run_uid == uid:
                    parts.append(encode(entry.record))
        except Damaged as damage:
            raise errors.internal(f"journal segment {path.name}: {damage}") from damage
        except FileNotFoundError:
            continue
    return b"".join(parts)


def _batch(lines: list[bytes], offsets: Offsets) -> bytes:
    """Lines and, as the last one, the cursor to go on from."""
    return b"".join([*lines, msgspec.json.encode({"cursor": _cursor(offsets)}), b"\n"])


def _cursor(offsets: Offsets) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(offsets)).decode().rstrip("=")


def _from_cursor(cursor: str) -> Offsets:
    if not cursor:
        return {}
    try:
        if len(cursor) > limits.LOG_CURSOR_MAX_CHARS:
            raise ValueError("too long")
        decoded: Any = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=Offsets)
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise errors.bad_request("cursor is not one that this server gave") from error
    return dict(decoded)
