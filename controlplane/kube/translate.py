"""From objects of the API to what the lifecycle understands: `Run`s and events. Pure.

A watch is a hint: only what an object shows now counts, never how many lines brought it there. The shells of the
control plane and of runtimed call `translate` for each change and feed the events to `statemachine.step`.
"""

from collections.abc import Iterable
from typing import Final

from controlplane.kube.codec import parse_duration_ms, parse_time_us, whole_quantity
from controlplane.kube.meta import Condition as ConditionObject
from controlplane.kube.types_kruntimes import RunObject, RunSpecObject, RunStatusObject
from statemachine.events import CancelRequested, DeletionRequested, Event, Observed, Removed
from statemachine.reasons import Reason
from statemachine.run import (
    ENDED,
    ArtifactRef,
    Condition,
    Mode,
    Phase,
    PodUID,
    Release,
    Run,
    RunSpec,
    RunUID,
    Status,
    Target,
    TaskResult,
)

FINALIZER: Final = "kruntimes.io/cleanup"


def translate(previous: RunObject | None, current: RunObject | None, at_us: int) -> tuple[Event, ...]:
    """What a change of one object means: `Observed` first, then what the object asks for and does not have yet.

    `current` None: the object is gone. An object that asks for deletion and cancellation asks for deletion.
    """
    if current is None:
        version = previous.metadata.resource_version if previous is not None else ""
        return (Removed(at_us=at_us, resource_version=version),)
    run = run_from_object(current)
    observed = Observed(at_us=at_us, run=run, resource_version=current.metadata.resource_version)
    request = _request(run, at_us)
    return (observed,) if request is None else (observed, request)


def _request(run: Run, at_us: int) -> Event | None:
    if run.phase is Phase.RELEASING and run.status.pod_uid is not None:
        return None  # its owner is at it, and reads what is asked for when it is done
    if run.deleting:
        return DeletionRequested(at_us=at_us)
    if run.cancel_requested and run.phase not in ENDED and run.phase is not Phase.RELEASING:
        return CancelRequested(at_us=at_us)
    return None


def run_from_object(obj: RunObject) -> Run:
    """The lifecycle's view of an object. What the API would refuse (unknown reason, broken time) reads as absent."""
    metadata = obj.metadata
    return Run(
        uid=RunUID(metadata.uid),
        namespace=metadata.namespace,
        name=metadata.name,
        spec=_spec(obj.spec),
        status=_status(obj.status),
        cancel_requested=obj.spec.cancel_requested,
        deleting=metadata.deletion_timestamp is not None,
        finalizer=FINALIZER in metadata.finalizers,
        foreign_finalizer=any(name != FINALIZER for name in metadata.finalizers),
        created_us=_time(metadata.creation_timestamp) or 0,
    )


def _spec(spec: RunSpecObject) -> RunSpec:
    function = spec.mode.function
    return RunSpec(
        runtime=spec.runtime,
        mode=Mode.TASK if function is None else Mode.FUNCTION,
        handler=None if function is None else function.handler,
        requests=tuple(sorted((name, _count(value)) for name, value in spec.resources.requests.items())),
        concurrency=1 if function is None else function.concurrency,
        idle_timeout_ms=None if function is None else _seconds(function.idle_timeout_seconds),
        lifetime_ms=_duration(spec.timeout),
        ttl_ms=_seconds(spec.ttl_seconds_after_finished),
        max_attempts=spec.retry_policy.max_attempts,
        backoff_ms=_duration(spec.retry_policy.backoff) or 1000,
        retryable_reasons=spec.retry_policy.retryable_reasons,
    )


def _status(status: RunStatusObject) -> Status:
    return Status(
        phase=Phase(status.phase),
        reason=status.reason,
        message=status.message,
        attempt=status.attempt,
        failures=status.failures,
        pod_name=status.assigned_pod,
        pod_uid=None if status.assigned_pod_uid is None else PodUID(status.assigned_pod_uid),
        endpoint_url=None if status.endpoint is None else status.endpoint.url,
        scheduled=_condition(status.conditions, "Scheduled"),
        ready=_condition(status.conditions, "Ready"),
        start_us=_time(status.start_time),
        ready_us=_time(status.ready_time),
        completion_us=_time(status.completion_time),
        next_attempt_us=_time(status.next_attempt_time),
        release=_release(status),
        result=TaskResult(
            exit_code=status.exit_code,
            outputs=tuple(status.outputs.items()),
            artifact_refs=tuple(ArtifactRef(r.name, r.uri, r.size_bytes, r.digest) for r in status.artifact_refs),
        ),
    )


def _condition(conditions: Iterable[ConditionObject], name: str) -> Condition | None:
    for condition in conditions:
        if condition.type == name:
            reason = _reason(condition.reason)
            if reason is None:
                return None
            since_us = _time(condition.last_transition_time) or 0
            return Condition(condition.status == "True", reason, condition.message, since_us)
    return None


def _release(status: RunStatusObject) -> Release | None:
    if status.release is None:
        return None
    target = Target(status.release.target)
    default = {
        Target.GONE: Reason.DELETED,
        Target.CANCELLED: Reason.CANCELLED,
        Target.TIMEOUT: Reason.LIFETIME_EXCEEDED,
    }
    return Release(target, _reason(status.release.reason) or default[target])


def _reason(text: str) -> Reason | None:
    try:
        return Reason(text)
    except ValueError:
        return None


def _time(text: str | None) -> int | None:
    try:
        return None if text is None else parse_time_us(text)
    except ValueError:
        return None


def _duration(text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration_ms(text)
    except ValueError:
        return None


def _seconds(value: int | None) -> int | None:
    return None if value is None else value * 1000


def _count(value: int | str) -> int:
    """A request for a broken quantity never fits: it must not read as one for nothing."""
    try:
        return whole_quantity(value)
    except ValueError:
        return 2**63 - 1
