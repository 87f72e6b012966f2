"""`…/runs/{name}/log` and `…/runs/{name}/journal`: one path of code for the embedded API server and for a cluster.

Lives here: options, cursors, batches, following, what is said when something is missing. May not live here: who may
read (the API server has decided that), where the bytes are (a `Records` knows: `embedded.apiserver.runlogs` has files,
`podrecords` asks Pods), HTTP. Refusals are KubeErrors, whose Status goes to the client as it stands.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from controlplane.kube.errors import KubeError, error_of
from controlplane.kube.meta import Status, StatusDetails
from controlplane.kube.runfiles import Offsets

GROUP: Final = "logs.kruntimes.io"
VERSION: Final = "v1alpha1"
RESOURCES: Final[tuple[dict[str, Any], ...]] = (
    {"name": "runs/log", "singularName": "", "namespaced": True, "kind": "RunLog", "verbs": ["get"]},
    {"name": "runs/journal", "singularName": "", "namespaced": True, "kind": "RunJournal", "verbs": ["get"]},
)
SUBRESOURCES: Final = frozenset({"log", "journal"})

TAIL_MAX_LINES: Final = 500  # spec, section 6
CURSOR_MAX_CHARS: Final = 4_096  # it names the files of a Run's log and how far each was read
OFFSET_MAX: Final = 1 << 48  # no file is as long; what a client sends is not trusted
NDJSON: Final = "application/x-ndjson"
SEGMENT: Final = "application/octet-stream"
CONTROL_PLANE: Final = "controlplane"
_WRITER: Final = re.compile(r"controlplane|runtimed|runtimed-[-0-9A-Za-z]{1,64}")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A Run, as far as its log matters. `pod` and `pod_uid` are those of its assignment, or empty."""

    namespace: str
    name: str
    uid: str
    runtime: str = ""
    pod: str = ""
    pod_uid: str = ""
    ended: bool = False


class Missing(msgspec.Struct, frozen=True):
    """Something that is not in an answer, as a sentence; `code` is that of the refusal where nothing else is there."""

    code: int
    message: str


class Batch(msgspec.Struct, frozen=True):
    """Lines by time, what is missing among them, and whether there are more right now."""

    lines: list[bytes]
    missing: tuple[Missing, ...] = ()
    more: bool = False


class Records(Protocol):
    """Where Runs, their logs and journals are. `pace_s` is how often a followed log is looked at."""

    pace_s: float

    async def find(self, namespace: str, name: str) -> Found:
        """The Run of this name. Raises NotFound, or another KubeError."""
        ...

    async def again(self, run: Found) -> Found | None:
        """The same Run now; None when it is gone. Raises KubeError: then the stream breaks and is asked for again."""
        ...

    async def read(self, run: Found, offsets: Offsets, invocation: str) -> Batch:
        """Lines behind the offsets, which it moves; as many as are fit to be held. Empty offsets: from the start."""
        ...

    async def journal(self, run: Found, writer: str) -> bytes:
        """One segment with this Run's records of one writer. Raises KubeError, NotFound where there are none."""
        ...


class Answer(msgspec.Struct, frozen=True):
    """A body, or a stream of chunks."""

    content_type: str
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None


