"""The status of a Runtime as its Pods and Runs make it. Pure.

`controller` writes it, at most once a second and only when it differs from what the API shows.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from controlplane.kube.codec import format_time, parse_time_us
from controlplane.kube.types import ConditionObject, Pod, RuntimeObject
from controlplane.runtimecontroller.template import RUNTIME_LABEL
from statemachine.text import cut_bytes

MESSAGE_MAX_BYTES: Final = 1024  # the CRD's bound of a condition's message
RUNS: Final = "runs"


class RuntimeReason(StrEnum):
    """Why a Runtime is Available or not; also the reasons of its Events."""

    PODS_READY = "PodsReady"
    SCALED_TO_ZERO = "ScaledToZero"
    NO_POD_READY = "NoPodReady"
    TEMPLATE_INVALID = "TemplateInvalid"
    APPLY_FAILED = "ApplyFailed"
    APPLIED = "Applied"
    POD_REPLACED = "PodReplaced"


class Trouble(msgspec.Struct, frozen=True):
    """What keeps the Runtime's objects from being applied."""

    reason: RuntimeReason
    message: str


def wanted_status(
    runtime: RuntimeObject,
    pods: Iterable[Pod],
    totals: tuple[Mapping[str, int], Mapping[str, int]],
    trouble: Trouble | None,
    now_us: int,
) -> dict[str, Any]:
    """`status` as it should be, in the API's form. Equal to what is there when nothing has changed."""
    living = [pod for pod in pods if not pod.finished]
    ready = sum(pod.ready for pod in living)
    total, used = totals
    return {
        "replicas": len(living),
        "readyReplicas": ready,
        "selector": f"{RUNTIME_LABEL}={runtime.metadata.name}",
        "conditions": [_available(runtime, ready, trouble, now_us)],
        "capacity": {
            "total": dict(total),
            "used": dict(used),
            "runs": f"{used.get(RUNS, 0)}/{total.get(RUNS, 0)}",
        },
    }


def shown_status(runtime: RuntimeObject) -> dict[str, Any]:
    """`status` as the API shows it, in the same form."""
    status = runtime.status
    capacity = status.capacity
    return {
        "replicas": status.replicas,
        "readyReplicas": status.ready_replicas,
        "selector": status.selector,
        "conditions": [_condition(condition) for condition in status.conditions],
        "capacity": None
        if capacity is None
        else {"total": dict(capacity.total), "used": dict(capacity.used), "runs": capacity.runs},
    }


def _available(runtime: RuntimeObject, ready: int, trouble: Trouble | None, now_us: int) -> dict[str, str]:
    reason, message = _judgement(runtime, ready, trouble)
    status = "True" if ready > 0 else "False"
    known = next((c for c in runtime.status.conditions if c.type == "Available"), None)
    since_us = now_us
    if known is not None and known.status == status and known.last_transition_time is not None:
        since_us = parse_time_us(known.last_transition_time)
    return {
        "type": "Available",
        "status": status,
        "reason": reason.value,
        "message": cut_bytes(message, MESSAGE_MAX_BYTES),
        "lastTransitionTime": format_time(since_us),
    }


def _judgement(runtime: RuntimeObject, ready: int, trouble: Trouble | None) -> tuple[RuntimeReason, str]:
    if trouble is not None:
        return trouble.reason, trouble.message
    if ready:
        return RuntimeReason.PODS_READY, f"{ready} of {runtime.spec.replicas} Pods are ready"
    if runtime.spec.replicas == 0:
        return RuntimeReason.SCALED_TO_ZERO, "spec.replicas is 0"
    return RuntimeReason.NO_POD_READY, f"none of {runtime.spec.replicas} Pods is ready"


def _condition(condition: ConditionObject) -> dict[str, str]:
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": condition.last_transition_time or "",
    }
