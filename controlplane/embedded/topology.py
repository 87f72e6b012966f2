"""Which processes make up the system on one machine, with which environment, and in which order they stop.

Lives here: the table of processes and what each is told. May not live here: starting them (`supervisor` does, next).
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from controlplane.embedded.datadir import Config

API_SERVER: Final = "apiserver"
BOOTSTRAP: Final = "bootstrap"
NODE: Final = "node"
CONTROL_PLANE: Final = "controlplane"
GATEWAY: Final = "gateway"

TARGETS: Final[Mapping[str, str]] = {
    API_SERVER: "controlplane.embedded.apiserver.main",
    BOOTSTRAP: "controlplane.embedded.bootstrap",
    NODE: "controlplane.embedded.node.main",
    CONTROL_PLANE: "controlplane.main",
    GATEWAY: "dataplane.gateway.main",
}

CONTAINER_TARGETS: Final = ("dataplane.runtimed.main", "runtimes.server.main")
"""What the node asks to be spawned."""

WARM_MODULES: Final = (*CONTAINER_TARGETS, "runtimes.contract.client", "encodings.idna", "stringprep")
"""What the supervisor imports before it forks anything, beside the targets of its own table."""

GATEWAY_STOP_SECONDS: Final = 310.0
"""A gateway that stops lets calls in flight finish, and a call may last 300 s."""

STOP_SECONDS: Final = 10.0
"""For a process that has nothing to drain."""

CONTAINERS_STOP_SECONDS: Final = 10.0
"""For all containers together, once the gateway is gone: no call from outside is in flight any more."""

PASSED_VARIABLES: Final = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR", "HOME")
"""Of the variables of `krt up`, what its processes see. Containers see PATH and TZ alone."""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the system. `after_prepared`: it starts once the bootstrap process has made its objects."""

    name: str
    target: str
    env: dict[str, str]
    stop_seconds: float = STOP_SECONDS
    after_prepared: bool = True


def processes(
    path: Path, config: Config, runtimes: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[ProcessSpec, ...]:
    """All processes, in the order in which they stop (the first goes first)."""
    base = {name: environ[name] for name in PASSED_VARIABLES if name in environ}
    signer_url = f"https://127.0.0.1:{config.signer_port}"
    gateway_url = gateway_base_url(config)
    common = base | {"KRUNTIMES_DATA_DIR": str(path), "KRUNTIMES_PKI_DIR": str(path / "pki")}

    def identity(name: str) -> dict[str, str]:
        return {"KUBECONFIG": str(process_kubeconfig(path, name))}

    return (
        ProcessSpec(
            name=GATEWAY,
            target=TARGETS[GATEWAY],
            env=base
            | identity(GATEWAY)
            | {
                "KRUNTIMES_GATEWAY_BIND": f"127.0.0.1:{config.gateway_port}",
                "KRUNTIMES_GATEWAY_HOSTS": "localhost,127.0.0.1",
                "KRUNTIMES_SIGNER_URL": signer_url,
                "KRUNTIMES_CA_FILE": str(path / "pki" / "root.crt"),
                "KRUNTIMES_TOKEN_FILE": str(process_token(path, GATEWAY)),
            },
            stop_seconds=GATEWAY_STOP_SECONDS,
        ),
        ProcessSpec(
            name=CONTROL_PLANE,
            target=TARGETS[CONTROL_PLANE],
            env=base
            | identity(CONTROL_PLANE)
            | {
                "KRUNTIMES_JOURNAL_DIR": str(path / "journal" / "controlplane"),
                "KRUNTIMES_SOURCE_CACHE": str(path / "cache" / "sources"),
                "KRUNTIMES_PKI_DIR": str(path / "pki"),
                "KRUNTIMES_SIGNER_BIND": f"127.0.0.1:{config.signer_port}",
                "KRUNTIMES_SIGNER_URL": signer_url,
                "KRUNTIMES_GATEWAY_URL": gateway_url,
            },
        ),
        ProcessSpec(
            name=NODE,
            target=TARGETS[NODE],
            env=common
            | identity(NODE)
            | {
                "KRUNTIMES_GATEWAY_URL": gateway_url,
                "KRUNTIMES_SIGNER_URL": signer_url,
                "KRUNTIMES_RUN_DIR": config.run_dir,
                "KRUNTIMES_POD_NETWORK": config.pod_network,
                "KRUNTIMES_API_PORT": str(config.api_port),
            },
            stop_seconds=CONTAINERS_STOP_SECONDS + STOP_SECONDS,
        ),
        ProcessSpec(
            name=BOOTSTRAP,
            target=TARGETS[BOOTSTRAP],
            env=common
            | {
                "KUBECONFIG": str(path / "kubeconfig"),
                "KRUNTIMES_RUNTIMES": ",".join(runtimes),
                "KRUNTIMES_GATEWAY_URL": gateway_url,
            },
            stop_seconds=0.0,
            after_prepared=False,
        ),
        ProcessSpec(
            name=API_SERVER,
            target=TARGETS[API_SERVER],
            env=common | {"KRUNTIMES_API_BIND": f"127.0.0.1:{config.api_port}"},
            after_prepared=False,
        ),
    )


def version() -> str:
    """Of the installed distribution."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        return of("kruntimes")
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "0+checkout"


def gateway_base_url(config: Config) -> str:
    """What callers of this machine use, and what `status.endpoint.url` starts with."""
    return f"https://127.0.0.1:{config.gateway_port}"


def api_url(config: Config) -> str:
    """The embedded API server."""
    return f"https://127.0.0.1:{config.api_port}"


def process_kubeconfig(path: Path, name: str) -> Path:
    """The kubeconfig with which process `name` reaches the API: its own identity and no other's."""
    return path / "tokens" / f"{name}.kubeconfig"


def process_token(path: Path, name: str) -> Path:
    """The file with the token that process `name` shows to the signer: of audience `kruntimes`, short-lived."""
    return path / "tokens" / f"{name}.token"


def container_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a container sees of the machine's environment: nothing that a function should not read.

    The virtual environment that kruntimes itself is installed in is taken out of PATH: user code runs with the
    machine's Python, never with ours and its packages."""
    ours = str(Path(sys.prefix) / "bin") if sys.prefix != sys.base_prefix else None
    path = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part and part != ours]
    if shutil.which("python3", path=os.pathsep.join(path)) is None:
        path.append(str(Path(sys.base_prefix) / "bin"))
    return {"PATH": os.pathsep.join(path)} | {name: environ[name] for name in ("TZ",) if name in environ}
