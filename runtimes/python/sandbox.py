# ruff: noqa: PTH110, PTH111, PTH112, PTH114, PTH117, PTH118, PTH120, PTH123, PTH208
# No worker has pathlib in memory for our sake; this runs on Python 3.9.
"""What keeps one function from another in the same Pod: Landlock, no privileges, not dumpable, bounded memory.

Loaded by `zygote.py` under the *user's* interpreter: standard library only. What is inherited by
fork is set once in the zygote (`harden`) and costs a worker nothing; each child then encloses itself in a Landlock
domain of its own (`Enclosure`): the rules that all share while it waits for a job, its Run's folders when it has one.
`Census` finds a child that forks without end. A kernel without Landlock is no error: `abi` is 0, and the
Runtime Server says so in Hello.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # The same numbers on every architecture.
_QUERY_VERSION = 1
_RULE_PATH_BENEATH = 1
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
READ = _EXECUTE | _READ_FILE | _READ_DIR
FULL = (1 << 16) - 1

_FOLDER = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CAPABILITY_VERSION_3 = 0x20080522

SYSTEM = frozenset(
    "bin boot etc lib lib32 lib64 libx32 nix opt proc run sbin snap sys usr var".split()  # noqa: SIM905
)
"""Folders of the root that are read and executed, never written, also by a root user."""
DEVICES = ("full", "null", "ptmx", "pts", "random", "shm", "tty", "urandom", "zero")
"""What user code opens below /dev; never a disk."""
SHARED = ("/var/tmp",)
"""Below a SYSTEM folder, and written all the same. /tmp is none, and is shared as well."""
ALWAYS_HIDDEN = ("/run/secrets", "/var/run/secrets")
"""Where clusters mount tokens."""
SPREAD_MAX_NAMES = 2048
"""A folder with more names than this, and something hidden below it, is hidden as a whole: each name is a rule."""
OOM_SCORE_ADJUSTMENT = 500
"""When memory runs out the kernel takes a worker before the Runtime Server: half of all memory is added to its size."""


def stay_responsive() -> None:
    """The zygote runs before all that it forks, also when a thousand processes want the CPU: it has to end them. Needs
    a privilege; without it a machine that is full takes longer to come back. Children start as usual.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (OSError, AttributeError):
        pass


def harden(libc: Any, memory_bytes: int) -> None:
    """For this process and all that it will fork: the first to go when memory is short, bounded memory, no capability,
    none to be gained by a set-uid program, and neither memory nor environment to be read by processes of its user.
    """
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE_ADJUSTMENT))
    except OSError:
        pass  # It has a higher one already.
    if memory_bytes:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        bound = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    if libc is None:
        return
    libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    libc.capset(header, bytes(24))
    libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)


