"""What every Pod on this node is given: the API, the spawner, clocks, addresses and folders.

Lives here: one struct. May not live here: behaviour. `main` fills it, `pod` reads it next.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.embedded.node.addresses import AddressPool
from controlplane.embedded.node.probes import Watch
from controlplane.embedded.node.spawner import Spawner
from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.types import Pod

Note = Callable[[Pod, str, str, str], None]
"""Records an Event about a Pod: (pod, type, reason, message). Never blocks."""


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """`machine` is what each container gets of this machine's environment; `run_dir` a short path for sockets."""

    kube: Kube
    spawner: Spawner
    clock: Clock
    addresses: AddressPool
    watch: Watch
    note: Note
    node_name: str
    data_dir: Path
    run_dir: Path
    machine: Mapping[str, str]
