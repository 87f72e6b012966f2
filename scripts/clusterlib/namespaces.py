"""The node's surroundings: network, mount and process namespaces, the link to this machine, its control groups.

Everything made here has a fixed name, so `remove` finds it again without a record and after any crash.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from clusterlib import processes
from clusterlib.processes import Process
from clusterlib.settings import (
    HOST_IP,
    HOST_LINK,
    LINK_BITS,
    NAME,
    NODE_IP,
    NODE_LINK,
    POD_RANGE,
    PRIVATE_FOLDERS,
    SERVICE_RANGE,
    STATE,
    ClusterError,
)

HOLDER: Final = "holder"
MADE_FOLDERS: Final = STATE / "made-folders"
"""Mount points that this machine did not have: removed again."""

_SYSCTLS: Final = {"net/ipv4/ip_forward": "1", "net/bridge/bridge-nf-call-iptables": "1"}


def run(*command: str, check: bool = True) -> str:
    """Run a short command; its output. Raises ClusterError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def make() -> Process:
    """Make everything and return the process that keeps it."""
    _make_cgroups()
    _make_folders()
    holder = _start_holder()
    processes.record(holder)
    _make_network(holder)
    for name, value in _SYSCTLS.items():
        setting = f"test ! -e /proc/sys/{name} || echo {value} > /proc/sys/{name}"
        run("nsenter", "--target", str(holder.pid), "--mount", "--net", "--", "sh", "-c", setting)
    return holder


def remove() -> None:
    """Remove everything that `make` made. The processes have ended."""
    run("ip", "link", "del", HOST_LINK, check=False)  # routes go with it
    for group in _cgroups():
        _remove_cgroup(group)
    with contextlib.suppress(FileNotFoundError):
        for folder in reversed(MADE_FOLDERS.read_text().split()):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def left_behind() -> list[str]:
    """What of it is still there, for people."""
    found = [f"link {HOST_LINK}"] if Path("/sys/class/net", HOST_LINK).exists() else []
    found += [f"control group {group}" for group in _cgroups()]
    found += [
        f"mount {line.split()[4]}"
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.split()[4].startswith(f"{STATE}/")
    ]
    return found


def _make_network(holder: Process) -> None:
    inside = ("nsenter", "--target", str(holder.pid), "--net", "--", "ip")
    run("ip", "link", "add", HOST_LINK, "type", "veth", "peer", "name", NODE_LINK, "netns", str(holder.pid))
    run("ip", "addr", "add", f"{HOST_IP}/{LINK_BITS}", "dev", HOST_LINK)
    run("ip", "link", "set", HOST_LINK, "up")
    run(*inside, "link", "set", "lo", "up")
    run(*inside, "addr", "add", f"{NODE_IP}/{LINK_BITS}", "dev", NODE_LINK)
    run(*inside, "link", "set", NODE_LINK, "up")
    run(*inside, "route", "add", "default", "via", HOST_IP)
    for network in (SERVICE_RANGE, POD_RANGE):
        run("ip", "route", "add", network, "via", NODE_IP)


def _make_folders() -> None:
    made = []
    for folder in PRIVATE_FOLDERS:
        missing = [path for path in (*reversed(Path(folder).parents), Path(folder)) if not path.exists()]
        Path(folder).mkdir(parents=True, exist_ok=True)
        made += [str(path) for path in missing]
    MADE_FOLDERS.write_text("\n".join(made))


def _start_holder() -> Process:
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
    script = str(Path(__file__).with_name("holder.py"))
    with (STATE / "logs" / "holder.log").open("ab") as log:
        outer = subprocess.Popen(
            [*command, sys.executable, "-I", script, *PRIVATE_FOLDERS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert outer.stdout is not None
    if outer.stdout.readline() != b"ready\n":
        outer.kill()
        raise ClusterError(f"the node's namespaces cannot be made; see {STATE}/logs/holder.log")
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
    return processes.process(HOLDER, int(children[0]))


def _cgroups() -> list[Path]:
    """The node's control group in each hierarchy where it exists."""
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / NAME, *root.glob(f"*/{NAME}")) if path.is_dir() and not path.parent.is_symlink()]


def _make_cgroups() -> None:
    root = Path("/sys/fs/cgroup")
    version_2 = (root / "cgroup.controllers").exists()
    hierarchies = [root] if version_2 else [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    for hierarchy in hierarchies:
        group = hierarchy / NAME
        group.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):  # version 1 starts with none, and then nothing can run in it
            own = group / name
            if not version_2 and own.exists():
                own.write_text((hierarchy / name).read_text())


def _remove_cgroup(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        for _ in processes.polls(5.0):
            try:
                Path(folder).rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:  # its last process is still being reaped
                continue
