# ruff: noqa: E402, PTH103, PTH113, PTH118, PTH120, PTH123, PTH208, SIM115
# Imports come after a note of what was there; no worker has pathlib in memory for our sake; this runs on Python 3.9.
"""The in-worker file: one warm interpreter that forks a process for each worker and task, and what runs in those.

It is executed by path under the *user's* interpreter (any CPython from 3.9, isolated mode) with nothing of this project
on its path: the standard library only, in this file and `sandbox.py` beside it, which keeps workers from one another.
`server/spawner.py` starts it and speaks to it. Three parts:

  Zygote    forks children on request, ends whole groups, reaps everything that dies below it
  Channel   the private line between one child and the Runtime Server (descriptor 3, closed on exec and after fork)
  jobs      `function` (load a handler, answer invocations), `task` (run `python FILE ARGS`), `exec` (another program)

The control socket carries one JSON object a packet. The channel carries messages: a header of 13 bytes (kind u8,
sequence u32, size of meta u32, size of body u32, big endian), JSON meta (INVOKE: three lines of text), a raw body.
"""

from __future__ import annotations

import sys

_AT_START = frozenset(sys.modules)

import atexit
import builtins
import errno
import fcntl
import gc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import resource
import select
import signal
import socket
import struct
import time
import traceback
import types
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

try:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True)
except (ImportError, OSError):  # An interpreter built without libffi: the end of the channel then ends its workers.
    _libc = None  # type: ignore[assignment]

HEADER = struct.Struct(">BIII")
CHANNEL_FD = 3
BASH_CHANNEL_FD = 60
PACKET_MAX_BYTES = 65536
INBOX_BYTES = 65536

# Kinds of messages on the channel: to the child, and from it.
JOB, INVOKE = 1, 2
STARTED, FAILED, RESULT, ERROR = 10, 11, 12, 13

MARK_BASE = 1 << 50
"""RLIMIT_RTTIME of a child is this plus its number. It bounds only real-time scheduling, which needs a privilege, and
every descendant inherits it, also one that left the group and the session: by it a stray's origin is known."""

CENSUS_INTERVAL_S = 0.1
DYING_POLL_S = 0.002
DYING_MAX_S = 5.0
ERROR_MESSAGE_MAX = 4096
FRAMES_MAX = 8
FRAMES_TEXT_MAX = 8192

_ZYGOTE_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_warm: dict[str, list[str]] = {}
"""Modules that a fresh interpreter would not have, by the first part of their names."""


def _note_warm_modules() -> None:
    _warm.clear()
    for name in set(sys.modules).difference(_AT_START, sys.builtin_module_names):
        _warm.setdefault(name.split(".", 1)[0], []).append(name)


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


def _load_sandbox() -> Any:
    """`sandbox.py` beside this file, which is on nobody's path."""
    sys.dont_write_bytecode = True
    path = os.path.join(os.path.dirname(__file__), "sandbox.py")
    spec = importlib.util.spec_from_file_location("sandbox", path)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the zygote


class Zygote:
    """Forks on request. `run` returns only in a child, with its number; in the zygote it ends the process."""

    def __init__(self, control: socket.socket, parent: int, confinement: Mapping[str, Any]) -> None:
        self.control = control
        self.parent = parent
        sandbox = _load_sandbox()
        self.enclosure = sandbox.Enclosure(_libc, confinement["hidden"], confinement["interpreter"])
        self.census = sandbox.Census(confinement["processes"])
        sandbox.stay_responsive()
        sandbox.harden(_libc, confinement["memory_bytes"])
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

    @staticmethod
    def freeze() -> None:
        """What is here stays shared: a child's garbage collector does not write to it."""
        _note_warm_modules()
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
            pass  # Somebody has set it lower for all of us: strays outside the group are then not told apart.
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
        if os.getppid() != self.pid:  # It died before the line above counted.
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
        """Kill the descendants of a dead child that left its group: they have become ours. True when there was one."""
        found = False
        for pid in _own_children():
            if pid in self.children or self.owner(pid) != number:
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


# --- the channel


