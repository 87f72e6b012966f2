"""What `krt status` shows: the supervisor's state file, compared with what processes, API and gateway say.

Lives here: looking. May not live here: printing (`up` does, next).
"""

import asyncio
import json
import platform
import resource
import ssl
import urllib.request
from pathlib import Path
from typing import Any, Final

from controlplane.embedded import processes
from controlplane.embedded.control import ProcessState, SystemState
from controlplane.kube.codec import format_time_seconds
from runtimes.contract.client import RuntimeClient
from runtimes.contract.messages import Isolation
from runtimes.contract.mux import CallError, ConnectionLost, Refused

ASK_TIMEOUT_SECONDS: Final = 3.0

SANDBOX: Final = (
    "the kernel (Landlock) refuses a function the files, memory and environment of other functions, of kruntimes, and "
    "your home; functions share this machine's kernel, network and /tmp: run only code you would give an account here"
)
PROCESS: Final = (
    "functions of one Pod trust each other: this kernel has no Landlock, or refuses it; they have processes, "
    "environment and folders of their own, and read what this user can read, also each other's: run only code you trust"
)
SIGNALS: Final = "; this kernel lets them signal each other's processes"
SIGNALS_SCOPED_FROM_ABI: Final = 6
UNKNOWN: Final = "no Runtime Server answers: nothing is known, and nothing runs"


def describe(path: Path, state: SystemState) -> dict[str, Any]:
    """Everything, as plain data. What does not answer is said to be unhealthy, never raised."""
    token = _text(path / "tokens" / "admin")
    api, gateway = f"https://127.0.0.1:{state.api_port}", f"https://127.0.0.1:{state.gateway_port}"
    ca = path / "pki" / "root.crt"
    healthy = {
        "apiserver": _ask(f"{api}/readyz", ca, token) is not None,
        "gateway": _ask(f"{gateway}/readyz", ca) is not None,
    }
    pods = {pod["metadata"]["uid"]: pod for pod in _pods(api, ca, token)}
    rows = [_row(process, healthy, pods) for process in (state.parent, state.supervisor, *state.processes)]
    good = state.ready and all(row["health"] in ("ok", "") for row in rows)
    return {
        "dataDir": str(path),
        "kubeconfig": str(path / "kubeconfig"),
        "api": api,
        "gateway": gateway,
        "ports": {"api": state.api_port, "gateway": state.gateway_port},
        "version": state.version,
        "versions": {
            "kruntimes": state.version,
            "kubernetes": _kubernetes_version(api, ca, token),
            "python": platform.python_version(),
        },
        "ready": state.ready,
        "health": "ok" if good else ("degraded" if state.ready else "starting"),
        "isolation": isolation(asyncio.run(_said_by(_sockets(path)))),
        "processes": rows,
    }


def isolation(said: list[Isolation]) -> dict[str, Any]:
    """How strongly functions are kept apart here: as the weakest of the Runtime Servers says."""
    if not said:
        return {"level": "unknown", "message": UNKNOWN}
    weakest = min(said, key=lambda one: one.landlock_abi)
    if weakest.level == "process":
        return {"level": "process", "message": PROCESS}
    message = SANDBOX if weakest.landlock_abi >= SIGNALS_SCOPED_FROM_ABI else SANDBOX + SIGNALS
    return {"level": "sandbox", "message": message, "landlock": weakest.landlock_abi}


def _sockets(path: Path) -> list[Path]:
    config = _text(path / "config.json")
    run_dir = json.loads(config).get("runDir", "") if config else ""
    return list(Path(run_dir).glob("*/*/runtime.sock")) if run_dir else []


async def _said_by(sockets: list[Path]) -> list[Isolation]:
    """What each Runtime Server says in Hello; one that has no word for it counts as the weakest."""
    said = await asyncio.gather(*(_hello(socket) for socket in sockets))
    return [one for one in said if one is not None]


async def _hello(socket: Path) -> Isolation | None:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_SECONDS):
            client = await RuntimeClient.connect(socket)
            try:
                return (await client.hello("krt status")).isolation or Isolation(level="process")
            finally:
                client.close()
                await client.connection.closed
    except (OSError, TimeoutError, CallError, ConnectionLost, Refused):
        return None


def _row(process: ProcessState, healthy: dict[str, bool], pods: dict[str, Any]) -> dict[str, Any]:
    alive = bool(process.pid) and processes.start_time(process.pid) == process.start_ticks
    row: dict[str, Any] = {
        "name": process.name,
        "kind": process.kind,
        "state": "running" if alive else ("stopped" if process.state == "running" else process.state),
        "pid": process.pid if alive else 0,
        "restarts": process.restarts,
        "since": format_time_seconds(process.started_us) if process.started_us else "",
        "memory": f"{_pss_kib(process.pid) / 1024:.0f} MiB" if alive else "",
        "health": ("ok" if healthy.get(process.name, True) else "not answering") if alive else "down",
    }
    if process.kind == "container":
        uid, container, run = process.name.split("/")
        row["restarts"] = int(run)
        pod = pods.get(uid)
        if pod is not None:
            row["name"] = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{container}"
            if alive and not _is_ready(pod, container):
                row["health"] = "not ready"
    return row


def _is_ready(pod: dict[str, Any], container: str) -> bool:
    status = pod.get("status", {})
    statuses = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return any(one["name"] == container and one.get("ready") for one in statuses)


def _pods(api: str, ca: Path, token: str) -> list[dict[str, Any]]:
    body = _ask(f"{api}/api/v1/pods", ca, token)
    items: list[dict[str, Any]] = json.loads(body).get("items", []) if body else []
    return items


def _kubernetes_version(api: str, ca: Path, token: str) -> str:
    """Of the API that is served; "" while nobody answers."""
    body = _ask(f"{api}/version", ca, token)
    return str(json.loads(body).get("gitVersion", "")) if body else ""


def _ask(url: str, ca: Path, token: str = "") -> bytes | None:
    """The body of a 200, or None."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        context = ssl.create_default_context(cafile=ca)
        with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_SECONDS, context=context) as answer:
            return bytes(answer.read())
    except OSError:
        return None


def _pss_kib(pid: int) -> int:
    """Its share of memory; of a process that nobody may look into (a Runtime Server, but to root), what it does not
    share."""
    for line in _text(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    fields = _text(Path(f"/proc/{pid}/statm")).split()
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize() // 1024 if len(fields) > 2 else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
