"""The parent: the process that the user started with `krt up`. Small, and the one whose end is the end of everything.

Lives here: keeping a supervisor alive, and passing on what it notes. May not live here: anything that needs the warm
imports (they happen in the supervisor, after the fork). `controlplane.cli.up` calls it next.
"""

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from controlplane.embedded import control, processes
from controlplane.embedded.datadir import DataDir
from controlplane.embedded.topology import ProcessSpec

SUPERVISOR_TRIES: Final = 6
"""A supervisor that ends this often before the system was ready will not do better."""

SUPERVISOR_BACKOFF_SECONDS: Final = 1.0
"""Between the second and later restarts; the first is immediate."""

END_ALL_SECONDS: Final = 10.0
"""How long strays of a dead supervisor may take to be gone."""


class Parent:
    """Runs the system on `directory` until it is told to stop.

    `warm` names modules that containers will need, `prepare` runs in each new supervisor before it forks anything,
    `observe` hears each notice and must not block."""

    def __init__(
        self,
        directory: DataDir,
        specs: Sequence[ProcessSpec],
        *,
        warm: Sequence[str],
        version: str,
        prepare: Callable[[], None],
        observe: Callable[[control.Notice], None],
    ) -> None:
        self._directory = directory
        self._specs = specs
        self._warm = warm
        self._version = version
        self._prepare = prepare
        self._observe = observe
        self._pid = 0
        self._orders: socket.socket | None = None
        self._stops = 0
        self._failed = False
        self._was_ready = False

    def run(self) -> int:
        """Blocks. 0 after a stop that was asked for, 1 if the start failed. Nothing of the system runs afterwards."""
        processes.become_subreaper()
        processes.end_leftovers(self._directory.path / "pods")
        woken = self._catch_signals()
        tries = 0
        try:
            while True:
                tries += 1
                self._fork_supervisor()
                code = self._attend(woken)
                clean = processes.end_all(time.monotonic() + END_ALL_SECONDS)
                if self._stops or self._failed:
                    return 1 if self._failed or not clean else 0
                if tries >= SUPERVISOR_TRIES and not self._was_ready:
                    log = self._directory.logs / "supervisor.log"
                    self._observe(control.Failed("SupervisorFailed", f"the supervisor ended with {code}; see {log}"))
                    return 1
                if tries > 1:
                    time.sleep(SUPERVISOR_BACKOFF_SECONDS)
        finally:
            (self._directory.path / "status.json").unlink(missing_ok=True)
            self._directory.remove_run_dir()

    def _catch_signals(self) -> socket.socket:
        wake, woken = socket.socketpair()
        wake.setblocking(False)
        woken.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return woken

    def _on_stop_signal(self, _number: int, _frame: object) -> None:
        self._stops += 1
        self._order_stop()

    def _order_stop(self) -> None:
        """Once asks for an orderly stop, again ends everything at once."""
        if self._orders is not None and self._stops:
            with contextlib.suppress(OSError):
                self._orders.send(control.encode(control.Stop(now=self._stops > 1)))

    def _fork_supervisor(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output = processes.open_log(self._directory.logs / "supervisor.log")
        parent = os.getpid()
        pid = processes.fork_child(
            lambda: self._be_supervisor(theirs, parent),
            (theirs.fileno(), self._directory.lock),
            output,
            title="supervisor",
            outlive_parent=True,
        )
        os.close(output)
        theirs.close()
        ours.setblocking(False)
        self._pid, self._orders = pid, ours
        self._order_stop()

    def _be_supervisor(self, orders: socket.socket, parent: int) -> int:
        try:
            from controlplane.embedded.supervisor import Supervisor
            from controlplane.kube.library import pieces

            processes.raise_open_files()
            self._prepare()
            processes.warm([*dict.fromkeys(spec.target for spec in self._specs), *self._warm], (pieces,))
            report = _reporter(self._directory, parent, self._version)
            code = Supervisor(self._specs, orders=orders, log_dir=self._directory.logs, report=report).run()
            if os.getppid() != parent:
                self._directory.remove_run_dir()
            return code
        except Exception as exc:
            with contextlib.suppress(OSError):
                orders.send(control.encode(control.Failed("StartFailed", f"{type(exc).__name__}: {exc}")))
            processes.end_all(time.monotonic() + END_ALL_SECONDS)
            raise

    def _attend(self, woken: socket.socket) -> int:
        """Pass on notices until the supervisor ends; its exit code."""
        assert self._orders is not None
        with self._orders as orders, selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(orders, selectors.EVENT_READ)
            while True:
                for key, _events in selector.select():
                    if key.fileobj is woken:
                        with contextlib.suppress(BlockingIOError):
                            woken.recv(4096)
                    elif not self._read_notice(orders):
                        selector.unregister(orders)
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    while self._read_notice(orders):
                        pass
                    self._orders = None
                    return processes.exit_code(status)

    def _read_notice(self, orders: socket.socket) -> bool:
        """One notice, if there is one. False at the end of file."""
        try:
            data = orders.recv(control.CONTROL_MESSAGE_MAX_BYTES)
        except OSError:
            return False
        if not data:
            return False
        notice = control.decode_notice(data)
        if isinstance(notice, control.Ready):
            self._was_ready = True
        elif isinstance(notice, control.Failed) and not self._was_ready:
            self._failed = True
            self._stops = max(self._stops, 1)
            self._order_stop()
        self._observe(notice)
        return True


def _reporter(
    directory: DataDir, parent: int, version: str
) -> Callable[[tuple[control.ProcessState, ...], bool], bool]:
    started_us = time.time_ns() // 1_000

    def state(name: str, pid: int) -> control.ProcessState:
        ticks = processes.start_time(pid) or 0
        return control.ProcessState(
            name=name, kind="process", state="running", pid=pid, start_ticks=ticks, started_us=started_us
        )

    ends = state("parent", parent), state("supervisor", os.getpid())

    def report(members: tuple[control.ProcessState, ...], ready: bool) -> bool:
        return directory.write_state(
            control.SystemState(
                version=version,
                parent=ends[0],
                supervisor=ends[1],
                api_port=directory.config.api_port,
                gateway_port=directory.config.gateway_port,
                ready=ready,
                processes=members,
            )
        )

    return report