class Channel:
    """The child's end. A process that the handler forks does not have it: what it returns goes nowhere."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=CHANNEL_FD)
        self.owner = os.getpid()
        self.inbox = memoryview(bytearray(INBOX_BYTES))  # Allocating it for each message costs page faults.
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        try:
            self.socket.close()
        except OSError:
            pass

    def receive(self) -> tuple[int, int, bytes, bytes] | None:
        """(kind, sequence, meta, body) as bytes, or None at the end of the channel."""
        data = self.inbox[: self.socket.recv_into(self.inbox)].tobytes()
        while len(data) < HEADER.size:
            more = self.socket.recv(HEADER.size - len(data)) if data else b""
            if not more:
                return None
            data += more
        kind, sequence, meta_size, body_size = HEADER.unpack_from(data)
        meta_end = HEADER.size + meta_size
        missing = meta_end + body_size - len(data)
        if missing:
            whole = bytearray(meta_end + body_size)
            at = len(data)
            whole[:at] = data
            with memoryview(whole) as view:
                while missing:
                    size = self.socket.recv_into(view[at:])
                    if not size:
                        return None
                    at += size
                    missing -= size
            data = bytes(whole)
        return kind, sequence, data[HEADER.size : meta_end], data[meta_end:]

    def send(self, kind: int, sequence: int, meta: bytes = b"", body: bytes = b"") -> None:
        head = HEADER.pack(kind, sequence, len(meta), len(body)) + meta
        if len(body) < INBOX_BYTES:
            self.socket.sendall(head + body)
        else:
            self.socket.sendall(head)
            self.socket.sendall(body)

    def fail(self, kind: int, sequence: int, **meta: str) -> None:
        self.send(kind, sequence, json.dumps(meta).encode())


class Failure(Exception):
    """What the Runtime Server is to be told: one of the contract's reasons and a message that is never empty."""

    def __init__(self, reason: str, message: str, **details: str) -> None:
        super().__init__(message)
        self.meta = dict(details, reason=reason, message=message)


def _describe(error: BaseException) -> dict[str, str]:
    """type, message and last frames of an exception of the user's code, bounded; ours are left out."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(error)
    except BaseException as broken:
        text = f"(str() of it raised {type(broken).__name__})"
    trace = traceback.extract_tb(error.__traceback__)
    frames = [
        frame for frame in trace if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    lines = "".join(traceback.format_list(frames[-FRAMES_MAX:]))
    message = f"{name}: {text}" if text else name
    return {"type": name, "message": _utf8(message[:ERROR_MESSAGE_MAX]), "frames": _utf8(lines[-FRAMES_TEXT_MAX:])}


def _utf8(text: str) -> str:
    """The text with what UTF-8 does not have (lone surrogates) escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


# --- what every job begins with


def _get_ready() -> None:
    """What a child does before its job is known, so that it takes no time afterwards."""
    os.umask(0o077)
    # New objects: the zygote's remember what its descriptors were. What cannot be encoded is escaped, not raised.
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    sys.dont_write_bytecode = True
    # A rehearsal: it copies the pages that loading a handler will write to.
    spec = importlib.util.spec_from_file_location("rehearsal", "/rehearsal.py")
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        exec(compile("import os\ndef invoke(request):\n    return request\n", "rehearsal", "exec"), module.__dict__)
        _takes_context(module.invoke, "rehearsal.invoke")
    json.JSONDecoder(parse_constant=_refuse_constant).decode(json.dumps({"a": [1.5, None, "x"]}, allow_nan=False))


def _prepare(job: dict[str, Any], enclosure: Any) -> None:
    """Environment, folder and limits of this job; from here on nothing is seen of other jobs."""
    for name, (soft, hard) in job["limits"].items():
        which = getattr(resource, name)
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))
    os.environ.clear()
    os.environ.update(job["env"])
    time.tzset()
    os.chdir(job["root"])
    enclosure.enter(job["private"], job["readable"])


def _prepare_imports(first: list[str]) -> types.ModuleType:
    """sys.path and sys.modules as they would be if this interpreter had been started for the user's files."""
    extra = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = first + extra
    sys.path_importer_cache.clear()
    mine = {name.split(".", 1)[0] for folder in first for name in os.listdir(folder)}
    for top in mine.intersection(_warm):
        for name in _warm[top]:  # Here by chance; the user's file of that name is the one that an import means.
            sys.modules.pop(name, None)
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


