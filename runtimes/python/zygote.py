# ruff: noqa: E402, PTH123, PTH208
# Imports come after a note of what was there; no worker has pathlib in memory for our sake; this runs on Python 3.9.
"""The zygote: one warm interpreter that forks a process for each worker and task, ends whole groups, and reaps all.

It runs under the *user's* interpreter (any CPython from 3.9, isolated mode) with nothing of this project on its path:
the standard library only, here and in the other files of this folder that it loads. All of them come in descriptors, as
the Runtime Server read them when it started: `server/spawner.py` starts it and speaks to it, one JSON object a packet.

  sandbox, syscalls       what keeps children from one another and from the server
  channel                 the private line between one child and the Runtime Server
  surroundings, loading   what a job begins with, and how a handler is found
  function, jobs          what a child does: answer invocations; or be a task, or another program
"""

from __future__ import annotations

import sys

_AT_START = frozenset(sys.modules)

import errno
import fcntl
import gc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn

try:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):  # An interpreter built without libffi: the end of the channel then ends its workers.
    _libc = None  # type: ignore[assignment]

CHANNEL_FD = 3
PACKET_MAX_BYTES = 65536

MARK_BASE = 1 << 50
"""RLIMIT_RTTIME of a child is this plus its number. It bounds only real-time scheduling, which needs a privilege, and
every descendant inherits it, also one that left the group and the session: by it a stray's origin is known."""

CENSUS_INTERVAL_S = 0.1
DYING_POLL_S = 0.002
DYING_MAX_S = 5.0