class RunLogsApi:
    """Answers for one installation."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def serve(self, namespace: str, name: str, subresource: str, query: Mapping[str, str]) -> Answer:
        """Answer a GET. Raises KubeError."""
        if subresource not in SUBRESOURCES:
            raise refusal(404, "NotFound", "the server could not find the requested resource")
        if subresource == "journal":
            writer = query.get("writer") or CONTROL_PLANE
            if _WRITER.fullmatch(writer) is None:
                raise refusal(400, "BadRequest", "writer: controlplane, runtimed (the owner's) or runtimed-<Pod UID>")
            run = await self._records.find(namespace, name)
            return Answer(SEGMENT, await self._records.journal(run, _writer(run, writer)))
        tail, offsets = _tail(query.get("tailLines", "")), _from_cursor(query.get("cursor", ""))
        invocation = query.get("invocation", "")
        run = await self._records.find(namespace, name)
        batch = await self._records.read(run, offsets, invocation)
        follow = query.get("follow") in {"true", "1", "True", "t"}
        if not offsets and batch.missing and (run.ended or not follow):
            worst = max(batch.missing, key=lambda missing: missing.code)
            raise refusal(worst.code, _REASONS.get(worst.code, "InternalError"), worst.message, name=name)
        while tail and batch.more:
            further = await self._records.read(run, offsets, invocation)
            batch = Batch([*batch.lines[-tail:], *further.lines], further.missing, further.more)
        if tail:
            batch = Batch(batch.lines[-tail:], batch.missing)
        if follow:
            return Answer(NDJSON, stream=self._follow(run, offsets, invocation, batch))
        if batch.more:
            return Answer(NDJSON, stream=self._rest(run, offsets, invocation, batch, set()))
        return Answer(NDJSON, _encoded(batch, offsets, set()))

    async def _rest(
        self, run: Found, offsets: Offsets, invocation: str, batch: Batch, told: set[str]
    ) -> AsyncIterator[bytes]:
        """A batch and what there is behind it now, each part with the cursor behind it."""
        if batch.lines or {missing.message for missing in batch.missing} - told:
            yield _encoded(batch, offsets, told)
        while batch.more:
            batch = await self._records.read(run, offsets, invocation)
            yield _encoded(batch, offsets, told)

    async def _follow(self, run: Found, offsets: Offsets, invocation: str, batch: Batch) -> AsyncIterator[bytes]:
        """Lines as they come, each batch with the cursor behind it, until the Run is gone or has ended.

        What an ended Run printed is read once more: its last lines are written while its phase is."""
        told: set[str] = set()
        while True:
            async for part in self._rest(run, offsets, invocation, batch, told):
                yield part
            now = await self._records.again(run)
            run = now or run
            await asyncio.sleep(self._records.pace_s)
            batch = await self._records.read(run, offsets, invocation)
            if now is None or now.ended:
                async for part in self._rest(run, offsets, invocation, Batch(batch.lines, (), batch.more), told):
                    yield part
                return


_REASONS: Final = {404: "NotFound", 503: "ServiceUnavailable"}


def refusal(code: int, reason: str, message: str, *, name: str = "") -> KubeError:
    """An error whose Status says this."""
    details = StatusDetails(
        name=name, kind="runs" if name else "", group=GROUP if name else "", retry_after_seconds=int(code == 503)
    )
    return error_of(Status(status="Failure", code=code, reason=reason, message=message, details=details))


def _writer(run: Found, writer: str) -> str:
    if writer != "runtimed":
        return writer
    if not run.pod_uid:
        raise refusal(404, "NotFound", f"Run {run.name} is assigned to no Pod: no runtimed owns it", name=run.name)
    return f"runtimed-{run.pod_uid}"


def _tail(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        why = f'tailLines: Invalid value: "{text[:32]}": must be a whole number, not negative'
        raise refusal(400, "BadRequest", why)
    tail = int(text[:9] or 0)
    if tail > TAIL_MAX_LINES:
        raise refusal(400, "BadRequest", f"tailLines: Invalid value: {tail}: at most {TAIL_MAX_LINES}")
    return tail


def _encoded(batch: Batch, offsets: Offsets, told: set[str]) -> bytes:
    """Lines, a note for what is missing and was not told yet, and as the last line the cursor to go on from."""
    notes = [missing.message for missing in batch.missing if missing.message not in told]
    told.update(notes)
    noted = [msgspec.json.encode({"note": note}) + b"\n" for note in notes]
    return b"".join([*batch.lines, *noted, msgspec.json.encode({"cursor": _cursor(offsets)}), b"\n"])


def _cursor(offsets: Offsets) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(offsets)).decode().rstrip("=")


def _from_cursor(cursor: str) -> Offsets:
    if not cursor:
        return {}
    try:
        if len(cursor) > CURSOR_MAX_CHARS:
            raise ValueError("too long")
        offsets = msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=Offsets)
        if not all(0 <= offset <= OFFSET_MAX for offset in offsets.values()):
            raise ValueError("an offset of no file")
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise refusal(400, "BadRequest", "cursor is not one that this server gave") from error
    return offsets
