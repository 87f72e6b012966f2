"""How the control plane asks those who hold a Run's files for them: two methods on an internal port, served from disk.

`ReadLog` and `ReadJournal` answer in parts of bounded size; the caller asks on from where a part ended. runtimed serves
both beside Invoke, a control plane that leads serves its journal to the others. Who may ask is decided by the listener,
from the certificate. `controlplane.runlogs` asks.
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from controlplane.kube.runfiles import JournalDamaged, Offsets, read_journal, read_log
from runtimes.contract import messages as m
from runtimes.contract.mux import CallError, Refused, Reply, Request

METHOD_LOG: Final = "ReadLog"
METHOD_JOURNAL: Final = "ReadJournal"
METHODS: Final = frozenset({METHOD_LOG, METHOD_JOURNAL})
JOURNAL_DAMAGED: Final = "JournalDamaged"  # the reason of an error that is the file's, not the wire's
UNREADABLE: Final = "Unreadable"
READERS_MAX: Final = 8  # threads that read at once; more are told to come again


class LogRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Lines behind the offsets, of one invocation if it is named."""

    run_uid: str
    offsets: Offsets = {}
    invocation: str = ""


class LogReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far each file was read; the body holds the lines."""

    offsets: Offsets
    more: bool = False


class JournalRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Records with a number above `after`."""

    run_uid: str
    after: int = 0


class JournalReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The number of the last record in the body."""

    last: int
    more: bool = False


class RecordFiles:
    """Serves both methods from folders; without one of them there is nothing to read there."""

    def __init__(self, *, logs: Path | None, journal: Path | None, mark: str = "") -> None:
        self._logs = logs
        self._journal = journal
        self._mark = mark
        self._reading = 0

    async def handle(self, request: Request) -> Reply:
        """Answer one request; a thread reads. Raises CallError, Refused."""
        if self._reading >= READERS_MAX:
            raise Refused(m.ErrorHead(reason="Overloaded", message=f"{READERS_MAX} readers are at work"))
        self._reading += 1
        try:
            if request.method == METHOD_LOG:
                return await asyncio.to_thread(self._read_log, request.decode(LogRequest))
            if request.method == METHOD_JOURNAL:
                return await asyncio.to_thread(self._read_journal, request.decode(JournalRequest))
        finally:
            self._reading -= 1
        raise CallError(m.ErrorHead(reason=m.UNKNOWN_METHOD, message=f"{request.method} is not served here"))

    def _read_log(self, asked: LogRequest) -> Reply:
        offsets = dict(asked.offsets)
        if self._logs is None:
            return Reply(LogReply(offsets=offsets))
        try:
            part = read_log(self._logs, asked.run_uid, offsets, asked.invocation, mark=self._mark)
        except PermissionError as error:
            why = f"the log belongs to another user than runtimed: {error.strerror}"
            raise CallError(m.ErrorHead(reason=UNREADABLE, message=why)) from error
        return Reply(LogReply(offsets=offsets, more=part.more), b"".join(line for _, line in part.lines))

    def _read_journal(self, asked: JournalRequest) -> Reply:
        if self._journal is None:
            return Reply(JournalReply(last=asked.after))
        try:
            part = read_journal(self._journal, asked.run_uid, asked.after)
        except JournalDamaged as damage:
            raise CallError(m.ErrorHead(reason=JOURNAL_DAMAGED, message=str(damage))) from damage
        return Reply(JournalReply(last=part.last, more=part.more), part.records)