# --- job: function


class Context:
    """What a handler with a second parameter gets: facts of this one invocation."""

    __slots__ = ("artifacts", "deadline", "invocation_id", "logger", "run", "traceparent")

    def __init__(self, meta: bytes, run: Mapping[str, Any], logger: Any, artifacts: Artifacts) -> None:
        self.invocation_id, self.traceparent, deadline = meta.decode().split("\n")
        self.deadline = float(deadline)
        self.run = run
        self.logger = logger
        self.artifacts = artifacts

    def remaining(self) -> float:
        """Seconds until the deadline, never below 0."""
        return max(0.0, self.deadline - time.time())


class Artifacts:
    """`context.artifacts`: files that are stored with the answer, and named in its artifactRefs."""

    __slots__ = ("folder",)

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def put(self, name: str, data: bytes | bytearray | memoryview | str) -> None:
        """Keep `data` (text as UTF-8) as `name`, a relative path; of one name the last counts. Raises ValueError,
        OSError."""
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise ValueError(f"{name!r} is no relative path")
        path = os.path.join(self.folder, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)


def _load(root: str, handler: str) -> tuple[Callable[..., Any], bool]:
    """Import the handler's file under its dotted name; return (callable, whether it takes the context)."""
    module_name, _, attribute = handler.rpartition(".")
    parts = module_name.split(".")
    if not attribute or not all(part and "/" not in part and "\0" not in part for part in parts):
        raise Failure("SourceInvalid", f"handler {handler!r} is not file.function")
    path = os.path.join(root, *parts) + ".py"
    looked_for = os.path.join(*parts) + ".py"
    if not os.path.isfile(path):
        raise Failure("SourceInvalid", f"no file {looked_for} in the source (handler {handler})")
    if not (os.path.realpath(path) + os.sep).startswith(os.path.realpath(root) + os.sep):
        raise Failure("SourceInvalid", f"{looked_for} leads out of the source")
    try:
        module = _import_path(root, parts, path)
    except BaseException as error:
        described = _describe(error)
        described["message"] = f"importing {looked_for}: " + described["message"]
        raise Failure("ImportFailed", **described) from None
    try:
        function = getattr(module, attribute)
    except AttributeError:
        raise Failure("HandlerNotFound", f"{looked_for} has no attribute {attribute!r} (handler {handler})") from None
    if not callable(function):
        kind = type(function).__name__
        raise Failure("HandlerNotFound", f"{attribute} in {looked_for} is of type {kind}, not callable")
    return function, _takes_context(function, handler)


def _import_path(root: str, parts: list[str], path: str) -> types.ModuleType:
    """Import by place, not by search: no installed package of the same name can come before it."""
    folder = root
    for depth, part in enumerate(parts[:-1], 1):
        folder = os.path.join(folder, part)
        name = ".".join(parts[:depth])
        init = os.path.join(folder, "__init__.py")
        if os.path.isfile(init):
            package = _execute(name, init, [folder])
        else:
            package = types.ModuleType(name)
            package.__path__ = [folder]
            package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
            sys.modules[name] = package
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], part, package)
    module = _execute(".".join(parts), path, None)
    if len(parts) > 1:
        setattr(sys.modules[".".join(parts[:-1])], parts[-1], module)
    return module


def _execute(name: str, path: str, search: list[str] | None) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return sys.modules[name]


