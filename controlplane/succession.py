"""Whether this control plane is about to be replaced: its Deployment asks for other Pods than this one.

An upgrade changes the control plane and, in the same moment, Runtimes. If the leader of before still applied them,
every Runtime's Pods would be rolled once for it and once more for its successor, whose templates are others. So it
leaves them to the successor. `runtimecontroller` asks before it changes a Deployment that is there.
"""

import logging
from typing import Final

import msgspec

from controlplane.kube.api import Kube
from controlplane.kube.errors import KubeError
from controlplane.kube.resources import DEPLOYMENTS, PODS
from controlplane.kube.types import Container, Pod, PodTemplate

NAME: Final = "kruntimes-controlplane"

_log = logging.getLogger(__name__)


class Succession:
    """For the Pod of that name in the Deployment `kruntimes-controlplane` of its namespace."""

    def __init__(self, kube: Kube, *, namespace: str, pod: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = pod
        self._pod: Pod | None = None

    async def awaited(self) -> bool:
        """Ask the API. Who gets no answer goes on as before."""
        try:
            if self._pod is None:
                self._pod = await self._kube.get(PODS, self._namespace, self._name)
            deployment = await self._kube.get(DEPLOYMENTS, self._namespace, NAME)
        except KubeError as error:
            _log.warning("cannot tell whether a successor is to come: %s", error)
            return False
        return not made_from(self._pod, deployment.spec.template)


async def no_successor() -> bool:
    """For an installation whose control plane is never replaced while it runs."""
    return False


def made_from(pod: Pod, template: PodTemplate) -> bool:
    """Whether a Pod is what a template asks for, in all that a program can tell of itself."""
    wanted = msgspec.convert(template.spec.get("containers") or (), tuple[Container, ...])
    there = {container.name: _program(container) for container in pod.spec.containers}
    return (
        template.metadata.annotations.items() <= pod.metadata.annotations.items()
        and template.metadata.labels.items() <= pod.metadata.labels.items()
        and {container.name: _program(container) for container in wanted} == there
    )


def _program(container: Container) -> tuple[object, ...]:
    return container.image, container.command, container.args, container.env
