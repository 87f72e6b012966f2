"""The heads of the Runtime Server contract (spec section 5): one frozen Struct for each request and reply.

Data only: no behaviour but digests. On the wire each is a msgpack map with camelCase keys; unknown keys are ignored,
so that a later version may add some. `client.RuntimeClient` sends them, a Runtime Server answers them, and
`docs/runtime-contract.md` gives the rules in words.
"""

from __future__ import annotations

import hashlib
from typing import Final, Literal

import msgspec

HELLO: Final = "Hello"
REGISTER_FUNCTION: Final = "RegisterFunction"
INVOKE_FUNCTION: Final = "InvokeFunction"
UNREGISTER_FUNCTION: Final = "UnregisterFunction"
FUNCTION_STATUS: Final = "FunctionStatus"
EXECUTE_TASK: Final = "ExecuteTask"
CANCEL_TASK: Final = "CancelTask"
TASK_STATUS: Final = "TaskStatus"
FORGET: Final = "Forget"
ALIVE: Final = "Alive"


class Head(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every head: frozen, camelCase on the wire, defaults left out."""


class Epoch(Head, frozen=True, kw_only=True):
    """Which binding of which Run a call is about: (Run UID, attempt, Pod UID). A mismatch is never served (L3)."""

    run_uid: str
    attempt: int
    pod_uid: str


class ErrorHead(Head, frozen=True, kw_only=True):
    """Why a call failed. `reason` is a word of docs/reasons.md, or one of the contract's own below."""

    reason: str
    message: str
    """Never empty (R3)."""
    details: dict[str, str] = {}
    """What else is known, bounded: `type` (exception), `frames` (last frames, one a line), `stderr` (its tail)."""
    retry_after_ms: int | None = None


# Reasons that only this contract uses; the caller turns them into reasons of the Run or of the invocation.
FAILED_PRECONDITION: Final = "FailedPrecondition"
"""The epoch or registration id is stale, closed, or not held."""
ALREADY_EXISTS: Final = "AlreadyExists"
"""This epoch is held with another digest."""
STILL_ACTIVE: Final = "StillActive"
"""Unregister with ifIdleForMs: a call is in flight or was too recently."""
UNKNOWN_METHOD: Final = "UnknownMethod"
UNSUPPORTED_VERSION: Final = "UnsupportedVersion"
INVALID_ARGUMENT: Final = "InvalidArgument"
"""The head does not decode or breaks a bound: a bug of the caller."""
UNHEALTHY: Final = "Unhealthy"
"""Alive: this server was condemned and should be restarted."""

Kind = Literal["function", "task"]
FunctionState = Literal["ready", "closing", "lost"]
TaskState = Literal["running", "exited"]


class HelloRequest(Head, frozen=True, kw_only=True):
    """First call of a connection. `versions`: protocol versions that the caller speaks."""

    versions: tuple[int, ...]
    client: str = ""


class HeldEpoch(Head, frozen=True, kw_only=True):
    """An epoch that the server holds.

    `open`: it serves calls, or its task runs. A closed one still drains, or keeps a task's result.
    """

    epoch: Epoch
    kind: Kind
    open: bool
    registration_id: str = ""


class Isolation(Head, frozen=True, kw_only=True):
    """How strongly this server keeps functions from one another."""

    level: Literal["sandbox", "process"]
    """`sandbox`: the kernel refuses user code the files, memory and environment of other Runs. `process`: processes,
    environment and folders of its own, and nothing that stops one that looks for the others."""
    landlock_abi: int = 0
    """From 6 on, signals to other Runs' processes are refused too."""


class HelloReply(Head, frozen=True, kw_only=True):
    """Who the server is. A new `instance_id` proves that everything registered before is gone (R5)."""

    version: int
    language: str
    default_script: str
    instance_id: str
    started_boottime_us: int
    """CLOCK_BOOTTIME of its start, microseconds."""
    held: tuple[HeldEpoch, ...] = ()
    isolation: Isolation | None = None
    """None: the server does not say; take it as `process`."""


class RegisterRequest(Head, frozen=True, kw_only=True):
    """Load a handler. Takes at most the time left of the call; then the load is ended: RegistrationTimedOut."""

    epoch: Epoch
    directory: str
    """Absolute path of the prepared source; the server makes `home` and `tmp` beside it."""
    handler: str
    digest: str
    env: dict[str, str] = {}
    idle_timeout_ms: int | None = None
    concurrency: int = 1


class RegisterReply(Head, frozen=True, kw_only=True):
    registration_id: str
    """Opaque; InvokeFunction and FunctionStatus carry it."""


class InvokeRequest(Head, frozen=True, kw_only=True):
    """One invocation; the body is the request's raw JSON. The time left of the call is its deadline."""

    registration_id: str
    invocation_id: str
    traceparent: str = ""


class InvokeReply(Head, frozen=True, kw_only=True):
    """The reply's body is the raw JSON answer `{"outputs": …, "artifactRefs": …}`."""

    worker_us: int = 0
    """Time between handing the request to the worker and having its answer."""
    artifacts: str = ""
    """Name of the folder, in `artifacts` beside the source, with the files that the call left; '' for none."""


class UnregisterRequest(Head, frozen=True, kw_only=True):
    """Close a function's epoch at once and for ever; of what is absent it succeeds and leaves the tombstone (R2)."""

    epoch: Epoch
    if_idle_for_ms: int | None = None
    """Refuse with StillActive, atomically, unless nothing is in flight and nothing was for so long."""
    drain_ms: int | None = None
    """End the calls still in flight after so long (they are answered OutcomeUnknown). None: let them finish."""
    wait_ms: int = 0
    """Answer when everything is gone, at the latest after so long. 0: answer as soon as it is closed."""


class UnregisterReply(Head, frozen=True, kw_only=True):
    held: bool
    """Whether this epoch was held when the call came."""
    gone: bool
    """No process, call or folder of this epoch is left."""
    in_flight: int = 0


class FunctionStatusRequest(Head, frozen=True, kw_only=True):
    registration_id: str
    wait_ms: int = 0
    """Answer when the state is no longer `ready`, at the latest after so long."""
    restart_idle: bool = False
    """Start the idle clock anew (Ready was written just now, L5)."""


class FunctionStatusReply(Head, frozen=True, kw_only=True):
    state: FunctionState
    in_flight: int
    idle_for_ms: int
    """0 while a call is in flight."""
    workers: int
    reason: str = ""
    message: str = ""
    """Why it is lost."""


class ExecuteTaskRequest(Head, frozen=True, kw_only=True):
    """Start a process once. Same epoch and digest: nothing is started again. Answered when it has started."""

    epoch: Epoch
    directory: str
    entrypoint: str
    digest: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}


