"""What a worker needs of the world around it, as Protocols and one Struct: simulations and tests give their own.

Shapes only. `daemon.py` is the `Pod`; `worker.py` and `jobs.py` use them.
"""

import random
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from controlplane.kube.clock import Clock
from controlplane.kube.types import RunObject
from dataplane.runtimed.alarms import CallLater
from dataplane.runtimed.artifacts import Artifacts
from dataplane.runtimed.decide import Host
from dataplane.runtimed.preparation import Preparation
from dataplane.runtimed.server_link import ServerLink
from dataplane.runtimed.slots import Room
from dataplane.runtimed.view import Journal, View
from dataplane.runtimed.workdir import WorkDir
from dataplane.runtimed.writes import Writes
from statemachine.run import RunUID


class Recorder(Protocol):
    """`controlplane.kube.events.EventRecorder`: queued, never awaited, never failing."""

    def emit(self, about: RunObject, type_: str, reason: str, message: str) -> None: ...


class Pod(Protocol):
    """What a worker needs of the daemon around it."""

    def host(self) -> Host:
        """How the Pod is now."""
        ...

    def room(self, uid: RunUID, requests: tuple[tuple[str, int], ...]) -> Room:
        """Whether a claim of this Run fits beside the other Runs."""
        ...

    def shown(self, view: View) -> None:
        """The API shows something new of this Run."""
        ...

    def slot_freed(self) -> None:
        """An epoch has left: claims that wait may fit now."""
        ...


class Tools(Struct, frozen=True):
    """What all workers of a Pod share."""

    clock: Clock
    call_later: CallLater
    link: ServerLink
    writes: Writes
    preparation: Preparation
    workdir: WorkDir
    artifacts: Artifacts
    journal: Journal
    recorder: Recorder
    endpoint_url: Callable[[str], str | None]
    rng: random.Random