_ZYGOTE_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _keep_freed_buffers() -> None:
    """Buffers of up to 4 MiB come from the heap, and 8 MiB of it stay when freed: mapped afresh, as glibc does from
    128 KiB on, each large request and answer would cost its worker a thousand page faults."""
    mallopt = getattr(_libc, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        mallopt(_M_TRIM_THRESHOLD, 8 << 20)


def _load_ours(name: str, path: str) -> Any:
    """A module of this project, which is on nobody's path."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # For those that are loaded after it; user code finds none of them.
    spec.loader.exec_module(module)
    return module


# --- the zygote


class Zygote:
    """Forks on request. `run` returns only in a child, with its number; in the zygote it ends the process."""

    def __init__(
        self, control: socket.socket, parent: int, ours: Mapping[str, Any], confinement: Mapping[str, Any]
    ) -> None:
        """`ours`: this project's modules, by name."""
        self.ours = ours
        sandbox = ours["sandbox"]
        self.control = control
        self.parent = parent
        self.enclosure = sandbox.Enclosure(_libc, confinement["hidden"], confinement["interpreter"])
        self.census = sandbox.Census(confinement["processes"])
        sandbox.stay_responsive()
        sandbox.harden(_libc, confinement["memory_bytes"])
        self.marks = resource.getrlimit(resource.RLIMIT_RTTIME)[1] == resource.RLIM_INFINITY
        """Somebody may have set it lower for all of us: strays outside the group are then not told apart."""
        self.causes: dict[int, str] = {}  # number -> why the child had to be ended
        self.pid = os.getpid()
        self.children: dict[int, int] = {}  # pid -> number
        self.dying: dict[int, tuple[int, int, float]] = {}  # pid of a reaped leader -> (number, wait status, patience)
        self.wake_read, self.wake_write = socket.socketpair()
        for end in (self.wake_read, self.wake_write):
            end.setblocking(False)

    def run(self) -> int:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != self.parent:
            self.end()
        _keep_freed_buffers()
        self.freeze()
        self.tell(op="ready", pid=os.getpid(), version=sys.version.split()[0], landlock=self.enclosure.abi)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        try:
            return self.serve(poll)
        except BaseException:
            traceback.print_exc()
            self.end()

    def serve(self, poll: select.poll) -> int:
        while True:
            ready = poll.poll((DYING_POLL_S if self.dying else CENSUS_INTERVAL_S) * 1000)
            for fd, _ in ready:
                if fd == self.wake_read.fileno():
                    self.drain_wakeups()
                elif (number := self.request()) is not None:
                    return number
            self.reap()
            if not ready and self.census.due():
                self.thin_out()

    def freeze(self) -> None:
        """What is here stays shared: a child's garbage collector does not write to it."""
        self.ours["surroundings"].note_warm_modules(_AT_START)
        gc.collect()
        gc.freeze()

    def drain_wakeups(self) -> None:
        try:
            while self.wake_read.recv(4096):
                pass
        except BlockingIOError:
            pass

    def tell(self, **message: object) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            self.end()

    def request(self) -> int | None:
        """Take one packet; return a number in the child that it made."""
        try:
            packet, fds, _, _ = socket.recv_fds(self.control, PACKET_MAX_BYTES, 8)
        except OSError:  # Reset: the Runtime Server died with packets unread.
            packet = b""
        if not packet:
            self.end()
        message = json.loads(packet)
        if message["op"] == "fork":
            number = int(message["number"])
            signal.pthread_sigmask(signal.SIG_BLOCK, _ZYGOTE_SIGNALS)  # Its handlers are not for the child.
            try:
                pid = os.fork()
                if pid:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ZYGOTE_SIGNALS)
            except OSError as error:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _ZYGOTE_SIGNALS)
                self.tell(op="refused", number=number, message="fork: " + os.strerror(error.errno or 0))
            else:
                if pid == 0:
                    self.become_child(number, fds)
                    return number
                self.children[pid] = number
                self.tell(op="forked", number=number, pid=pid)
            for fd in fds:
                os.close(fd)
        elif message["op"] == "kill":
            pid = message["pid"]
            if self.children.get(pid) == message["number"]:
                _kill_group(pid)
        elif message["op"] == "preload":
            for name in message["modules"]:
                importlib.import_module(name)
            self.freeze()
        return None

    def become_child(self, number: int, fds: Sequence[int]) -> None:
        try:
            resource.setrlimit(resource.RLIMIT_RTTIME, (MARK_BASE + number, MARK_BASE + number))
        except ValueError:
            pass  # See `marks`.
        signal.set_wakeup_fd(-1)
        for number_of_signal in _ZYGOTE_SIGNALS:
            signal.signal(number_of_signal, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ZYGOTE_SIGNALS)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(fds[1], 1)
        os.dup2(fds[2], 2)
        channel = fcntl.fcntl(fds[0], fcntl.F_DUPFD, 10)  # dup2 of a descriptor to itself would be refused.
        os.dup2(channel, CHANNEL_FD, inheritable=False)
        _close_from(CHANNEL_FD + 1)
        self.control.detach()
        self.wake_read.detach()
        self.wake_write.detach()
        if _libc is not None:
            self.ours["syscalls"].restrict(_libc)
        if os.getppid() != self.pid:  # It died before PDEATHSIG counted.
            os._exit(1)

    def reap(self) -> None:
        """Note every child that ended, end what it left, and tell when nothing of it remains."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            pid = ended.si_pid
            number = self.children.pop(pid, None)
            if number is not None:
                _kill_group(pid)  # While its zombie keeps the number from being used again.
            status = os.waitpid(pid, 0)[1]
            if number is not None:
                self.dying[pid] = (number, status, time.monotonic() + DYING_MAX_S)
        for pid, (number, status, until) in list(self.dying.items()):
            left = _group_exists(pid) or self.kill_strays(number)
            if not left or time.monotonic() > until:
                del self.dying[pid]
                cause = self.causes.pop(number, "")
                self.tell(op="exited", number=number, pid=pid, code=_exit_code(status), left=left, message=cause)

    def kill_strays(self, number: int) -> bool:
        """Kill the descendants of a dead child that left its group: they have become ours. True when there was one.

        Whose mark is no living child's is killed too: where no filter keeps a process from changing its own, it did.
        """
        found = False
        known = set(self.children.values()) if self.marks else None
        for pid in _own_children():
            if pid in self.children or (owner := self.owner(pid)) is None:
                continue
            if owner != number and (known is None or owner in known):
                continue
            try:
                os.kill(pid, signal.SIGKILL)
                found = True
            except OSError:
                continue
        return found

    def owner(self, pid: int) -> int | None:
        """The number of the child that a child of this process is, or descends from."""
        if pid in self.children:
            return self.children[pid]
        try:
            return resource.prlimit(pid, resource.RLIMIT_RTTIME)[1] - MARK_BASE
        except (OSError, ValueError):
            return None

    def thin_out(self) -> None:
        """End every child that has too many processes and threads, with all that it started."""
        for number, pids in self.census.crowded(self.pid, self.owner).items():
            self.causes[number] = f"it had more than {self.census.maximum} processes and threads"
            for leader, one in list(self.children.items()):
                if one == number:
                    _kill_group(leader)
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue

    def end(self) -> NoReturn:
        """The Runtime Server is gone: everything below goes too."""
        if os.getpid() != self.pid:
            os._exit(70)  # A child that failed before it was one: its siblings are not its business.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        until = time.monotonic() + DYING_MAX_S
        for pid in self.children:
            _kill_group(pid)
        while (left := _own_children()) and time.monotonic() < until:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                break
            time.sleep(DYING_POLL_S)
        os._exit(0)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        try:
            os.kill(pid, signal.SIGKILL)  # A child that has not called setsid yet has no group of its own.
        except OSError:
            pass


def _group_exists(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def _own_children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _exit_code(status: int) -> int:
    """As a shell reports it."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _close_from(first: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) >= first:
            try:
                os.close(int(name))
            except OSError:
                pass


if __name__ == "__main__":
    _ours: dict[str, Any] = {}
    for _place in sys.argv[3:-1]:
        _name, _, _path = _place.partition("=")
        _ours[_name] = _load_ours("kruntimes_" + _name, _path)
        os.close(int(_path.rpartition("/")[2]))
    for _name in _ours:
        del sys.modules["kruntimes_" + _name]
    os.close(int(__file__.rpartition("/")[2]))
    _control = socket.socket(fileno=int(sys.argv[1]))
    _zygote = Zygote(_control, int(sys.argv[2]), _ours, json.loads(os.environ["CONFINEMENT"]))
    _zygote.run()
    sys.exit(_ours["jobs"].become(_ours["channel"].Channel(), _zygote.enclosure))