def _takes_context(function: Callable[..., Any], handler: str) -> bool:
    """Whether to call it with (request, context): its second parameter has no default, or is named `context`."""
    if type(function) is types.FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        if code.co_argcount == 1 and not code.co_kwonlyargcount:
            return False  # The usual case, known without a signature.
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in places if p.default is p.empty]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(needed) > 2 or keywords or not (places or starred):
        signature = f"{handler} takes {inspect.signature(function)}"
        raise Failure("HandlerNotFound", signature + "; expected invoke(request) or invoke(request, context)")
    return len(needed) == 2 or (len(places) > 1 and places[1].name == "context")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def run_function(channel: Channel, job: dict[str, Any], sequence: int) -> int:
    """Load, say STARTED, then answer one INVOKE after the other until the channel ends."""
    root = job["root"]
    decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    _prepare_imports([root])
    sys.argv[:] = [""]
    owner = channel.owner
    try:
        function, takes_context = _load(root, job["handler"])
    except Failure as failure:
        if os.getpid() != owner:
            os._exit(1)
        _flush()
        channel.fail(FAILED, sequence, **failure.meta)
        return 1
    if os.getpid() != owner:
        os._exit(0)
    logger = _logger() if takes_context else None
    asynchronous = inspect.iscoroutinefunction(function)
    runner = _Runner()
    if asynchronous:
        runner.start()
    _flush()
    channel.send(STARTED, sequence, json.dumps({"asynchronous": asynchronous}).encode())
    maximum = job["result_max_bytes"]
    run = types.MappingProxyType(job["run"])
    artifacts = Artifacts(job["artifacts"])
    while True:
        try:
            message = channel.receive()
        except OSError:
            return 0
        except BaseException:  # Raised by a signal handler that the user's code left behind.
            traceback.print_exc()
            continue
        if message is None:
            return 0
        _, sequence, meta, body = message
        try:
            answer = _invoke(
                function,
                Context(meta, run, logger, artifacts) if takes_context else None,
                body,
                decode,
                encode,
                runner,
                maximum,
            )
        except Failure as failure:
            if os.getpid() != owner:
                os._exit(1)
            _flush()
            channel.fail(ERROR, sequence, **failure.meta)
        else:
            if os.getpid() != owner:
                os._exit(0)  # A process that the handler forked came back through its return.
            _flush()
            channel.send(RESULT, sequence, b"", answer)


def _invoke(
    function: Callable[..., Any],
    context: Context | None,
    body: bytes,
    decode: Callable[[str], Any],
    encode: Callable[[Any], str],
    runner: _Runner,
    maximum: int,
) -> bytes:
    """The answer's JSON as bytes; raises Failure."""
    try:
        request = decode(body.decode("utf-8")) if body else {}
    except (ValueError, RecursionError) as error:
        raise Failure("InvalidRequest", f"the request body is not JSON: {error}") from None
    try:
        result = function(request) if context is None else function(request, context)
        if type(result) is not dict and hasattr(type(result), "__await__"):
            result = runner.run(result)
    except BaseException as error:
        described = _describe(error)
        if isinstance(error, SystemExit):
            described["message"] = "the handler called exit: " + described["message"]
        raise Failure("HandlerFailed", **described) from None
    try:
        answer = encode(_answer(result)).encode("utf-8")
    except Failure:
        raise
    except RecursionError:
        raise Failure("HandlerResultInvalid", "the result is nested too deeply for JSON") from None
    except BaseException as error:
        raise Failure("HandlerResultInvalid", "the result is not JSON: " + _describe(error)["message"]) from None
    if len(answer) > maximum:
        raise Failure("ResponseTooLarge", f"the result is {len(answer)} bytes of JSON; at most {maximum} are answered")
    return answer


_EXPECTED = 'expected an object {"outputs": {...}, "artifactRefs": [{"name": ..., "uri": ...}]} with no other keys'


