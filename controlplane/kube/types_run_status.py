"""`status` of a Run: where it is in its life and what it left behind, with the bounds and rules that the API enforces.

Only shapes live here, see `types_kruntimes`. Which phase follows which is not for the API: `statemachine` decides it.
"""

from typing import Annotated, ClassVar, Final, Literal

import msgspec

from controlplane.kube.crd_fields import (
    CONDITIONS_MAX,
    MESSAGE_MAX_BYTES,
    NAME_MAX_BYTES,
    REASON_MAX_BYTES,
    UID_MAX_BYTES,
    Timestamp,
)
from controlplane.kube.crd_meta import Rule, field, keyed, large, text, whole
from controlplane.kube.meta import ApiStruct, Condition

ENDPOINT_URL_MAX_BYTES: Final = 2048
CA_BUNDLE_MAX_BYTES: Final = 16 * 1024  # of base64: a root certificate takes less than one KiB
OUTPUTS_MAX: Final = 64
OUTPUT_KEY_MAX_BYTES: Final = 128
OUTPUT_VALUE_MAX_BYTES: Final = 4 * 1024
OUTPUTS_SUM_MAX_BYTES: Final = 32 * 1024
ARTIFACT_REFS_MAX: Final = 64
ARTIFACT_NAME_MAX_BYTES: Final = 1024
ARTIFACT_URI_MAX_BYTES: Final = 2048
ARTIFACT_DIGEST_MAX_BYTES: Final = 256

RunPhase = Literal[
    "Pending",
    "Scheduled",
    "Registering",
    "Ready",
    "Releasing",
    "Running",
    "Succeeded",
    "Failed",
    "Timeout",
    "Cancelled",
]
ReleaseTarget = Literal["Gone", "Cancelled", "Timeout"]


class ConditionObject(Condition, frozen=True, kw_only=True):
    """One condition, as `kubectl wait` reads it. No observedGeneration: with it a wait would hang after an edit."""

    type: Annotated[str, text("Which condition.", max_bytes=REASON_MAX_BYTES, minLength=1)]
    status: Annotated[Literal["True", "False", "Unknown"], field("Whether it holds.")]
    reason: Annotated[str, text("Why, as one word.", max_bytes=REASON_MAX_BYTES)] = ""
    message: Annotated[str, text("Why, as a sentence.", max_bytes=MESSAGE_MAX_BYTES)] = ""
    last_transition_time: Timestamp | None = None


class EndpointObject(ApiStruct, frozen=True, kw_only=True):
    """Where a function is invoked."""

    protocol: Annotated[Literal["HTTPS"], field("How it is spoken to.")] = "HTTPS"
    url: Annotated[str, text("POST here to invoke.", max_bytes=ENDPOINT_URL_MAX_BYTES, minLength=1)]
    ca_bundle: Annotated[
        str | None,
        field(
            "Base64 of the PEM root that the endpoint is verified with.", format="byte", maxLength=CA_BUNDLE_MAX_BYTES
        ),
    ] = None


class ReleaseObject(ApiStruct, frozen=True, kw_only=True):
    """What a Run in Releasing becomes once its owner has let go of it."""

    target: Annotated[ReleaseTarget, field("What it becomes; Gone is the removal of the object.")]
    reason: Annotated[str, text("Why it is released.", max_bytes=REASON_MAX_BYTES)] = ""


class ArtifactRefObject(ApiStruct, frozen=True, kw_only=True):
    """A file that a task left in the artifact store of its Runtime."""

    name: Annotated[str, text("Its path below the artifacts folder.", max_bytes=ARTIFACT_NAME_MAX_BYTES, minLength=1)]
    uri: Annotated[str, text("Where it is stored.", max_bytes=ARTIFACT_URI_MAX_BYTES, minLength=1)]
    size_bytes: Annotated[int | None, large("Its size in bytes.")] = None
    digest: Annotated[
        str | None, text("Hash of its content, such as sha256:….", max_bytes=ARTIFACT_DIGEST_MAX_BYTES)
    ] = None


