"""The spawn protocol: how the node asks the supervisor for processes, and hears of their end.

Lives here: the messages, their encoding and their limits. May not live here: sockets, forks or policy.
One message is one datagram of a SOCK_SEQPACKET pair, so nothing is ever half read. The supervisor
(`supervisor.Supervisor`) and the node's client (`node.spawner`) call it next.

A process outlives the node: after a restart the node sends `Enumerate`, hears of everything that lives or ended
meanwhile, and adopts it by id. The record of an end is kept until the node says `Forget`.
"""

from typing import Final

import msgspec

MESSAGE_MAX_BYTES: Final = 128 * 1024
"""One datagram. Below the kernel's default socket buffer (208 KiB), above what a container's variables may hold."""

TITLE_MAX_BYTES: Final = 15
"""What the kernel keeps of a process name (TASK_COMM_LEN less its NUL)."""


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Run `target` (a module with a `main`) as process `id`. `log` is the file its output is appended to."""

    id: str
    target: str
    env: dict[str, str]
    log: str
    title: str


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """Send signal number `number` to process `id`; nothing happens if it is gone."""

    id: str
    number: int


class Enumerate(msgspec.Struct, frozen=True, tag="enumerate"):
    """Say everything about every process: `Started` for the living, `Exited` for the others, then `Enumerated`."""


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """The end of process `id` was taken note of; its record may go."""

    id: str


class Started(msgspec.Struct, frozen=True, tag="started"):
    """Process `id` lives as `pid` since `at_us` (Unix microseconds)."""

    id: str
    pid: int
    at_us: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Process `id` ended: `code` as a shell would say it (128 + signal when killed), started and finished when.

    Nothing that it left behind still runs: the supervisor says this only after it has ended the strays."""

    id: str
    code: int
    started_us: int
    finished_us: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Process `id` was not started, for the reason in `message`."""

    id: str
    message: str


class Enumerated(msgspec.Struct, frozen=True, tag="enumerated"):
    """The end of an enumeration."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """The whole system stops: end every process within `grace_seconds`, start none, then exit 0."""

    grace_seconds: float


Request = Spawn | Signal | Enumerate | Forget
Report = Started | Exited | Refused | Enumerated | Shutdown

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


class MessageTooLong(ValueError):
    """A message does not fit into one datagram; nothing was sent."""


def encode(message: Request | Report) -> bytes:
    """One datagram. Raises MessageTooLong above MESSAGE_MAX_BYTES."""
    data = _encoder.encode(message)
    if len(data) > MESSAGE_MAX_BYTES:
        raise MessageTooLong(f"a message of {len(data)} bytes; at most {MESSAGE_MAX_BYTES} fit")
    return data


def decode_request(data: bytes) -> Request:
    """What the node asked for. Raises msgspec.MsgspecError for anything else."""
    return _requests.decode(data)


def decode_report(data: bytes) -> Report:
    """What the supervisor reported. Raises msgspec.MsgspecError for anything else."""
    return _reports.decode(data)