class Enclosure:
    """The Landlock domain of a child. Made in the zygote; `prepare`, then `enter`, in each child."""

    def __init__(self, libc: Any, hidden: Sequence[str], programs: bool) -> None:
        """`hidden`: folders whose content no child sees. `programs`: the interpreter stays readable for children."""
        self._libc = libc
        self._ruleset = -1
        self.abi = max(0, libc.syscall(_CREATE_RULESET, None, 0, _QUERY_VERSION)) if libc is not None else 0
        self._handled = FULL if self.abi >= 5 else FULL >> {4: 1, 3: 1, 2: 2, 1: 3}.get(self.abi, 0)
        rules = plan([*hidden, *ALWAYS_HIDDEN], _programs(programs)) if self.abi else []
        self._rules = [(path, rights if os.path.isdir(path) else rights & _FILE_RIGHTS) for path, rights in rules]

    def prepare(self) -> None:
        """The rules that every child has: 20 to 40 of them, added before a job is known, so that nobody waits."""
        if not self.abi:
            return
        scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if self.abi >= 6 else 0
        attributes = struct.pack("QQQ", self._handled, 0, scoped)[: 24 if self.abi >= 6 else 16 if self.abi >= 4 else 8]
        self._ruleset = self._libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
        for path, rights in self._rules:
            self._allow(path, rights)

    def enter(self, private: Iterable[str], readable: Iterable[str]) -> None:
        """From here on this process sees what all may see, `private` folders to do anything in, `readable` files."""
        if not self.abi:
            return
        for path in private:
            self._allow_folder(path)
        for path in readable:
            self._allow(path, READ & _FILE_RIGHTS)
        failed = self._libc.syscall(_RESTRICT_SELF, self._ruleset, 0)
        os.close(self._ruleset)
        if failed:
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")

    def _allow(self, path: str, rights: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # It has gone: nothing to allow.
        self._add(fd, rights)

    def _allow_folder(self, path: str) -> None:
        """Allow a folder of the Run if the path leads there without a link: its owner could have put one in."""
        fd = os.open("/", _FOLDER)
        for name in path.strip("/").split("/"):
            try:
                below = os.open(name, _FOLDER, dir_fd=fd)
            except OSError:
                return
            finally:
                os.close(fd)
            fd = below
        self._add(fd, FULL)

    def _add(self, fd: int, rights: int) -> None:
        try:
            rule = struct.pack("=Qi", rights & self._handled, fd)
            self._libc.syscall(_ADD_RULE, self._ruleset, _RULE_PATH_BENEATH, rule, 0)
        finally:
            os.close(fd)


class Census:
    """Counts the processes and threads below each child of the zygote, when so many have been started anywhere that one
    child may have too many: RLIMIT_NPROC counts all of a user's, and does not bind root."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._room = 0
        self._last = 0
        with open("/proc/sys/kernel/pid_max") as file:
            self._wraps_at = int(file.read())

    def due(self) -> bool:
        """One small read tells how many process numbers have been given out since the last look."""
        with open("/proc/loadavg") as file:
            last = int(file.read().rsplit(None, 1)[1])
        self._room -= (last - self._last) % self._wraps_at
        self._last = last
        return self._room <= 0

    def crowded(self, zygote: int, owner: Callable[[int], int | None]) -> dict[int, list[int]]:
        """Numbers of children that have too many -> all pids below them. `owner` gives a zygote's child its number."""
        found: dict[int, tuple[int, int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open("/proc/" + name + "/stat", "rb") as file:
                        fields = file.read().rpartition(b")")[2].split()
                except OSError:
                    continue  # It has ended.
                found[int(name)] = int(fields[1]), int(fields[17])
        counts: dict[int, int] = {}
        members: dict[int, list[int]] = {}
        for pid, (_, threads) in found.items():
            top, above = pid, found[pid][0]
            while above != zygote and above in found:
                top, above = above, found[above][0]
            number = owner(top) if above == zygote else None
            if number is not None:
                counts[number] = counts.get(number, 0) + threads
                members.setdefault(number, []).append(pid)
        self._room = self.maximum + 1 - max(counts.values(), default=0)
        return {number: members[number] for number, count in counts.items() if count > self.maximum}


def plan(hidden: Iterable[str], programs: Iterable[str]) -> list[tuple[str, int]]:
    """(path, rights) of everything but what is hidden. Landlock has no way to say `but`: a folder with something hidden
    below it is replaced by what else is in it. What is made there later is hidden too.
    """
    secret = {os.path.realpath(path) for path in hidden} - {"/"}
    kept = {os.path.realpath(path) for path in programs} - {"/"}
    rules: list[tuple[str, int]] = []

    def spread(path: str, rights: int, holes: set[str]) -> None:
        if path in holes:
            return
        if not any(hole.startswith(path + "/") for hole in holes):
            rules.append((path, rights))
            return
        paths = [os.path.join(path, name) for name in _names(path)]
        # Where a link leads has a rule of its own, or is hidden.
        paths = [below for below in paths if not os.path.islink(below)]
        for below in paths if len(paths) <= SPREAD_MAX_NAMES else ():
            spread(below, rights, holes)

    for name in _names("/"):
        top = "/" + name
        if name == "dev":
            rules.extend(("/dev/" + device, FULL) for device in DEVICES)
        elif name in SYSTEM:
            if not os.path.islink(top):
                spread(top, READ, secret)
        elif not os.path.islink(top):
            spread(top, FULL, secret | kept)
    for shared in SHARED:
        spread(shared, FULL, secret)
    for path in sorted(kept):
        inside = any(path.startswith(hole + "/") for hole in secret)
        if inside or path.split("/")[1] not in SYSTEM:
            spread(path, READ, secret)
    return rules


def _programs(interpreter: bool) -> set[str]:
    """What must stay readable wherever it is: this interpreter with its modules, and the programs on the PATH."""
    home = os.path.expanduser("~")
    found = set()
    for entry in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if os.path.isabs(entry):
            parent = os.path.dirname(os.path.normpath(entry))
            # Programs come with libraries beside their bin folder; a whole home is too much for that.
            found.add(entry if parent in (home, os.path.join(home, ".local"), "/") else parent)
    if interpreter:
        found.update((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
        found.update(path for path in sys.path if path)
        found.update((os.path.dirname(sys.executable), os.path.dirname(os.path.realpath(sys.executable))))
    return {path for path in found if os.path.exists(path)}


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
