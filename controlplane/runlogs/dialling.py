"""Asking a runtimed or another control plane for a Run's records: mutual TLS, connections kept while they are used.

Lives here: connections, parts put together, failures as one exception. May not live here: whom to ask (`podrecords`).
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from controlplane.kube.records import (
    JOURNAL_DAMAGED,
    METHOD_JOURNAL,
    METHOD_LOG,
    JournalReply,
    JournalRequest,
    LogReply,
    LogRequest,
)
from controlplane.kube.runfiles import LogPart, Offsets, timed_lines
from runtimes.contract.endpoint import connect_tcp
from runtimes.contract.mux import CallError, CallTimeout, Connection, ConnectionLost, Refused, Reply

DIAL_S: Final = 3.0
ASK_S: Final = 10.0  # reading a part from a disk that is busy
CONNECTIONS_MAX: Final = 256  # the one that was used longest ago goes; a dial costs milliseconds
PARTS_MAX: Final = 16  # of one journal: 16 MiB are some 30,000 records of one Run

T = TypeVar("T")


class Member(msgspec.Struct, frozen=True):
    """Who is asked: where it listens, and the host name that its certificate must have."""

    address: str
    port: int
    host: str


class NoAnswer(Exception):
    """The member cannot be reached or did not answer; the message says why."""


class Damaged(Exception):
    """The member answered that its journal is damaged; the message names the place."""


class Dialling:
    """Connections to members of this installation. `context` gives a context with our own certificate."""

    def __init__(self, context: Callable[[], ssl.SSLContext]) -> None:
        self._context = context
        self._connections: dict[Member, Connection] = {}
        self._turns: dict[Member, asyncio.Lock] = {}

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def log(self, member: Member, uid: str, offsets: Offsets, invocation: str) -> LogPart:
        """About 1 MiB of lines behind the offsets, which it moves. Raises NoAnswer."""
        asked = LogRequest(run_uid=uid, offsets=offsets, invocation=invocation)
        reply, body = await self._ask(member, METHOD_LOG, asked, LogReply)
        moved = reply.offsets != offsets
        offsets.update(reply.offsets)
        return LogPart(timed_lines(body, invocation), reply.more and moved)

    async def journal(self, member: Member, uid: str) -> bytes:
        """The records, without the head of a segment; empty where there are none. Raises NoAnswer, Damaged."""
        parts, after = [], 0
        for _ in range(PARTS_MAX):
            reply, body = await self._ask(
                member, METHOD_JOURNAL, JournalRequest(run_uid=uid, after=after), JournalReply
            )
            parts.append(body)
            after = reply.last
            if not reply.more:
                return b"".join(parts)
        raise NoAnswer(f"the journal of this Run is larger than {PARTS_MAX} MiB")

    async def _ask(self, member: Member, method: str, head: object, kind: type[T]) -> tuple[T, bytes]:
        try:
            connection = await self._connection(member)
            reply: Reply = await connection.call(method, head, timeout=ASK_S)
            return reply.decode(kind), reply.body
        except CallError as error:
            if error.error.reason == JOURNAL_DAMAGED:
                raise Damaged(error.error.message) from error
            raise NoAnswer(error.error.message) from error
        except ssl.SSLError as error:
            raise NoAnswer(f"TLS failed: {error.reason or error}") from error
        except (Refused, ConnectionLost, CallTimeout, OSError, TimeoutError, msgspec.MsgspecError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error

    async def _connection(self, member: Member) -> Connection:
        async with self._turns.setdefault(member, asyncio.Lock()):
            connection = self._connections.pop(member, None)
            if connection is None or not connection.usable:
                connection = await connect_tcp(
                    member.address, member.port, tls=self._context(), server_hostname=member.host, timeout=DIAL_S
                )
            self._connections[member] = connection  # at the end: the one used last
            self._forget_some()
            return connection

    def _forget_some(self) -> None:
        for member in list(self._turns):
            if member not in self._connections and not self._turns[member].locked():
                del self._turns[member]
        while len(self._connections) > CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            with contextlib.suppress(OSError):
                self._connections.pop(oldest).close()
