"""The life of one container: runs that follow each other, with their backoff, as plain data and small transitions.

Lives here: what happened to a container and when it may run again. May not live here: starting it (`pod`), or how a
status says it (`podstatus`). Times are Unix microseconds (`_us`) and monotonic seconds (`_at`), both given.
"""

from enum import StrEnum

import msgspec

from controlplane.embedded.node.limits import (
    RESTART_FIRST_SECONDS,
    RESTART_MAX_SECONDS,
    RESTART_RESET_SECONDS,
)
from controlplane.kube.types import Container, ContainerStatus, Pod

KILLED_CODE = 137
"""What a shell says of a process that SIGKILL ended; also of one whose end nobody saw."""


class State(StrEnum):
    """WAITING: no process; STARTING: asked for; RUNNING; ENDED: may run again by its restart policy; DONE: not."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    DONE = "done"


class End(msgspec.Struct, frozen=True):
    """How one run ended."""

    code: int
    started_us: int
    finished_us: int
    message: str = ""


class Life:
    """One container of a Pod. `run` counts its runs from 0 and is its restartCount."""

    def __init__(self, pod: Pod, container: Container, *, sidecar: bool, init: bool) -> None:
        self.container = container
        self.sidecar = sidecar
        self.init = init
        self.policy = "Always" if sidecar else ("OnFailure" if init else pod.spec.restart_policy)
        self.state = State.WAITING
        self.run = 0
        self.pid = 0
        self.started_us = 0
        self.end: End | None = None  # of the run before, or of this one once it ended
        self.ready = False
        self.waiting_reason = "ContainerCreating"
        self.waiting_message = ""
        self.next_start_at = 0.0
        self._failures = 0
        self._pod_uid = pod.metadata.uid

    @property
    def id(self) -> str:
        """The spawn id of the current run: Pod UID, container, run."""
        return f"{self._pod_uid}/{self.container.name}/{self.run}"

    @property
    def lives(self) -> bool:
        """There is, or is about to be, a process."""
        return self.state in (State.STARTING, State.RUNNING)

    @property
    def probed(self) -> bool:
        """Readiness is a probe's word, not that of running alone."""
        return self.container.readiness_probe is not None

    def due(self, now_at: float) -> bool:
        """It should be started now."""
        return self.state in (State.WAITING, State.ENDED) and self.next_start_at <= now_at

    def starting(self) -> None:
        """A process was asked for; after an end this is the next run."""
        if self.state is State.ENDED:
            self.run += 1
        self.state = State.STARTING

    def started(self, pid: int, at_us: int) -> None:
        """The process lives."""
        self.state = State.RUNNING
        self.pid = pid
        self.started_us = at_us
        self.ready = not self.probed
        self.waiting_message = ""

    def refused(self, reason: str, message: str, now_at: float) -> None:
        """It could not be started; the run does not count, the backoff does."""
        self.state = State.WAITING if self.end is None else State.ENDED
        if self.end is not None:
            self.run = max(0, self.run - 1)
        self.waiting_reason, self.waiting_message = reason, message
        self._back_off(now_at)

    def ended(self, end: End, now_at: float) -> None:
        """The process is gone, and with it everything that it left behind."""
        self.end = end
        self.pid = 0
        self.ready = False
        again = self.policy == "Always" or (self.policy == "OnFailure" and end.code != 0)
        self.state = State.ENDED if again else State.DONE
        if end.finished_us - end.started_us >= RESTART_RESET_SECONDS * 1_000_000:
            self._failures = 0
        self.waiting_reason = "CrashLoopBackOff"
        self._back_off(now_at)

    def restart_at_once(self) -> None:
        """The end was not the container's doing: no backoff."""
        self._failures = 0
        self.next_start_at = 0.0

    def restore(self, status: ContainerStatus, now_us: int) -> None:
        """Take up what an earlier node wrote, if the container had run: that run is over unless it is adopted."""
        if not status.container_id:
            return
        self.run = status.restart_count
        started, finished, code = now_us, now_us, KILLED_CODE
        state = status.state
        if state is not None and state.terminated is not None:
            code = state.terminated.exit_code
        message = "" if state is not None and state.terminated is not None else "it ended with the machine's processes"
        self.end = End(code, started, finished, message)
        again = self.policy == "Always" or (self.policy == "OnFailure" and code != 0)
        self.state = State.ENDED if again else State.DONE
        self.waiting_reason = "ContainerCreating"

    def adopt(self, run: int, pid: int, at_us: int) -> None:
        """A process of an earlier node still runs."""
        self.run = run
        self.started(pid, at_us)

    def _back_off(self, now_at: float) -> None:
        delay = min(RESTART_MAX_SECONDS, RESTART_FIRST_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self.next_start_at = now_at + delay


def lives_of(pod: Pod) -> list[Life]:
    """All containers of a Pod in the order in which they start: init containers (and sidecars), then the others."""
    return [
        Life(pod, container, sidecar=container.restart_policy == "Always", init=True)
        for container in pod.spec.init_containers
    ] + [Life(pod, container, sidecar=False, init=False) for container in pod.spec.containers]


def may_start(lives: list[Life], index: int) -> bool:
    """Everything before it has come far enough: an init container succeeded, a sidecar has started once."""
    if index == 0:
        return True
    return all(_has_come_far_enough(before) for before in lives[:index] if before.init)


def _has_come_far_enough(life: Life) -> bool:
    if life.sidecar:
        return life.state is State.RUNNING or life.end is not None
    return life.state is State.DONE
