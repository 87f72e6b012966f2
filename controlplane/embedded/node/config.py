"""What the node is told by its environment, checked once.

Lives here: names, defaults and a sentence per rule. May not live here: use of the values (`main` wires them, next).
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from controlplane.embedded.credentials import NODE_NAME
from controlplane.embedded.topology import container_environment


class ConfigInvalid(ValueError):
    """A variable is missing or wrong; the message names it."""


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the node needs to know."""

    data_dir: Path
    run_dir: Path
    kubeconfig: str
    spawner_fd: int
    pod_network: str
    api_port: int
    machine: dict[str, str]
    node_name: str = NODE_NAME


def validate(environ: Mapping[str, str]) -> NodeConfig:
    """The configuration. Raises ConfigInvalid."""

    def need(name: str) -> str:
        if not (value := environ.get(name, "")):
            raise ConfigInvalid(f"{name} is not set")
        return value

    def number(name: str) -> int:
        if not (value := need(name)).isdigit():
            raise ConfigInvalid(f"{name} is not a number: {value!r}")
        return int(value)

    api_port = number("KRUNTIMES_API_PORT")
    data_dir, run_dir = need("KRUNTIMES_DATA_DIR"), need("KRUNTIMES_RUN_DIR")
    return NodeConfig(
        data_dir=Path(data_dir),
        run_dir=Path(run_dir),
        kubeconfig=need("KUBECONFIG"),
        spawner_fd=number("KRUNTIMES_SPAWNER_FD"),
        pod_network=need("KRUNTIMES_POD_NETWORK"),
        api_port=api_port,
        machine=container_environment(environ)
        | {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(api_port)}
        # Tokens, keys, other Pods, and what the user keeps at home: Runtime Servers hide it from user code.
        | {"KRUNTIMES_HIDDEN": os.pathsep.join((data_dir, run_dir, str(Path.home())))}
        # Below DIR the path of a temporary folder is too long for the sockets that user code makes there.
        | {"KRUNTIMES_SHORT_DIR": run_dir},
    )
