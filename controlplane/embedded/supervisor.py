"""The supervisor: one warm, frozen process from which every other process of the machine is forked.

Lives here: the loop that starts, restarts, reaps and stops processes, and ends what they leave behind.
May not live here: what a Pod is (`node`), what the user sees (`parent`). `parent.Parent` forks it.

It never awaits and has no thread: a signal, a message or a timer wakes it, and it forks only from that one loop.
Whatever kills it, its children die with it (PR_SET_PDEATHSIG) and their strays fall to the parent, which ends them.
"""

import contextlib
import math
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from controlplane.embedded import control, logs, processes, spawning
from controlplane.embedded.channel import Channel
from controlplane.embedded.container_table import ContainerTable
from controlplane.embedded.member import Member
from controlplane.embedded.topology import BOOTSTRAP, CONTAINERS_STOP_SECONDS, NODE, ProcessSpec

START_TRIES: Final = 6
"""A process that ends this often before the system was ready will not do better: the start fails, saying why."""

SLOW_STOP_SECONDS: Final = 1.0
"""A process that takes longer than this to stop is named to the user."""

STRAYS_WAIT_SECONDS: Final = 1.0
"""How long one wake-up waits for killed strays to be gone; a kernel that takes longer wakes the supervisor again."""

PUBLISH_AGAIN_SECONDS: Final = 5.0
"""Between tries to write the state where the disk takes no write."""

LOG_CHECK_SECONDS: Final = 60.0
"""How often log files are measured against their limit."""

CHANNEL_VARIABLES: Final = {NODE: "KRUNTIMES_SPAWNER_FD", BOOTSTRAP: "KRUNTIMES_REPORT_FD"}
"""Processes that speak with the supervisor, and the variable that names their descriptor."""

END_ALL_SECONDS: Final = 5.0
"""How long a killed descendant may take to be gone."""


