"""Reaching into the node: the processes of a Pod's container, and its way to the Kubernetes API."""

import contextlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.cluster.kit import ROOT, STATE, scripts_cluster

API_PORT: Final = "6443"


def program(pod: Any, container: str) -> int:
    """The process of this machine that is a container's program: the only child of its init."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    status = next(status for status in statuses if status.name == container)
    init = first_process(status.container_id)
    child, *others = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    assert not others
    return int(child)


def first_process(container_id: str) -> int:
    """The process of this machine that is a container's init; the id is that of a Pod's status."""
    number = container_id.rpartition("/")[2]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if number not in (entry / "cgroup").read_text():
                continue
            inner = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("NSpid:"))
        except (OSError, StopIteration):
            continue
        if inner.split()[-1] == "1":
            return int(entry.name)
    raise AssertionError(f"container {container_id} has no process")


def meant_for_the_kernel(pid: int) -> None:
    """When memory runs out, the kernel takes this process before all others of its container, its workers too."""
    cgroup = Path(f"/proc/{pid}/cgroup").read_text()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != pid:
            with contextlib.suppress(OSError):
                if (entry / "cgroup").read_text() == cgroup:
                    (entry / "oom_score_adj").write_text("0")
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@contextmanager
def broken(component: str, how: str, mend: str) -> Iterator[None]:
    """A component of the node that is paused or stopped, and mended in the end."""
    scripts_cluster("component", component, how)
    try:
        yield
    finally:
        scripts_cluster("component", component, mend)


@contextmanager
def cut_off_from_the_api(address: str) -> Iterator[None]:
    """No packet of a Pod reaches the API server, nor the other way round. Whatever else reaches the Pod does."""
    rules = (
        ("INPUT", "--source", address, "--protocol", "tcp", "--dport", API_PORT, "--jump", "DROP"),
        ("OUTPUT", "--destination", address, "--protocol", "tcp", "--sport", API_PORT, "--jump", "DROP"),
    )
    for rule in rules:
        _in_the_node("iptables", "--insert", *rule)
    try:
        yield
    finally:
        for rule in rules:
            _in_the_node("iptables", "--delete", *rule)


def tag_image(reference: str, another: str) -> None:
    """Let an image of the node have another name, too."""
    command = ["ctr", "--address", str(STATE / "containerd.sock"), "--namespace", "k8s.io", "images", "tag", "--force"]
    subprocess.run([*command, reference, another], check=True, capture_output=True, timeout=30)


def _in_the_node(*command: str) -> None:
    status = [str(ROOT / "scripts" / "cluster"), "status"]  # not 0 while a component is stopped
    lines = subprocess.run(status, capture_output=True, text=True, check=False).stdout.splitlines()
    inside = next(line.split()[-1] for line in lines if line.startswith("containerd"))
    subprocess.run(["nsenter", "--target", inside, "--net", *command], check=True, timeout=20)
