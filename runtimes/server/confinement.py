"""What user code of one Runtime Server may use and see: bounds of a worker, hidden folders, who may call the server.

Lives here: data for the zygote, made from the process's configuration, and the check of a caller. May not live here:
how the kernel is told (`python/sandbox.py` does that, under the user's interpreter).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

import runtimes
from runtimes.contract.messages import Isolation

MIB: Final = 1024 * 1024
WORKER_MEMORY_DEFAULT_BYTES: Final = 4096 * MIB
"""Private memory of one process of user code (RLIMIT_DATA), but never more than half of what this container has: one
runaway process then meets MemoryError before the kernel has to choose whom to end."""
WORKER_MEMORY_MIN_BYTES: Final = 64 * MIB
"""Below this no interpreter starts."""
WORKER_PROCESSES_DEFAULT: Final = 512
"""Processes and threads of one worker or task; a thread pool for each core of a large machine is below it."""
WORKER_PROCESSES_MIN: Final = 4
CGROUP_MEMORY: Final = Path("/sys/fs/cgroup/memory.max")
COMMON_FOLDERS: Final = frozenset(map(Path, ("/", "/run", "/tmp", "/var/run", "/var/tmp")))
"""Never hidden as a whole because one thing of ours is in them."""
ANCESTORS_MAX: Final = 4096


class Confinement(msgspec.Struct, frozen=True):
    """Read by the zygote, as JSON. `interpreter`: user code runs under the interpreter of the zygote itself."""

    hidden: tuple[str, ...]
    interpreter: bool
    memory_bytes: int
    processes: int


def hidden_folders(work: Path, socket: Path, more: Sequence[str]) -> tuple[str, ...]:
    """Folders that user code sees nothing of: other Runs, the socket's, this product's own modules, and `more`."""
    modules = Path(runtimes.__file__).parent.parent
    folders = [work, socket.parent, modules, *(Path(path) for path in more if os.path.isabs(path))]  # noqa: PTH117
    return tuple(str(folder) for folder in folders if folder.resolve() not in COMMON_FOLDERS)


def default_memory_bytes() -> int:
    """WORKER_MEMORY_DEFAULT_BYTES, or half of this container's memory where that is less."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    try:
        bound = CGROUP_MEMORY.read_text().strip()
    except OSError:
        bound = "max"
    if bound.isdigit():
        memory = min(memory, int(bound))
    return max(min(WORKER_MEMORY_DEFAULT_BYTES, memory // 2), WORKER_MEMORY_MIN_BYTES)


def isolation(landlock_abi: int) -> Isolation:
    """What Hello says of this server."""
    return Isolation(level="sandbox" if landlock_abi else "process", landlock_abi=landlock_abi)


class Bonds(NamedTuple):
    """What no process gets rid of again, nor does a program that it becomes or starts."""

    no_new_privileges: int
    filters: int
    """Seccomp filters; 0 on kernels that do not count them."""

    @classmethod
    def of(cls, pid: int) -> Bonds:
        """Raises OSError, ValueError: there is no such process, or it may not be looked at."""
        fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return cls(int(fields.get("NoNewPrivs", 0)), int(fields.get("Seccomp_filters", 0)))


def is_user_code(pid: int, server: int) -> bool:
    """Whether the process that has dialled may be user code: of this server, or of another of the same machine, whose
    processes are more confined than any Runtime Server. True, too, of one that has ended: nobody vouches for it.
    """
    try:
        caller, own = Bonds.of(pid), Bonds.of(server)
    except (OSError, ValueError):
        return True
    return caller.no_new_privileges > own.no_new_privileges or caller.filters > own.filters or is_below(pid, server)


def is_below(pid: int, ancestor: int) -> bool:
    """Whether `pid` is `ancestor` or descends from it. True, too, of a process that has ended: nobody vouches for it.

    What is orphaned below a zygote becomes the zygote's child, and a dead zygote's children this server's, so that no
    process of user code gets away from below it.
    """
    for _ in range(ANCESTORS_MAX):
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return True
    return True
