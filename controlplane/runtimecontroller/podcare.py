"""Deletes a Runtime's Pod of which a container has been down for a minute, so that a healthy one takes its place.

A container is down when it has run and does not: its restarts do not help, and its Runs would wait for it for ever.
One that never ran (its image is missing) is left alone: another Pod would fare the same. The Vigil counts the minute.
"""

import logging
from collections.abc import Iterable
from typing import Final

from controlplane.kube.api import Kube
from controlplane.kube.errors import Conflict, KubeError, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.resources import PODS
from controlplane.kube.types import ContainerStatus, Pod
from controlplane.performer import Recorder
from controlplane.runtimecontroller.status import RuntimeReason
from controlplane.tasks import Tasks
from controlplane.timers import Vigil

DOWN_MAX_MS: Final = 60_000  # spec, L13
DELETE_AGAIN_MS: Final = 5_000  # after the API gave no answer

_log = logging.getLogger(__name__)


class PodCare:
    """Follows the containers of the Runtimes' Pods."""

    def __init__(self, *, kube: Kube, vigil: Vigil, tasks: Tasks, recorder: Recorder) -> None:
        self._kube = kube
        self._vigil = vigil
        self._tasks = tasks
        self._recorder = recorder
        self._watched: dict[str, set[str]] = {}

    def pod_changed(self, change: Change[Pod]) -> None:
        """A Pod of any Runtime appeared, changed or went."""
        pod = change.current or change.previous
        assert pod is not None
        cared_for = change.current is not None and not pod.metadata.deleting and not pod.finished
        down = set(down_containers(pod)) if cared_for else set()
        uid = pod.metadata.uid
        before = self._watched.get(uid, set())
        for name in before - down:
            self._vigil.drop(("down", uid, name))
        for name in down - before:
            self._watch(pod, name, DOWN_MAX_MS)
        if down:
            self._watched[uid] = down
        else:
            self._watched.pop(uid, None)

    def _watch(self, pod: Pod, name: str, after_ms: int) -> None:
        key = ("down", pod.metadata.uid, name)
        self._vigil.watch(key, after_ms, lambda: _ignore(self._tasks.spawn(self._replace(pod, name))))

    async def _replace(self, pod: Pod, name: str) -> None:
        metadata = pod.metadata
        try:
            await self._kube.delete(PODS, metadata.namespace, metadata.name, uid=metadata.uid)
        except (NotFound, Conflict):
            return
        except KubeError as error:
            _log.warning("cannot delete Pod %s: %s", metadata.name, error, extra={"code": error.status.code})
            if name in self._watched.get(metadata.uid, ()):
                self._watch(pod, name, DELETE_AGAIN_MS)
            return
        message = f"Container {name} has been down for {DOWN_MAX_MS // 1000} s; the Pod is replaced"
        _log.warning("deleted Pod %s: %s", metadata.name, message)
        self._recorder.emit(pod, "Warning", RuntimeReason.POD_REPLACED.value, message)


def down_containers(pod: Pod) -> Iterable[str]:
    """The containers that should run for as long as the Pod does, have run, and do not."""
    sidecars = {container.name for container in pod.spec.init_containers if container.restart_policy == "Always"}
    for status in pod.status.container_statuses:
        if _down(status):
            yield status.name
    for status in pod.status.init_container_statuses:
        if status.name in sidecars and _down(status):
            yield status.name


def _down(status: ContainerStatus) -> bool:
    state = status.state
    if state is not None and state.running is not None:
        return False
    ended = state is not None and state.terminated is not None
    return ended or status.restart_count > 0 or status.last_state is not None


def _ignore(_: object) -> None:
    """The task reports for itself."""
