"""What one invocation looks like between gateway, runtimed and peer.

Here: the heads of the single method that runtimed's port serves, as frozen Structs, and nothing else. Bodies are the
caller's JSON bytes as sent and the function's JSON bytes as answered; no hop parses them. No sockets, no policy.
Next: `dataplane.gateway.forward` sends a request head, `dataplane.runtimed` serves it and sends it on to a peer
(`hops + 1`).
"""

from typing import Literal

from msgspec import Struct, field

from statemachine.run import Mode

METHOD_INVOKE = "Invoke"
"""What gateways and peers ask of runtimed's network port; the control plane reads records there (`kube.records`)."""

METHOD_MODE = "Mode"
"""What kind of Run a UID is, asked by gateways: they watch Runs without their specs, and runtimeds do not."""

HOPS_MAX = 1
"""A call that has been passed on by a peer once is served or refused, never passed on again."""

Hop = Literal["gateway", "runtimed", "peer", "runtime", "worker"]
"""Who answered: `peer` is the runtimed that passed the call on, `runtimed` the owner."""


class InvokeRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The head of one call. `attempt` and `pod_uid` are the sender's view of the owner: None where it has none.

    A receiver whose own epoch differs refuses (StaleOwner); it never serves another epoch than the one named.
    """

    namespace: str
    runtime: str
    run_uid: str
    invocation_id: str
    deadline_ms: int
    """Milliseconds left when the head was written: clocks of two hosts are never compared. This is the deadline; the
    frame's own time is longer, so that the owner can still say what became of the call."""
    user: str
    """The authenticated caller, as data: no credential ever travels here."""
    attempt: int | None = None
    pod_uid: str | None = None
    traceparent: str | None = None
    hops: int = 0
    """How many peers have passed it on: 0 from a gateway, 1 from a peer."""


class Cause(Struct, frozen=True, omit_defaults=True):
    """One entry of a Status's `details.causes`: for a handler's exception its type and its last frames."""

    reason: str
    message: str = ""


class InvokeReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The head of the answer. Status 200 carries the result as the body; any other status carries no body.

    `reason` is a value of `statemachine.reasons.Reason`. `moving` says that the Run left this owner before the call
    was dispatched (a drain, a lost registration), so that the gateway may hold the call for the new owner.
    """

    status: int
    reason: str = ""
    message: str = ""
    hop: Hop = "runtimed"
    retryable: bool | None = None
    """None: as `reason` says."""
    retry_after_s: int | None = None
    moving: bool = False
    causes: tuple[Cause, ...] = ()
    server_timing: tuple[tuple[str, float], ...] = field(default=())
    """(name, milliseconds) per hop behind the gateway, innermost last: `runtimed`, `peer`, `runtime`, `worker`."""


class ModeRequest(Struct, frozen=True, kw_only=True):
    """Which Run."""

    namespace: str
    runtime: str
    run_uid: str


class ModeReply(Struct, frozen=True, omit_defaults=True):
    """`mode` is None for a Run that is not known here."""

    mode: Mode | None = None
