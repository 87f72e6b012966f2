"""The Runtime Server's end of a zygote: processes on request, some of them forked ahead, each with its private channel.

`Spawner` runs `runtimes/python/zygote.py` under an interpreter, keeps warm children, hands one out at once (`take`),
ends whole groups (`kill`) and learns of every end. What a child is told on its channel is the languages' business.

A zygote that dies takes its children with it (PDEATHSIG); every Child then reports its end, and a new zygote starts.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from runtimes.server.child import Child
from runtimes.server.confinement import Confinement

logger = logging.getLogger(__name__)

ZYGOTE_SOURCES: Final = {
    name: (Path(__file__).parent.parent / "python" / f"{name}.py").read_bytes()
    for name in ("zygote", "sandbox", "syscalls", "channel", "surroundings", "loading", "function", "jobs")
}
"""In the order in which they are loaded. Read once, when this process starts: a zygote that is started later, after an
upgrade has replaced the files, is still the one that this server speaks with."""
READY_TIMEOUT_S: Final = 20.0
RESTART_DELAY_S: Final = 0.2
RESTART_DELAY_MAX_S: Final = 5.0
WARM_CHILDREN: Final = 3
"""Forked ahead: a registration then costs no fork (1–2 ms); each idle one is below 1 MiB of its own."""
TOP_UP_DELAY_S: Final = 0.01
"""From the last one handed out to the next fork: what is being served now, a load of 2 to 4 ms, has the CPU first."""
TOP_UP_PAUSE_S: Final = 0.002
PACKET_MAX_BYTES: Final = 65536
CHANNEL_BUFFER_BYTES: Final = 212_992
UNBORN: Final = "it was ended before it was forked"
ORPHANS_POLL_S: Final = 0.005
ORPHANS_POLLS: Final = 1000
SWEEP_INTERVAL_S: Final = 0.2
MARK_BASE: Final = 1 << 50
"""As in zygote.py: RLIMIT_RTTIME of every process below a zygote is this plus the number of its child."""
MARK_RANGE: Final = 1 << 40
_PR_SET_CHILD_SUBREAPER: Final = 36


class _Message(msgspec.Struct):
    """What the zygote tells, one JSON object a packet."""

    op: str
    number: int = 0
    pid: int = 0
    code: int = 0
    left: bool = False
    message: str = ""
    version: str = ""
    landlock: int = 0


_decode: Final = msgspec.json.Decoder(_Message).decode


class Spawner:
    """One zygote and its children. All methods belong to the loop's thread."""

    def __init__(
        self,
        interpreter: str,
        confinement: Confinement,
        *,
        label: str = "",
        warm: int = WARM_CHILDREN,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`label` ends the zygote's command line, and so that of all that it forks: whose they are."""
        self.interpreter = interpreter
        self._label = label
        self.version = ""
        self.landlock_abi = 0
        """Of the kernel, as the zygote found it; 0 for none."""
        self._confinement = msgspec.json.encode(confinement).decode()
        self._warm_wanted = warm
        self._environ = environ if environ is not None else os.environ
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._first_ready: asyncio.Future[None] = self._loop.create_future()
        self._stopping = False
        self._restart_delay = RESTART_DELAY_S
        self._numbers = 0
        self._children: dict[int, Child] = {}
        self._warm: deque[Child] = deque()
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._modules: list[str] = []
        self._top_up_planned = False
        self._down_since: float | None = None
        self._burial: asyncio.Task[None] | None = None

    # --- life of the zygote

    async def start(self) -> None:
        """Start the zygote and wait until it forks. Raises OSError or TimeoutError that name the interpreter."""
        become_subreaper()
        self._launch()
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._first_ready
        except TimeoutError as error:
            raise TimeoutError(f"{self.interpreter} did not become ready within {READY_TIMEOUT_S:g} s") from error

    def _launch(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = self._environ.get("PATH") or os.defpath
        sources = {name: _in_memory(name, source) for name, source in ZYGOTE_SOURCES.items()}
        zygote = f"/proc/self/fd/{sources['zygote']}"
        modules = [f"{name}=/proc/self/fd/{fd}" for name, fd in sources.items() if name != "zygote"]
        arguments = [str(theirs.fileno()), str(os.getpid()), *modules, self._label]
        command = [self.interpreter, "-I", "-X", "utf8", zygote, *arguments]
        with theirs:
            try:
                self._process = subprocess.Popen(  # Returns after exec: a few milliseconds, once in a server's life.
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={"PATH": path, "LANG": "C.UTF-8", "CONFINEMENT": self._confinement},
                    cwd="/",
                    pass_fds=(theirs.fileno(), *sources.values()),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise OSError(error.errno, f"interpreter {self.interpreter}: {error.strerror}") from error
            finally:
                for fd in sources.values():
                    os.close(fd)
        ours.setblocking(False)
        self._control = ours
        self._loop.add_reader(ours, self._readable)
        if self._modules:
            self._tell({"op": "preload", "modules": self._modules})
        for child in self._children.values():
            self._ask_fork(child)

    async def stop(self) -> None:
        """End the zygote and everything below it; returns when it is gone."""
        self._stopping = True
        if self._burial is not None:
            self._burial.cancel()
        process, self._process = self._process, None
        self._close_control()
        if process is not None:
            await asyncio.to_thread(_end, process)
        for child in list(self._children.values()):
            self._gone(child, None, "the Runtime Server stops")

    def _close_control(self) -> None:
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._loop.remove_writer(self._control)
            self._control.close()
            self._control = None
        self._outbox.clear()

    def _lost(self) -> None:
        """The zygote died: end what it left, report every child, start another."""
        self._close_control()
        self._ready = False
        if self._down_since is None:
            self._down_since = self._loop.time()
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        dead = [child for child in self._warm if child.pid is not None]
        self._warm = deque(child for child in self._warm if child.pid is None)
        for child in dead:
            child.on_exit = Child.close  # Nobody may take it any more.
        if not self._first_ready.done():
            self._first_ready.set_exception(
                OSError(f"{self.interpreter} ended at once; it must be CPython 3.9 or later")
            )
        elif not self._stopping:
            logger.error("the zygote died", extra={"interpreter": self.interpreter})
            self._burial = self._loop.create_task(self._bury([c for c in self._children.values() if c.pid is not None]))
            for child in [c for c in self._children.values() if c.pid is None and c.kill_wanted]:
                self._gone(child, None, UNBORN)

    async def _bury(self, forked: list[Child]) -> None:
        """PDEATHSIG has ended its children; what they had forked has become ours (subreaper) and is ended here."""
        for _ in range(ORPHANS_POLLS):
            if not _end_orphans(None):
                break
            await asyncio.sleep(ORPHANS_POLL_S)
        for child in forked:
            self._gone(child, None, "the zygote died")
        await asyncio.sleep(self._restart_delay)
        self._restart_delay = min(self._restart_delay * 2, RESTART_DELAY_MAX_S)
        self._relaunch()

    def _sweep(self, zygote: int) -> None:
        """What had just been forked when the last zygote died comes here late: look again until all of it has gone."""
        if _end_orphans(zygote) and not self._stopping and self._control is not None:
            self._loop.call_later(SWEEP_INTERVAL_S, self._sweep, zygote)

    def _relaunch(self) -> None:
        if self._stopping:
            return
        try:
            self._launch()
        except OSError as error:
            logger.error("zygote cannot be started: %s", error)
            self._loop.call_later(RESTART_DELAY_MAX_S, self._relaunch)

    # --- children

    def down_for(self) -> float:
        """Seconds since the zygote went, 0 while it is there."""
        return 0.0 if self._down_since is None else self._loop.time() - self._down_since

    def take(self) -> Child:
        """A child, warm if there is one, that waits for its job on its channel. Never waits, never fails: a fork that
        fails is told by `on_exit`."""
        child = self._warm.popleft() if self._warm else self._new_child()
        self._plan_top_up(TOP_UP_DELAY_S if self._warm else TOP_UP_PAUSE_S)
        return child

    def kill(self, child: Child) -> None:
        """End its whole group, and what left the group; `on_exit` follows."""
        if child.gone:
            return
        if child.pid is not None:
            self._tell({"op": "kill", "number": child.number, "pid": child.pid})
        elif not child.kill_wanted:
            child.kill_wanted = True
            if self._control is None:
                self._loop.call_soon(self._gone, child, None, UNBORN)

    def terminate(self, child: Child) -> None:
        """Ask its group to end (SIGTERM). A child that has not been forked yet is killed when it is."""
        if child.gone:
            return
        if child.pid is None:
            self.kill(child)
            return
        try:
            os.killpg(child.pid, signal.SIGTERM)
        except OSError:
            pass  # It is ending by itself.

    def preload(self, modules: Sequence[str]) -> None:
        """Import modules in the zygote, so that children forked from now on have them."""
        new = [name for name in modules if name not in self._modules]
        if new:
            self._modules += new
            self._tell({"op": "preload", "modules": new})

    def _new_child(self) -> Child:
        self._numbers += 1
        child = Child(self._numbers, self._loop)
        self._children[child.number] = child
        if self._control is not None:
            self._ask_fork(child)
        return child

    def _ask_fork(self, child: Child) -> None:
        self._tell({"op": "fork", "number": child.number}, child.theirs)

    def _plan_top_up(self, delay_s: float) -> None:
        """Fork ahead a little later."""
        if not self._top_up_planned and not self._stopping:
            self._top_up_planned = True
            self._loop.call_later(delay_s, self._top_up)

    def _top_up(self) -> None:
        self._top_up_planned = False
        if self._ready and len(self._warm) < self._warm_wanted:
            child = self._new_child()
            child.on_exit = self._warm_ended
            self._warm.append(child)
            self._plan_top_up(TOP_UP_PAUSE_S)

    def _warm_ended(self, child: Child) -> None:
        self._warm.remove(child)
        child.close()

    def _gone(self, child: Child, code: int | None, failure: str = "") -> None:
        if self._children.pop(child.number, None) is None:
            return
        child.close_theirs()
        child.gone = True
        child.exit_code = code
        child.failure = failure
        told, child.on_exit = child.on_exit, None  # Whom it told holds it: no cycle waits for the collector.
        if told is not None:
            told(child)

    # --- the control socket

    def _tell(self, message: Mapping[str, object], fds: tuple[int, ...] = ()) -> None:
        if self._control is not None:
            self._outbox.append((msgspec.json.encode(message), fds))
            self._flush()

    def _flush(self) -> None:
        control = self._control
        while control is not None and self._outbox:
            packet, fds = self._outbox[0]
            try:
                socket.send_fds(control, [packet], list(fds))
            except BlockingIOError:
                self._loop.add_writer(control, self._flush)
                return
            except OSError:
                return  # The zygote is gone; the reader finds out.
            self._outbox.popleft()
        if control is not None:
            self._loop.remove_writer(control)

    def _readable(self) -> None:
        while self._control is not None:
            try:
                packet = self._control.recv(PACKET_MAX_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._lost()
                return
            self._heard(_decode(packet))

    def _heard(self, message: _Message) -> None:
        child = self._children.get(message.number)
        match message.op:
            case "ready":
                self.version = message.version
                self.landlock_abi = message.landlock
                self._restart_delay = RESTART_DELAY_S
                self._sweep(message.pid)
                self._down_since = None
                self._ready = True
                if not self._first_ready.done():
                    self._first_ready.set_result(None)
                self._plan_top_up(TOP_UP_PAUSE_S)
            case "forked" if child is not None:
                child.pid = message.pid
                child.close_theirs()
                if child.kill_wanted:
                    self.kill(child)
            case "refused" if child is not None:
                self._gone(child, None, message.message)
            case "exited" if child is not None:
                if message.left:
                    logger.error("processes of a group do not die", extra={"pid": message.pid})
                self._gone(child, message.code, message.message)
            case _:
                logger.error("the zygote said what nobody understands: %s", message)


def _in_memory(name: str, content: bytes) -> int:
    """A descriptor of a file that is on no disk."""
    fd = os.memfd_create(name)
    os.write(fd, content)
    return fd


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_orphans(zygote: int | None) -> int:
    """End what a dead zygote's children left to this process, which has no other children than a zygote.

    Kills what bears our mark, reaps everything that has ended; returns how many are still there.
    """
    left = 0
    for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        if pid == zygote:
            continue
        try:
            mark = resource.prlimit(pid, resource.RLIMIT_RTTIME)[1]
            if MARK_BASE < mark < MARK_BASE + MARK_RANGE:
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            pass  # It has ended, or is not one of ours.
        try:
            left += os.waitpid(pid, os.WNOHANG)[0] == 0
        except ChildProcessError:
            pass
    return left


def become_subreaper() -> None:
    """Adopt what is orphaned below this process, so that it can be reaped."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
