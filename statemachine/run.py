"""What the lifecycle knows about one Run: its phase, its facts and the bounds they keep.

Only data lives here. How it changes is in `table.py` and `step.py`; how it is read from the Kubernetes API is in
`controlplane.kube.translate`. Neither source, environment values nor payloads are part of it, so a journal holds no
secret.
Times are integers: microseconds since the Unix epoch (`*_us`), durations are milliseconds (`*_ms`).
"""

from enum import StrEnum
from typing import Final, NewType

import msgspec

from statemachine.reasons import Reason

RunUID = NewType("RunUID", str)
PodUID = NewType("PodUID", str)

CLAIM_TIMEOUT_MS: Final = 30_000  # Scheduled but not claimed for this long: the binding is taken back
REGISTRATION_TIMEOUT_MS: Final = 60_000  # source included; longer imports belong into the Runtime image
FENCE_MS: Final = 60_000  # above the owner's 45 s lease, so that a silent owner has stopped before it is replaced
OWNER_LEASE_MS: Final = (
    45_000  # an owner dispatches only this long after the start of its last good read of its own Pod
)
SILENCE_MS: Final = 30_000  # a Pod NotReady for this long makes its Runs OwnerUnreachable
BACKOFF_MAX_MS: Final = 60_000  # the doubling of `retryPolicy.backoff` stops here
MESSAGE_MAX_BYTES: Final = 1024  # bound of status.message in the CRD


class Phase(StrEnum):
    """Where a Run is in its life. `GONE` is no API value: the object has been removed."""

    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    REGISTERING = "Registering"
    READY = "Ready"
    RELEASING = "Releasing"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TIMEOUT = "Timeout"
    CANCELLED = "Cancelled"
    GONE = "Gone"


TERMINAL: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.TIMEOUT, Phase.CANCELLED})
ENDED: Final = TERMINAL | {Phase.GONE}
OWNED: Final = frozenset({Phase.REGISTERING, Phase.READY, Phase.RUNNING, Phase.RELEASING})
HOLDS_SLOT: Final = OWNED | {Phase.SCHEDULED}


class Mode(StrEnum):
    """`task` runs once; `function` is registered and invoked until it is released."""

    TASK = "task"
    FUNCTION = "function"


class Target(StrEnum):
    """What a Run in Releasing becomes once it is released, weakest first."""

    TIMEOUT = "Timeout"
    CANCELLED = "Cancelled"
    GONE = "Gone"


class Epoch(msgspec.Struct, frozen=True):
    """One assignment of a Run to a Pod. Every hop carries it, and a mismatch is refused."""

    run_uid: RunUID
    attempt: int
    pod_uid: PodUID


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Kubernetes condition without its type: `status` is True or False, since both of ours are always known."""

    status: bool
    reason: Reason
    message: str = ""
    since_us: int = 0


class Release(msgspec.Struct, frozen=True):
    """Why a Run is being released and what it becomes."""

    target: Target
    reason: Reason


class ArtifactRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a task left in the Runtime's store."""

    name: str
    uri: str
    size_bytes: int | None = None
    digest: str | None = None


class TaskResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a finished task reported: its exit code, at most 64 outputs of 4 KiB, at most 64 artifacts."""

    exit_code: int | None = None
    outputs: tuple[tuple[str, str], ...] = ()
    artifact_refs: tuple[ArtifactRef, ...] = ()


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status` of the API object, as far as the lifecycle reads or writes it."""

    phase: Phase = Phase.PENDING
    reason: str = ""  # a Reason when we wrote it; retry policies may name others, so text is kept as it came
    message: str = ""
    attempt: int = 0
    failures: int = 0
    pod_name: str | None = None
    pod_uid: PodUID | None = None
    endpoint_url: str | None = None
    scheduled: Condition | None = None
    ready: Condition | None = None
    start_us: int | None = None
    ready_us: int | None = None
    completion_us: int | None = None
    next_attempt_us: int | None = None
    release: Release | None = None
    result: TaskResult = TaskResult()


class RunSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of `spec` that decides; the rest (source, env) is not for the lifecycle."""

    runtime: str
    mode: Mode
    handler: str | None = None
    requests: tuple[tuple[str, int], ...] = (("runs", 1),)
    concurrency: int = 1
    idle_timeout_ms: int | None = None
    lifetime_ms: int | None = None
    ttl_ms: int | None = None
    max_attempts: int = 1
    backoff_ms: int = 1000
    retryable_reasons: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One Run as the API last showed it, or as a decision would leave it."""

    uid: RunUID
    namespace: str
    name: str
    spec: RunSpec
    status: Status = Status()
    cancel_requested: bool = False
    deleting: bool = False
    finalizer: bool = False  # ours: kruntimes.io/cleanup
    foreign_finalizer: bool = False  # anyone else's: it keeps the object after we let go
    created_us: int = 0
    gone: bool = False

    @property
    def phase(self) -> Phase:
        """The phase, or GONE once the object has been removed."""
        return Phase.GONE if self.gone else self.status.phase

    @property
    def epoch(self) -> Epoch | None:
        """The assignment in force, or None while there is no Pod."""
        if self.status.pod_uid is None:
            return None
        return Epoch(self.uid, self.status.attempt, self.status.pod_uid)

    @property
    def holds_slot(self) -> bool:
        """Whether this Run counts against its Pod's capacity."""
        return self.status.pod_uid is not None and self.phase in HOLDS_SLOT
