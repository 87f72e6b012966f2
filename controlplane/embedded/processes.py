"""Linux processes: fork without inheriting, die with the parent, and leave nothing behind.

Lives here: the few system calls that the supervisor and its parent need. May not live here: what to run, or when.
`supervisor` and `parent` call it next. Single-threaded callers only: a forked child keeps just the calling thread.

How nothing is left behind: every process of ours is a child subreaper, so whatever loses its parent, setsid or not,
becomes a child of the nearest living process of ours above it. Ending all children until there are none (`end_all`)
therefore ends all descendants. PR_SET_PDEATHSIG covers the case that a parent is killed outright.
"""

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36

OPEN_FILES_MIN: Final = 65_536
"""Soft limit of open files that a server process asks for; the hard limit bounds it. 1024 is too few for a gateway."""

EXPENDABLE_SCORE: Final = 500
"""oom_score_adj of containers: half of all memory counts against them, so a greedy function goes before the API."""

CHILDREN_READ_BYTES: Final = 1 << 20
"""Pids of more children than a machine has; what is left out is met in the next round."""

END_ALL_ROUND_SECONDS: Final = 0.000_5
"""Pause between two rounds of `end_all`: shorter than a fork, so that a process which flees by forking is met."""

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def become_subreaper() -> None:
    """From now on, orphaned descendants become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when `parent` ends; at once if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def set_title(name: str, command_line: str) -> None:
    """What `ps` shows: `name` (at most 15 bytes) as the command, `command_line` as the arguments where it fits."""
    _prctl(_PR_SET_NAME, name.encode()[:15])
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49 of proc(5)
        room = end - start - 1
        if start and room > 0:
            ctypes.memset(start, 0, end - start)
            text = command_line.encode()[:room]
            ctypes.memmove(start, text, len(text))


def children() -> list[int]:
    """Pids of the direct children of this process, zombies included."""
    return _children_of(os.getpid())


def _children_of(parent: int) -> list[int]:
    """Pids of the direct children of `parent`, zombies included; none if it is gone."""
    try:
        fd = os.open(f"/proc/{parent}/task/{parent}/children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [int(pid) for pid in os.read(fd, CHILDREN_READ_BYTES).split()]
        finally:
            os.close(fd)
    except OSError:
        if Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():
            return []  # the parent is gone
    # a kernel without CONFIG_PROC_CHILDREN
    return [
        int(entry.name)
        for entry in os.scandir("/proc")
        if entry.name.isdigit() and _parent_of(int(entry.name)) == parent
    ]


def _parent_of(pid: int) -> int | None:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def start_time(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot: with the pid this names a process for good. None if it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None


def end(pids: Iterable[int]) -> None:
    """SIGKILL each of `pids`, which must be unreaped children, and all below. What is gone already does not matter.

    Whoever flees by forking is seldom a child of ours while it lives: it becomes one when its parent's exit is
    complete, and has forked by then. So its own children are looked for before it is."""
    below = list(pids)
    while below:
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        below = [child for pid in below for child in _children_of(pid)]


def end_all(deadline: float) -> bool:
    """SIGKILL all descendants and reap them. True once there are none; False if some still die at `deadline`
    (monotonic seconds), which only a process stuck in the kernel does.

    As long as ends are met there is no pause: what flees by forking lives for some 100 microseconds at a time, and is
    met only by whoever looks and strikes in less."""
    while True:
        met = 0
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                met += 1
        except ChildProcessError:
            return True
        end(children())
        if time.monotonic() >= deadline:
            return False
        if not met:
            time.sleep(END_ALL_ROUND_SECONDS)


def end_leftovers(pods: Path) -> int:
    """SIGKILL what user code left behind when parent and supervisor were killed together, before either could clean up:
    processes of this user that carry the UID of a Pod in folder `pods`, or work there without a terminal. How many.

    Only for a caller that holds the lock of the data directory, before it starts anything."""
    uids = {b"KRUNTIME_POD_UID=" + os.fsencode(entry.name) for entry in os.scandir(pods)}
    found = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _is_left_over(Path(entry.path), pods, uids):
            end([int(entry.name)])
            found += 1
    return found


def _is_left_over(proc: Path, pods: Path, uids: set[bytes]) -> bool:
    """By the command line of a zygote, which names its work folder and which its forks keep: they are not dumpable, so
    that only root may see their environment and folder, and /proc gives their files to root. By those of any other."""
    try:
        status = (proc / "status").read_text()
        if f"\nUid:\t{os.geteuid()}\t" not in status:
            return False
        *command, label, _ = [b"", b"", *(proc / "cmdline").read_bytes().split(b"\0")]
        if label.startswith(os.fsencode(pods) + b"/") and any(one.startswith(b"/proc/self/fd/") for one in command):
            return True
        if not uids.isdisjoint((proc / "environ").read_bytes().split(b"\0")):
            return True
        terminal = (proc / "stat").read_text().rpartition(")")[2].split()[4]
        return terminal == "0" and (proc / "cwd").readlink().is_relative_to(pods)
    except OSError:
        return False  # it ended while we looked, or shows nothing


def exit_code(status: int) -> int:
    """A wait status as a shell would say it: 128 + n for a process that signal n ended."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def fork_child(
    body: Callable[[], int], keep: Sequence[int], stdout: int, *, title: str, outlive_parent: bool = False
) -> int:
    """Fork a child that runs `body` and ends with what it returns; the pid of it. Raises OSError.

    The child has a session of its own, signals at their defaults, an empty stdin, `stdout` as standard output and
    error, and no other descriptor but `keep`. It is killed when the parent ends, unless `outlive_parent`: then it has
    to notice by itself, so that it can end its own descendants first. Nothing of the parent's Python state is
    unwound in it: it ends with `os._exit`."""
    parent = os.getpid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return pid
    code = 1
    try:
        os.setsid()
        if not outlive_parent:
            die_with_parent(parent)
        become_subreaper()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(stdout, 1)
        os.dup2(stdout, 2)
        close_all_but(keep)
        set_title(f"krt-{title}", f"krt: {title}")
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        code = body()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def close_all_but(keep: Sequence[int]) -> None:
    """Close every descriptor from 3 on that is not in `keep`."""
    low = 3
    for fd in sorted({*keep, os.sysconf("SC_OPEN_MAX")}):
        if fd >= low:
            os.closerange(low, fd)
            low = fd + 1


def open_log(path: Path) -> int:
    """A descriptor that appends to the log file `path`, made with its folder if need be. Where that is impossible (a
    full or read-only disk) output goes nowhere, since a log must not stop what it describes."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def warm(modules: Iterable[str], load: Iterable[Callable[[], object]] = ()) -> None:
    """Import `modules` and call each of `load` once for all children, and keep the garbage collector from touching (and
    so copying) what they share. Raises what an import raises."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    for call in load:
        call()
    gc.collect()
    gc.freeze()
    gc.enable()
    with contextlib.suppress(AttributeError):
        _libc.malloc_trim(0)


def raise_open_files() -> None:
    """Raise the soft limit of open files to OPEN_FILES_MIN where the hard limit allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MIN if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MIN)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def be_expendable() -> None:
    """Let the kernel, when memory runs out, end this process and its children before any other of the machine's."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(f"{EXPENDABLE_SCORE}\n")


def run_target(target: str, env: Mapping[str, str]) -> int:
    """Be `target`: its `main([], env)` with exactly this environment; what it returns."""
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [target]
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` writes to the log where a process that hangs is
    return int(importlib.import_module(target).main([], dict(env)))