class ExecuteTaskReply(Head, frozen=True, kw_only=True):
    started_us: int
    """Unix microseconds."""


class CancelTaskRequest(Head, frozen=True, kw_only=True):
    """Close a task's epoch: TERM to its group, KILL after the grace.

    Of what is absent it succeeds, and leaves the tombstone.
    """

    epoch: Epoch
    grace_ms: int = 10_000
    wait_ms: int = 0
    """Answer when the group is gone, at the latest after so long."""


class CancelTaskReply(Head, frozen=True, kw_only=True):
    held: bool
    gone: bool


class TaskStatusRequest(Head, frozen=True, kw_only=True):
    epoch: Epoch
    wait_ms: int = 0
    """Answer when it has exited, at the latest after so long."""


class ArtifactRef(Head, frozen=True, kw_only=True):
    name: str
    uri: str
    size_bytes: int | None = None
    digest: str = ""


class TaskResult(Head, frozen=True, kw_only=True):
    """How a task ended. Kept until Forget."""

    exit_code: int
    """As a shell reports it: 128 + n for signal n."""
    outputs: dict[str, str] = {}
    outputs_error: str = ""
    """Why $KRUNTIME_OUTPUTS could not be taken (reason OutputsInvalid); `outputs` is then empty."""
    artifact_refs: tuple[ArtifactRef, ...] = ()
    artifacts: str = ""
    """Name of the folder, in `artifacts` beside the source, with the files that it left; '' for none."""
    artifacts_error: str = ""
    """Why what it left could not be handed over."""
    stderr_tail: str = ""
    started_us: int = 0
    finished_us: int = 0
    cancelled: bool = False
    """CancelTask came before it exited."""


class TaskStatusReply(Head, frozen=True, kw_only=True):
    state: TaskState
    result: TaskResult | None = None


class ForgetRequest(Head, frozen=True, kw_only=True):
    """Drop what is kept of an epoch that has ended (a task's result). Its tombstone stays.

    An open one is FailedPrecondition; of what is absent it succeeds.
    """

    epoch: Epoch


class ForgetReply(Head, frozen=True, kw_only=True):
    pass


class AliveRequest(Head, frozen=True, kw_only=True):
    condemn: str = ""
    """Not empty: from now on Alive fails with this message, so that the container is restarted (R5)."""


class AliveReply(Head, frozen=True, kw_only=True):
    instance_id: str


def register_digest(
    *, epoch: Epoch, handler: str, env: dict[str, str], idle_timeout_ms: int | None, concurrency: int
) -> str:
    """SHA-256, in hex, of what a registration is, without its directory (R1)."""
    return _digest(["function", _epoch(epoch), handler, sorted(env.items()), idle_timeout_ms, concurrency])


def task_digest(*, epoch: Epoch, entrypoint: str, args: tuple[str, ...], env: dict[str, str]) -> str:
    """SHA-256, in hex, of what a task is, without its directory."""
    return _digest(["task", _epoch(epoch), entrypoint, args, sorted(env.items())])


def _epoch(epoch: Epoch) -> list[object]:
    return [epoch.run_uid, epoch.attempt, epoch.pod_uid]


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()
