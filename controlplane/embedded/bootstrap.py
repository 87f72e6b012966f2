"""The bootstrap process: makes the objects that the other processes need, then waits until the system is ready.

Lives here: one pass at each start, idempotent. What a user changed stays: roles are ours and applied anew, Runtimes are
made only where they are missing. May not live here: anything that goes on afterwards. The supervisor runs `main` next,
with the administrator's kubeconfig, and hears of it through the descriptor in KRUNTIMES_REPORT_FD. When the system is
ready this process is gone.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from controlplane.config import PKI_SECRET
from controlplane.embedded import control, rbac
from controlplane.embedded.credentials import SYSTEM_NAMESPACE
from controlplane.embedded.node.hosttoken import write_gateway_token
from controlplane.embedded.readiness import NotReady, Readiness
from controlplane.kube.api import Kube
from controlplane.kube.client import KubeClient
from controlplane.kube.errors import AlreadyExists, KubeError
from controlplane.kube.resources import (
    CLUSTERROLEBINDINGS,
    CLUSTERROLES,
    NAMESPACES,
    RUNTIMES,
    SECRETS,
    SERVICEACCOUNTS,
)
from runtimes.contract import jsonlog

MANAGER: Final = "kruntimes-up"
RUNTIME_NAMESPACE: Final = "default"
RUNS_PER_POD: Final = "64"
"""A machine of one developer: one Pod a language holds as many Runs as fit into its memory."""

API_WAIT_SECONDS: Final = 30.0
API_RETRY_SECONDS: Final = 0.02

BUILT_IN_RUNTIMES: Final[Mapping[str, str]] = {
    "python": "kruntimes/python-runtime",
    "bash": "kruntimes/bash-runtime",
}
"""Runtimes that `krt up` can make, and the image of their container."""

_log = logging.getLogger(__name__)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What this process is told."""

    data_dir: Path
    kubeconfig: str
    runtimes: tuple[str, ...]
    gateway_url: str
    report_fd: int


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """One pass. 0 once the system is ready; anything else makes the supervisor try again."""
    jsonlog.setup("bootstrap")
    env = os.environ if environ is None else environ
    settings = Settings(
        data_dir=Path(env["KRUNTIMES_DATA_DIR"]),
        kubeconfig=env["KUBECONFIG"],
        runtimes=tuple(name for name in env.get("KRUNTIMES_RUNTIMES", "").split(",") if name),
        gateway_url=env["KRUNTIMES_GATEWAY_URL"],
        report_fd=int(env["KRUNTIMES_REPORT_FD"]),
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(settings))


async def _run(settings: Settings) -> int:
    with socket.socket(fileno=settings.report_fd) as channel:

        def notify(notice: control.Notice) -> None:
            channel.send(control.encode(notice))

        async with await KubeClient.connect(settings.kubeconfig, user_agent=MANAGER) as kube:
            notify(control.Progress("waiting for the API server"))
            await wait_for_api(kube)
            await make_objects(kube, settings.runtimes, settings.data_dir / "artifacts")
            await write_gateway_token(kube, settings.data_dir)
            notify(control.Prepared())
            notify(control.Progress("waiting for Runtime Pods and the gateway"))
            readiness = Readiness(
                kube,
                namespace=RUNTIME_NAMESPACE,
                runtimes=settings.runtimes,
                url=settings.gateway_url,
                ca=settings.data_dir / "pki" / "root.crt",
            )
            try:
                await readiness.wait(lambda text: notify(control.Progress(text)))
            except* NotReady as errors:
                notify(control.Failed("NotReady", f"{errors.exceptions[0]} (see {settings.data_dir}/logs)"))
            else:
                notify(control.Ready())
    return 0


async def wait_for_api(kube: KubeClient) -> None:
    """Until the API server answers. Raises KubeError after API_WAIT_SECONDS."""
    deadline = asyncio.get_running_loop().time() + API_WAIT_SECONDS
    while True:
        try:
            await kube.raw("GET", "/readyz")
            return
        except KubeError:
            if asyncio.get_running_loop().time() >= deadline:
                raise
            await asyncio.sleep(API_RETRY_SECONDS)


async def make_objects(kube: Kube, runtimes: Sequence[str], artifacts: Path) -> None:
    """Namespace, accounts, roles and Runtimes. Raises KubeError; what was made stays, and the next pass goes on."""
    await _create(kube, NAMESPACES, None, _namespace(SYSTEM_NAMESPACE))
    async with asyncio.TaskGroup() as group:
        for kind, namespace, objects in (
            (SERVICEACCOUNTS.untyped(), SYSTEM_NAMESPACE, rbac.service_accounts()),
            (CLUSTERROLES, None, rbac.roles()),
            (CLUSTERROLEBINDINGS, None, rbac.bindings()),
        ):
            for obj in objects:
                group.create_task(
                    kube.server_side_apply(kind, namespace, obj["metadata"]["name"], obj, manager=MANAGER)
                )
        # Empty: the installation's root stays in its folder, and this is where a rotation is asked for.
        group.create_task(_create(kube, SECRETS, SYSTEM_NAMESPACE, _empty_secret(PKI_SECRET)))
        for name in runtimes:
            group.create_task(_create(kube, RUNTIMES, RUNTIME_NAMESPACE, runtime(name, artifacts)))


def runtime(name: str, artifacts: Path) -> dict[str, Any]:
    """A built-in Runtime: one Pod, room for many Runs, artifacts in a folder of the data directory."""
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Runtime",
        "metadata": {"name": name, "namespace": RUNTIME_NAMESPACE},
        "spec": {
            "replicas": 1,
            "capacity": {"resources": {"runs": RUNS_PER_POD}},
            "artifactStore": {"filesystem": {"path": str(artifacts.absolute())}},
            "template": {"spec": {"containers": [{"name": "runtime", "image": BUILT_IN_RUNTIMES[name]}]}},
        },
    }


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _empty_secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}}


async def _create(kube: Kube, kind: Any, namespace: str | None, obj: dict[str, Any]) -> None:
    try:
        await kube.create(kind, namespace, obj)
    except AlreadyExists:
        _log.debug("%s %s is there", kind.kind, obj["metadata"]["name"])


if __name__ == "__main__":
    sys.exit(main())