class Supervisor:
    """Runs `specs` until told to stop, or until the parent is gone. `report` is told the state after each change; where
    it says False (nothing could be written) it is told again later."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        orders: socket.socket,
        log_dir: Path,
        report: Callable[[tuple[control.ProcessState, ...], bool], bool],
    ) -> None:
        self._members = {spec.name: Member(spec) for spec in specs}
        self._log_dir = log_dir
        self._report = report
        self._containers = ContainerTable(self._spawn_container)
        self._selector = selectors.DefaultSelector()
        self._channels: dict[str, Channel] = {}
        self._parent = Channel(
            self._selector,
            orders,
            message_max_bytes=control.CONTROL_MESSAGE_MAX_BYTES,
            on_message=self._on_order,
            on_closed=self._on_parent_gone,
        )
        self._prepared = BOOTSTRAP not in self._members
        self._ready = False
        self._stopping: deque[Member] | None = None
        self._stop_deadline = self._slow_at = 0.0
        self._over = False
        self._changed = False
        self._next_publish = 0.0
        self._next_log_check = time.monotonic() + LOG_CHECK_SECONDS

    def run(self) -> int:
        """Until everything has ended. 0 after an orderly stop, 1 after an end at once (asked for, or no parent)."""
        wake, self._woken = socket.socketpair()
        wake.setblocking(False)
        self._woken.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakeups)
        while not self._over:
            self._start_due()
            if self._advance_stop():
                break
            if self._changed and time.monotonic() >= self._next_publish:
                self._publish()
            for key, _events in self._selector.select(self._timeout()):
                key.data()
            self._reap()
            if time.monotonic() >= self._next_log_check:
                self._check_logs()
        processes.end_all(time.monotonic() + END_ALL_SECONDS)
        self._publish()
        return 1 if self._over else 0

    # Signals and messages

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._stop()

    def _drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _on_order(self, data: bytes) -> None:
        if control.decode_order(data).now:
            self._over = True
        else:
            self._stop()

    def _on_parent_gone(self) -> None:
        self._over = True

    def _notify(self, notice: control.Notice) -> None:
        self._parent.send(control.encode(notice))

    def _on_bootstrap(self, data: bytes) -> None:
        notice = control.decode_notice(data)
        if isinstance(notice, control.Prepared):
            self._prepared = True
        elif isinstance(notice, control.Ready):
            self._ready = True
            self._publish()
        self._notify(notice)

    def _on_node(self, data: bytes) -> None:
        try:
            request = spawning.decode_request(data)
        except msgspec.MsgspecError:
            self._members[NODE].signal(signal.SIGKILL)  # it speaks another protocol: a new one may not
            return
        for report in self._containers.answer(request):
            self._tell_node(report)
        self._changed |= isinstance(request, spawning.Spawn)

    def _on_node_gone(self) -> None:
        """It closed the channel, or does not read what it is told: either way a new node enumerates anew."""
        self._members[NODE].signal(signal.SIGKILL)

    def _tell_node(self, report: spawning.Report) -> None:
        if NODE in self._channels:
            self._channels[NODE].send(spawning.encode(report))

    # Starting

    def _start_due(self) -> None:
        if self._stopping is not None:
            return
        now = time.monotonic()
        for member in self._members.values():
            if member.due(now) and (self._prepared or not member.spec.after_prepared):
                self._start(member)

    def _start(self, member: Member) -> None:
        env = dict(member.spec.env)
        keep: list[int] = []
        theirs = self._open_channel(member.spec.name)
        if theirs is not None:
            keep.append(theirs.fileno())
            env[CHANNEL_VARIABLES[member.spec.name]] = str(theirs.fileno())
        try:
            log = self._log_dir / f"{member.spec.name}.log"
            target = member.spec.target
            member.started(self._fork(lambda: processes.run_target(target, env), log, member.spec.name, keep))
        except OSError as exc:
            member.failed(time.monotonic())
            self._notify(control.Progress(f"cannot start {member.spec.name}: {exc}"))
        finally:
            if theirs is not None:
                theirs.close()
        self._changed = True

    def _open_channel(self, name: str) -> socket.socket | None:
        """The other end of a new channel, for a process that has one. A channel of its predecessor is closed."""
        if name not in CHANNEL_VARIABLES:
            return None
        if name in self._channels:
            self._channels.pop(name).close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        is_node = name == NODE
        self._channels[name] = Channel(
            self._selector,
            ours,
            message_max_bytes=spawning.MESSAGE_MAX_BYTES if is_node else control.CONTROL_MESSAGE_MAX_BYTES,
            on_message=self._on_node if is_node else self._on_bootstrap,
            on_closed=self._on_node_gone if is_node else lambda: None,
        )
        return theirs

    def _spawn_container(self, request: spawning.Spawn) -> int:
        if self._stopping is not None:
            raise InterruptedError("the system stops")

        def body() -> int:
            processes.be_expendable()
            return processes.run_target(request.target, request.env)

        return self._fork(body, Path(request.log), request.title, ())

    def _fork(self, body: Callable[[], int], log: Path, title: str, keep: Sequence[int]) -> int:
        output = processes.open_log(log)
        try:
            return processes.fork_child(body, keep, output, title=title)
        finally:
            os.close(output)

    # Ends

    def _reap(self) -> None:
        """Take note of every end, and end what the dead left behind before anybody hears of it."""
        gone: list[tuple[int, int]] = []
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                gone.append(reaped)
        if not gone:
            return
        self._end_strays({pid for pid, _status in gone})
        self._changed = True
        for pid, status in gone:
            code = processes.exit_code(status)
            if pid in self._containers:
                self._tell_node(self._containers.reaped(pid, code))
            for member in self._members.values():
                if member.pid == pid:
                    self._member_ended(member, code)

    def _member_ended(self, member: Member, code: int) -> None:
        member.ended(code, time.monotonic())
        if (channel := self._channels.pop(member.spec.name, None)) is not None:
            channel.read_all()
            channel.close()
        if not self._ready and self._stopping is None and member.failures >= START_TRIES:
            line = logs.last_line(self._log_dir / f"{member.spec.name}.log")
            self._notify(
                control.Failed(
                    "ProcessFailed",
                    f"{member.spec.name} ended {member.failures} times, last with {code}: {line or 'it said nothing'} "
                    f"(see {self._log_dir}/{member.spec.name}.log)",
                )
            )

    def _end_strays(self, reaped: set[int]) -> None:
        """SIGKILL and reap every child that is neither a process of ours nor a container: an orphan of a dead one."""
        known = {member.pid for member in self._members.values()} | {c.pid for c in self._containers}
        deadline = time.monotonic() + STRAYS_WAIT_SECONDS
        while strays := [pid for pid in processes.children() if pid not in known or pid in reaped]:
            processes.end(strays)
            for pid in strays:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() >= deadline:
                return
            time.sleep(0.001)

    # Stopping

    def _stop(self) -> None:
        if self._stopping is None:
            self._stopping = deque(self._members.values())
            self._stop_deadline = 0.0

    def _advance_stop(self) -> bool:
        """End the processes one after the other, in the order of the table. True when none is left."""
        while self._stopping:
            member = self._stopping[0]
            if member.pid == 0:
                self._stopping.popleft()
                self._stop_deadline = 0.0
            elif self._stop_deadline == 0.0:
                self._stop_deadline = time.monotonic() + member.spec.stop_seconds
                self._ask_to_stop(member)
            elif time.monotonic() >= self._stop_deadline:
                member.signal(signal.SIGKILL)
                self._stop_deadline = time.monotonic() + END_ALL_SECONDS
                return False
            else:
                self._tell_if_slow(member)
                return False
        return self._stopping is not None

    def _tell_if_slow(self, member: Member) -> None:
        if time.monotonic() >= self._slow_at:
            self._slow_at = self._stop_deadline
            self._notify(control.Progress(f"waiting for {member.spec.name} to finish what is in flight"))

    def _ask_to_stop(self, member: Member) -> None:
        self._slow_at = time.monotonic() + SLOW_STOP_SECONDS
        if member.spec.name == NODE and NODE in self._channels:
            self._tell_node(spawning.Shutdown(CONTAINERS_STOP_SECONDS))
        else:
            member.signal(signal.SIGTERM)

    # Time and state

    def _timeout(self) -> float:
        now = time.monotonic()
        due = [self._next_log_check, self._next_publish if self._changed else math.inf]
        if self._stopping is not None:
            due += [self._stop_deadline, self._slow_at]
        else:
            due += [m.next_start for m in self._members.values() if m.next_start is not None and self._may_start(m)]
        return max(0.0, min(due) - now)

    def _may_start(self, member: Member) -> bool:
        return self._prepared or not member.spec.after_prepared

    def _check_logs(self) -> None:
        self._next_log_check = time.monotonic() + LOG_CHECK_SECONDS
        for path in [*self._log_dir.glob("*.log"), *(container.log for container in self._containers)]:
            logs.bound(path)

    def _publish(self) -> None:
        members = tuple(member.state() for member in self._members.values() if member.spec.name != BOOTSTRAP)
        containers = tuple(
            control.ProcessState(
                name=c.id, kind="container", state="running", pid=c.pid, started_us=c.started_us,
                start_ticks=processes.start_time(c.pid) or 0,
            )
            for c in self._containers
        )  # fmt: skip
        self._changed = not self._report(members + containers, self._ready)
        self._next_publish = time.monotonic() + PUBLISH_AGAIN_SECONDS if self._changed else 0.0