class RunStatusObject(ApiStruct, frozen=True, kw_only=True):
    """Written by kruntimes only."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.assignedPod) == has(self.assignedPodUID)",
            "assignedPod and assignedPodUID are set and cleared together",
            ".assignedPodUID",
        ),
        Rule(
            "!has(self.phase) || self.phase != 'Pending' || "
            "(!has(self.assignedPodUID) && !has(self.startTime) && !has(self.readyTime))",
            "a Run in Pending has no Pod, startTime or readyTime",
            ".phase",
        ),
        Rule(
            "!has(self.conditions) || self.conditions.all(c, c.type != 'Ready' || c.status != 'True' || "
            "(has(self.phase) && self.phase == 'Ready' && has(c.reason) && c.reason == 'FunctionRegistered'))",
            "condition Ready is True only in phase Ready, with reason FunctionRegistered",
            ".conditions",
        ),
    )
    phase: Annotated[RunPhase, field("Where the Run is in its life.")] = "Pending"
    reason: Annotated[str, text("Why it is there, as one word.", max_bytes=REASON_MAX_BYTES)] = ""
    message: Annotated[str, text("Why it is there, as a sentence.", max_bytes=MESSAGE_MAX_BYTES)] = ""
    attempt: Annotated[int, whole("How often the Run was bound to a Pod: the number of its epoch.", minimum=0)] = 0
    failures: Annotated[
        int, whole("Tries that failed in a row; Ready sets it to 0. retryPolicy.maxAttempts bounds it.", minimum=0)
    ] = 0
    assigned_pod: Annotated[str | None, text("Name of the Pod that owns the Run.", max_bytes=NAME_MAX_BYTES)] = None
    assigned_pod_uid: Annotated[str | None, text("UID of the Pod that owns the Run.", max_bytes=UID_MAX_BYTES)] = (
        msgspec.field(default=None, name="assignedPodUID")
    )
    endpoint: Annotated[EndpointObject | None, field("Where it is invoked; absent without a gateway.")] = None
    conditions: Annotated[
        tuple[ConditionObject, ...], keyed("Scheduled and Ready.", "type", max_items=CONDITIONS_MAX)
    ] = ()
    start_time: Annotated[Timestamp | None, field("When its Pod claimed it: spec.timeout counts from here.")] = None
    ready_time: Annotated[Timestamp | None, field("When it became Ready.")] = None
    completion_time: Annotated[Timestamp | None, field("When it reached a terminal phase.")] = None
    next_attempt_time: Annotated[Timestamp | None, field("When a backoff ends.")] = None
    release: Annotated[ReleaseObject | None, field("What a Run in Releasing becomes.")] = None
    exit_code: Annotated[int | None, field("Exit status of the task's process.", format="int32")] = None
    outputs: Annotated[
        dict[str, Annotated[str, text("A value that the task wrote.", max_bytes=OUTPUT_VALUE_MAX_BYTES)]],
        field(
            "What the task wrote to $KRUNTIME_OUTPUTS.",
            Rule(
                f"self.all(key, size(bytes(key)) <= {OUTPUT_KEY_MAX_BYTES})",
                f"keys must be at most {OUTPUT_KEY_MAX_BYTES} bytes of UTF-8",
            ),
            Rule(
                f"self.map(key, size(bytes(self[key]))).sum() <= {OUTPUTS_SUM_MAX_BYTES}",
                f"all values together must be at most {OUTPUTS_SUM_MAX_BYTES} bytes of UTF-8",
            ),
            maxProperties=OUTPUTS_MAX,
        ),
    ] = msgspec.field(default_factory=dict)
    artifact_refs: Annotated[
        tuple[ArtifactRefObject, ...], field("Files that the task left.", maxItems=ARTIFACT_REFS_MAX)
    ] = ()