def _answer(result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        kind = type(result).__name__
        raise Failure(
            "HandlerResultInvalid",
            "the handler returned {}; {}".format("None" if result is None else "a " + kind, _EXPECTED),
        )
    for key in result:
        if key != "outputs" and key != "artifactRefs":
            raise Failure("HandlerResultInvalid", f"the result has the key {repr(key)[:100]}; {_EXPECTED}")
    if not isinstance(result.get("outputs", {}), dict):
        raise Failure("HandlerResultInvalid", "outputs is a {}; {}".format(type(result["outputs"]).__name__, _EXPECTED))
    references = result.get("artifactRefs")
    if references is not None:
        ok = isinstance(references, (list, tuple)) and all(
            isinstance(r, dict) and isinstance(r.get("name"), str) and isinstance(r.get("uri"), str) for r in references
        )
        if not ok:
            raise Failure("HandlerResultInvalid", "artifactRefs is no list of objects with name and uri; " + _EXPECTED)
    return result if "outputs" in result else dict(result, outputs={})


def _logger() -> Any:
    """The context's logger; it writes to stderr unless the user's module has set up logging its own way."""
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    return logging.getLogger("handler")


class _Runner:
    """Runs awaitables to their end on one event loop, which a worker keeps: what a module made on it stays usable."""

    def __init__(self) -> None:
        self.loop: Any = None

    def start(self) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def run(self, awaitable: Any) -> Any:
        if self.loop is None or self.loop.is_closed():
            self.start()

        async def wait() -> Any:
            return await awaitable

        return self.loop.run_until_complete(wait())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            continue  # Closed or replaced by the user's code: what it printed is its own business.


# --- job: task


def run_task(channel: Channel, job: dict[str, Any], sequence: int) -> NoReturn:
    """Run FILE as `python FILE ARGS` does, in this warm process, and end the process with the status that it gives."""
    path = os.path.join(job["root"], job["entrypoint"])
    folders = [os.path.dirname(path)]
    if folders[0] != job["root"]:
        folders.append(job["root"])
    main = _prepare_imports(folders)
    sys.argv[:] = [job["entrypoint"], *job["args"]]
    main.__dict__.update(
        __file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path)
    )
    channel.send(STARTED, sequence)
    channel.close()
    owner = os.getpid()
    status = 0
    try:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as exit:
        status = _exit_status(exit.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    del main
    if os.getpid() == owner:
        _finish_as_python_does(job["root"])
    else:
        _flush()
    os._exit(status)


def _exit_status(code: Any) -> int:
    """What `sys.exit(code)` gives."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(str(code) + "\n")
    return 1


def _finish_as_python_does(root: str) -> None:
    """Wait for threads, run what atexit holds, let go of the user's modules (open files are written), flush.

    The interpreter's teardown does the same, then takes 5 ms to dismantle memory that is shared with the zygote.
    """
    threading = sys.modules.get("threading")
    for last in (getattr(threading, "_shutdown", None), atexit._run_exitfuncs):
        try:
            if last is not None:
                last()
        except BaseException:
            traceback.print_exc()
    _flush()
    left = []
    for name, module in reversed(list(sys.modules.items())):
        if name == "__main__" or str(getattr(module, "__file__", "")).startswith(root + os.sep):
            del sys.modules[name]
            if isinstance(module, types.ModuleType):
                left.append(weakref.ref(module))
        del module
    gc.collect()
    for reference in left:
        remaining = reference()
        if remaining is not None:
            vars(remaining).clear()
    gc.collect()
    _flush()


# --- job: exec


def run_exec(channel: Channel, job: dict[str, Any], sequence: int) -> int:
    """Become another program. It starts with the channel only if it is to speak on it (`channel` true)."""
    if job["channel"]:
        os.dup2(CHANNEL_FD, BASH_CHANNEL_FD, inheritable=True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # What is ignored here stays ignored after exec.
    try:
        os.execvpe(job["argv"][0], job["argv"], os.environ)
    except OSError as error:
        channel.fail(
            FAILED, sequence, reason="RuntimeServerError", message="{}: {}".format(job["argv"][0], error.strerror)
        )
        return 127


def become(channel: Channel, enclosure: Any) -> int:
    """Wait for a job, then do it; returns the exit status."""
    _get_ready()
    enclosure.prepare()
    message = channel.receive()
    if message is None:
        os._exit(0)
    _, sequence, meta, _ = message
    job = json.loads(meta)
    gc.enable()
    try:
        _prepare(job, enclosure)
    except OSError as error:
        channel.fail(FAILED, sequence, reason="RuntimeServerError", message=f"preparing the process: {error}")
        return 1
    run: Callable[[Channel, dict[str, Any], int], int] = {
        "function": run_function,
        "task": run_task,
        "exec": run_exec,
    }[job["kind"]]
    return run(channel, job, sequence)


if __name__ == "__main__":
    _zygote = Zygote(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), json.loads(os.environ["CONFINEMENT"]))
    _zygote.run()
    sys.exit(become(Channel(), _zygote.enclosure))
