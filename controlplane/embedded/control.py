"""What the parent (`krt up`) and the supervisor say to each other, and what `DIR/status.json` holds.

Lives here: shapes and their encoding. May not live here: sockets and policy. `parent` and `supervisor` call it next,
`controlplane.cli.up` reads the state file. One message is one datagram of a SOCK_SEQPACKET pair; its end of file means
that the other side is gone.
"""

from typing import Final

import msgspec

CONTROL_MESSAGE_MAX_BYTES: Final = 64 * 1024
"""One datagram between parent and supervisor, or from the bootstrap process: a sentence and a few names."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Parent: stop in order, then exit. `now` skips the drain and ends everything at once."""

    now: bool = False


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """One sentence for a human about what is being waited for."""

    text: str


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """Bootstrap: the API answers and holds the objects that the other processes need."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A Run of the Runtimes asked for would be scheduled at once, and the gateway answers."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The start will not succeed; the sender gives up."""

    reason: str
    message: str


Order = Stop
Notice = Progress | Prepared | Ready | Failed


class ProcessState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One process of the system. `state` is running, waiting (for its restart) or stopped."""

    name: str
    kind: str
    state: str
    pid: int = 0
    start_ticks: int = 0
    started_us: int = 0
    restarts: int = 0
    last_exit_code: int | None = None


class SystemState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`DIR/status.json`: written by the supervisor at each change, read by `krt status` and `krt down`."""

    version: str
    parent: ProcessState
    supervisor: ProcessState
    api_port: int
    gateway_port: int
    ready: bool
    processes: tuple[ProcessState, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_notices: msgspec.msgpack.Decoder[Notice] = msgspec.msgpack.Decoder(Notice)


def encode(message: Order | Notice) -> bytes:
    """One datagram; a text too long for it is the sender's mistake."""
    return _encoder.encode(message)


def decode_order(data: bytes) -> Order:
    """What the parent ordered. Raises msgspec.MsgspecError for anything else."""
    return _orders.decode(data)


def decode_notice(data: bytes) -> Notice:
    """What the supervisor or the bootstrap process noted. Raises msgspec.MsgspecError for anything else."""
    return _notices.decode(data)
