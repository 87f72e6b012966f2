"""The probes of one Pod's containers: attached when a run starts, detached when it ends.

Lives here: which probes run, and ending a container that is not alive. May not live here: how a probe asks (`probes`),
what readiness changes (`pod`, which calls it next).
"""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from controlplane.embedded.node import probes
from controlplane.embedded.node.limits import PROBE_GRACE_DEFAULT_SECONDS
from controlplane.embedded.node.lives import Life, State
from controlplane.embedded.node.probes import Watch


class PodProbes:
    """`on_ready` hears whether a container is ready, `on_dead` why it is ended."""

    def __init__(
        self,
        *,
        volumes: Path,
        socket_volumes: Path,
        watch: Watch,
        signal: Callable[[str, signal.Signals], None],
        on_ready: Callable[[Life, bool], None],
        on_dead: Callable[[Life, str], None],
    ) -> None:
        self._volumes = volumes
        self._socket_volumes = socket_volumes
        self._watch = watch
        self._signal = signal
        self._on_ready = on_ready
        self._on_dead = on_dead
        self._closers: dict[str, list[Callable[[], None]]] = {}

    def attach(self, life: Life) -> None:
        """A run of the container has started."""
        closers = self._closers.setdefault(life.id, [])
        file = probes.ready_file(life.container, self._volumes)
        if file is not None and file.parent.is_dir():
            closers.append(probes.FileReadiness(file, self._watch, lambda ready: self._on_ready(life, ready)).close)
        elif life.probed:
            life.ready = True  # a probe that cannot be asked here counts as passed
        socket, probe = probes.alive_socket(life.container, self._socket_volumes), life.container.liveness_probe
        if socket is not None and probe is not None:
            id = life.id
            closers.append(probes.Liveness(socket, probe, lambda problem: self._end(life, id, problem)).close)

    def detach(self, life: Life) -> None:
        """The run has ended."""
        for close in self._closers.pop(life.id, ()):
            close()

    def _end(self, life: Life, id: str, problem: str) -> None:
        """SIGTERM, and SIGKILL after the probe's own grace; the restart follows from the end by itself."""
        if life.id != id or life.state is not State.RUNNING:
            return
        self._on_dead(life, problem)
        probe = life.container.liveness_probe
        grace = probe.termination_grace_period_seconds if probe is not None else None
        self._signal(id, signal.SIGTERM)
        asyncio.get_running_loop().call_later(
            PROBE_GRACE_DEFAULT_SECONDS if grace is None else grace, self._signal, id, signal.SIGKILL
        )
