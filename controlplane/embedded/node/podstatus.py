"""The status of a Pod, as a pure function of its containers' lives.

Lives here: phases, conditions and container statuses as Kubernetes words them. May not live here: when it is written
(`pod` does, next).
"""

from collections.abc import Sequence
from typing import Final

from controlplane.embedded.node.lives import End, Life, State
from controlplane.kube.codec import format_time_seconds
from controlplane.kube.types import (
    Condition,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    PodIP,
    PodStatus,
)

HOST_IP: Final = "127.0.0.1"


def status_of(
    previous: PodStatus, lives: Sequence[Life], *, ip: str, now_us: int, stopping: bool, halted: bool, over: bool
) -> PodStatus:
    """What the API should say. `stopping`: the Pod or the machine goes, so it is not ready; `halted`: no container
    runs or will soon; `over`: nor ever again. Times of conditions that did not change are kept."""
    init = [life for life in lives if life.init]
    main = [life for life in lives if not life.init]
    initialized = all(life.state is State.DONE or (life.sidecar and _has_started(life)) for life in init)
    serving = [life for life in lives if not life.init or life.sidecar]
    ready = bool(ip) and not over and all(life.ready for life in serving)
    phase = _phase(main, initialized, over)
    if phase in ("Succeeded", "Failed"):
        ready = False
    ready_reason = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    waiting = ", ".join(life.container.name for life in serving if not life.ready)
    message = f"containers with unready status: [{waiting}]" if not ready and waiting else ""
    now = format_time_seconds(now_us)
    conditions = (
        _condition(previous, "PodScheduled", True, now),
        _condition(previous, "Initialized", initialized, now, "ContainersNotInitialized"),
        _condition(previous, "ContainersReady", ready, now, ready_reason, message),
        _condition(
            previous, "Ready", ready and not stopping, now, "PodStopping" if stopping else ready_reason, message
        ),
    )
    return PodStatus(
        phase=phase,
        conditions=conditions,
        pod_ip=ip,
        pod_ips=(PodIP(ip=ip),) if ip else (),
        host_ip=HOST_IP,
        start_time=previous.start_time or now,
        qos_class=previous.qos_class or "BestEffort",
        init_container_statuses=tuple(_container_status(life, halted) for life in init),
        container_statuses=tuple(_container_status(life, halted) for life in main),
    )


def _phase(main: Sequence[Life], initialized: bool, over: bool) -> str:
    if over or all(life.state is State.DONE for life in main):
        return "Succeeded" if all(life.end is not None and life.end.code == 0 for life in main) else "Failed"
    started = initialized and all(_has_started(life) for life in main)
    return "Running" if started or any(life.state is State.RUNNING for life in main) else "Pending"


def _has_started(life: Life) -> bool:
    return life.state is State.RUNNING or life.end is not None


def _container_status(life: Life, halted: bool) -> ContainerStatus:
    last: ContainerState | None = None
    if life.state is State.RUNNING:
        state = ContainerState(running=ContainerStateRunning(started_at=format_time_seconds(life.started_us)))
        last = _terminated(life.end) if life.end else None
    elif life.end is not None and (halted or life.state is State.DONE):
        state = _terminated(life.end)
    elif halted:
        state = ContainerState(terminated=ContainerStateTerminated(reason="ContainerCannotRun", exit_code=137))
    else:
        state = ContainerState(waiting=ContainerStateWaiting(reason=life.waiting_reason, message=life.waiting_message))
        last = _terminated(life.end) if life.end else None
    ran = life.state is State.RUNNING or life.end is not None
    return ContainerStatus(
        name=life.container.name,
        ready=life.ready and life.state is State.RUNNING,
        started=life.state is State.RUNNING,
        restart_count=life.run,
        image=life.container.image,
        image_id=f"builtin://{life.container.image}",
        container_id=f"process://{life.id}" if ran else "",
        state=state,
        last_state=last,
    )


def _terminated(end: End) -> ContainerState:
    return ContainerState(
        terminated=ContainerStateTerminated(
            exit_code=end.code,
            signal=end.code - 128 if end.code > 128 else None,
            reason="Completed" if end.code == 0 else "Error",
            message=end.message,
            started_at=format_time_seconds(end.started_us),
            finished_at=format_time_seconds(end.finished_us),
        )
    )


def _condition(previous: PodStatus, type_: str, true: bool, now: str, reason: str = "", message: str = "") -> Condition:
    value = "True" if true else "False"
    since = now
    for found in previous.conditions:
        if found.type == type_ and found.status == value:
            since = found.last_transition_time or now
    if true:
        reason = message = ""
    return Condition(type=type_, status=value, reason=reason, message=message, last_transition_time=since)
