"""How many Pods each ReplicaSet of a Deployment should have: the rolling update as a pure function.

Lives here: decisions. May not live here: API calls (`deployments` performs what is decided here, next).
The rule is Kubernetes' own: never more than desired + maxSurge Pods, never fewer than desired - maxUnavailable
available ones; Pods that are not available go first.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from controlplane.kube.types import Condition, Deployment, DeploymentStatus, PodTemplate, ReplicaSet

HASH_LABEL = "pod-template-hash"
REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
HASH_CHARS = 10


def template_hash(template: PodTemplate) -> str:
    """A name for this template: the same for equal ones, another for any difference."""
    content = msgspec.json.encode(msgspec.to_builtins(template), order="sorted")
    number = int.from_bytes(hashlib.sha256(content).digest()[:8], "big")
    chars = []
    for _ in range(HASH_CHARS):
        number, index = divmod(number, len(_ALPHABET))
        chars.append(_ALPHABET[index])
    return "".join(chars)


def scales(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> tuple[int, dict[str, int]]:
    """The replicas that the new ReplicaSet should have (also before it exists), and those of old ones that change."""
    desired = wanted(deployment)
    surge, unavailable = bounds(deployment)
    total_old = sum(wanted(rs) for rs in old)
    new_wanted = wanted(new) if new is not None else 0
    if deployment.spec.strategy.get("type") == "Recreate":
        gone = all(rs.status.replicas == 0 for rs in old)
        return (desired if gone else new_wanted), {rs.metadata.name: 0 for rs in old if wanted(rs)}
    if new_wanted >= desired:
        target = desired
    else:
        target = min(desired, new_wanted + max(0, desired + surge - total_old - new_wanted))
    return target, _scale_down(desired, unavailable, target, new, old)


def _scale_down(
    desired: int, unavailable: int, target: int, new: ReplicaSet | None, old: Sequence[ReplicaSet]
) -> dict[str, int]:
    available_new = new.status.available_replicas if new is not None else 0
    available = sum(min(wanted(rs), rs.status.available_replicas) for rs in old) + min(target, available_new)
    minimum = desired - unavailable
    may_go = max(0, sum(wanted(rs) for rs in old) + target - minimum - (target - min(target, available_new)))
    changes: dict[str, int] = {}
    for rs in sorted(old, key=_age):  # what is not available serves nobody: it goes first, oldest template first
        dead = max(0, min(wanted(rs) - rs.status.available_replicas, may_go))
        if dead:
            changes[rs.metadata.name] = wanted(rs) - dead
            may_go -= dead
    spare = max(0, available - minimum)
    for rs in sorted(old, key=_age):
        left = changes.get(rs.metadata.name, wanted(rs))
        step = min(left, spare, may_go)
        if step > 0:
            changes[rs.metadata.name] = left - step
            spare -= step
            may_go -= step
    return changes


def status(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], now: str) -> DeploymentStatus:
    """What `kubectl rollout status` and the Available condition are read from. `now` dates a change of a condition."""
    sets = [*([new] if new is not None else []), *old]
    desired = wanted(deployment)
    replicas = sum(rs.status.replicas for rs in sets)
    available = sum(rs.status.available_replicas for rs in sets)
    updated = new.status.replicas if new is not None else 0
    enough = available >= desired - bounds(deployment)[1]
    done = updated == desired == replicas and available >= desired and new is not None
    conditions = (
        _condition(
            deployment, "Available", enough,
            "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable", now,
        ),
        _condition(deployment, "Progressing", True, "NewReplicaSetAvailable" if done else "ReplicaSetUpdated", now),
    )  # fmt: skip
    return DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=replicas,
        updated_replicas=updated,
        ready_replicas=sum(rs.status.ready_replicas for rs in sets),
        available_replicas=available,
        unavailable_replicas=max(0, desired - available),
        conditions=conditions,
    )


def wanted(obj: Deployment | ReplicaSet) -> int:
    """spec.replicas with its default."""
    return 1 if obj.spec.replicas is None else obj.spec.replicas


def bounds(deployment: Deployment) -> tuple[int, int]:
    """(maxSurge, maxUnavailable) as Pods; both 0 would never move, so one may then be unavailable."""
    rolling: dict[str, Any] = deployment.spec.strategy.get("rollingUpdate") or {}
    desired = wanted(deployment)
    surge = _pods(rolling.get("maxSurge", "25%"), desired, up=True)
    unavailable = _pods(rolling.get("maxUnavailable", "25%"), desired, up=False)
    return surge, max(unavailable, 0 if surge else 1)


def _pods(value: int | str, desired: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    if value.endswith("%") and value[:-1].isdigit():
        share = desired * int(value[:-1]) / 100
        return math.ceil(share) if up else math.floor(share)
    return int(value) if value.isdigit() else 0


def _age(rs: ReplicaSet) -> tuple[str, str]:
    return rs.metadata.creation_timestamp or "", rs.metadata.name


def _condition(deployment: Deployment, type_: str, true: bool, reason: str, now: str) -> Condition:
    value = "True" if true else "False"
    for found in deployment.status.conditions:
        if found.type == type_ and found.status == value:
            return Condition(
                type=type_, status=value, reason=reason, last_transition_time=found.last_transition_time or now
            )
    return Condition(type=type_, status=value, reason=reason, last_transition_time=now)
