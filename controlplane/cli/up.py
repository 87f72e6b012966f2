"""`krt up`, `krt down`, `krt status`: the whole system on this machine, started, stopped and looked at.

Lives here: options, what is printed, exit codes. May not live here: processes (`embedded.parent` runs them). Nothing of
the system is imported before an option was checked, and this process stays small: the supervisor imports the rest.
"""

import contextlib
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from controlplane.cli.failure import CANNOT_CONNECT, OTHER, USAGE, Failure
from controlplane.cli.options import Format, OutputOption
from controlplane.cli.output import emit, print_object, say
from controlplane.cli.tables import print_table
from controlplane.embedded import control, datadir, processes
from controlplane.embedded.datadir import DataDir, StartRefused

PROGRESS_AFTER_SECONDS: Final = 1.0
"""What takes longer than this says on stderr what it waits for."""

DOWN_POLL_SECONDS: Final = 0.05
DOWN_NOW_SECONDS: Final = 15.0
"""How long `krt down --now` waits for everything to be gone."""

OTHER_DIRECTORY: Final = "--data-dir names another directory"

BUILT_IN: Final = ("python", "bash")

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where everything is kept. Default: $KRUNTIMES_DATA_DIR or ~/.kruntimes."),
]


def up(
    data_dir: DataDirOption = None,
    api_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the Kubernetes API; 0 picks one. Default: as before, or 16443."),
    ] = None,
    gateway_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the gateway; 0 picks one. Default: as before, or 18443."),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option("--runtime", help="Runtime to make in namespace default; may be repeated. Default: python, bash."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return when ready; `krt down` stops it.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Start empty: delete what the directory holds.")] = False,
) -> None:
    """Run the whole system on this machine: Kubernetes API, control plane, gateway, Runtimes.

    Prints the path of a kubeconfig, the URL of the gateway, a line for a shell that sets KUBECONFIG, and a line that
    starts with `ready`. Ctrl-C stops everything, after calls in flight; twice ends it at once. What is in the directory
    is taken up at the next start.

    \b
    Example:
      krt up --detach
    """
    began = time.monotonic()
    names = tuple(dict.fromkeys(runtime or BUILT_IN))
    for name in names:
        if name not in BUILT_IN:
            raise Failure(
                "UnknownRuntime", f"no built-in Runtime is named {name}; there are {', '.join(BUILT_IN)}", USAGE
            )
    os.umask(0o077)
    try:
        directory = datadir.open_directory(
            _directory(data_dir), api_port=api_port, gateway_port=gateway_port, reset=reset
        )
        directory.make_run_dir()
    except StartRefused as refusal:
        raise Failure(refusal.reason, refusal.message, refusal.exit_code) from refusal
    announcer = Announcer(directory, began)
    code = _detach(directory, names, announcer) if detach else _run(directory, names, announcer)
    raise typer.Exit(code)


def down(
    data_dir: DataDirOption = None,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for calls in flight.")] = False,
) -> None:
    """Stop what `krt up --detach` started, after calls in flight. The data stays.

    \b
    Example:
      krt down --now
    """
    path = _found(data_dir)
    pid = datadir.holder(path)
    if pid is None:
        say(f"nothing runs on {path}; {OTHER_DIRECTORY}")
        return
    began = told = time.monotonic()
    for _ in range(2 if now else 1):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(DOWN_POLL_SECONDS)
    while datadir.is_locked(path):
        moment = time.monotonic()
        if now and moment - began > DOWN_NOW_SECONDS:
            raise Failure("StillRunning", f"something of {path} still runs (pid {pid})", OTHER)
        if moment - told > PROGRESS_AFTER_SECONDS * (5 if told > began else 1):
            told = moment
            say("waiting for calls in flight (krt down --now ends them)")
        time.sleep(DOWN_POLL_SECONDS)


def status(data_dir: DataDirOption = None, output: OutputOption = Format.TABLE) -> None:
    """Show what runs on this machine: processes, ports, versions, health, and how strongly functions are isolated.

    \b
    Example:
      krt status -o json
    """
    from controlplane.cli.machine import describe

    path = _found(data_dir)
    state = datadir.read_state(path)
    if state is None or not datadir.is_locked(path):
        message = f"nothing runs on {path}; start it with krt up"
        raise Failure("NotRunning", message, CANNOT_CONNECT, hint=OTHER_DIRECTORY)
    found = describe(path, state)
    if output in (Format.JSON, Format.YAML):
        print_object(found, output)
        return
    if output is Format.NAME:
        for process in found["processes"]:
            emit(process["name"])
        return
    for name in ("dataDir", "kubeconfig", "gateway", "api", "version", "health"):
        emit(f"{name + ':':<12}{found[name]}")
    emit(f"{'isolation:':<12}{found['isolation']['level']}: {found['isolation']['message']}")
    emit("")
    columns = ("name", "state", "pid", "restarts", "since", "memory", "health")
    rows = [[str(process[column]) for column in columns] for process in found["processes"]]
    print_table([column.upper() for column in columns], rows)


class Announcer:
    """Prints what a human waits for. Lines for programs go to stdout, everything else to stderr."""

    def __init__(self, directory: DataDir, began: float) -> None:
        self._directory = directory
        self._began = began
        self._ready = False
        self.code = 0

    def __call__(self, notice: control.Notice) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more; the system runs on
            match notice:
                case control.Ready():
                    self._announce()
                case control.Failed():
                    self.code = OTHER
                    say(Failure(notice.reason, notice.message).line())
                case control.Progress():
                    if self._ready or time.monotonic() - self._began >= PROGRESS_AFTER_SECONDS:
                        say(notice.text)
                case control.Prepared():
                    pass

    def _announce(self) -> None:
        if self._ready:
            say("healed: the supervisor was started again and everything is ready")
            return
        self._ready = True
        emit(str(self._directory.kubeconfig))
        emit(f"https://127.0.0.1:{self._directory.config.gateway_port}")
        emit(f"export KUBECONFIG={shlex.quote(str(self._directory.kubeconfig))}")
        emit(f"ready in {time.monotonic() - self._began:.1f} s: krt run --help says how to go on")


def _directory(data_dir: Path | None) -> Path:
    from controlplane.cli.session import data_directory

    return (data_dir or data_directory()).expanduser().absolute()


def _found(data_dir: Path | None) -> Path:
    """The directory of a system that was started before: without a word about it, the one whose kubeconfig every other
    command follows."""
    if data_dir is None and not os.environ.get("KRUNTIMES_DATA_DIR"):
        first = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
        if first and (path := datadir.of_kubeconfig(Path(first))) is not None:
            return path
    return _directory(data_dir)


def _run(directory: DataDir, runtimes: tuple[str, ...], observe: Callable[[control.Notice], None]) -> int:
    """Be the parent, until everything is over."""
    from controlplane.embedded.parent import Parent
    from controlplane.embedded.topology import WARM_MODULES, processes, version

    def prepare() -> None:
        from controlplane.embedded.credentials import prepare

        prepare(directory.path, directory.config)

    specs = processes(directory.path, directory.config, runtimes, os.environ)
    parent = Parent(directory, specs, warm=WARM_MODULES, version=version(), prepare=prepare, observe=observe)
    return parent.run()


def _detach(directory: DataDir, runtimes: tuple[str, ...], announcer: Announcer) -> int:
    """Fork the parent into a session of its own and pass on what it says until it is ready or has failed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output = processes.open_log(directory.logs / "up.log")

    def body() -> int:
        directory.hold()
        return _run_detached(directory, runtimes, theirs)

    keep = (directory.lock, theirs.fileno())
    pid = processes.fork_child(body, keep, output, title="up", outlive_parent=True)
    theirs.close()
    os.close(output)
    directory.close()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while data := ours.recv(control.CONTROL_MESSAGE_MAX_BYTES):
            notice = control.decode_notice(data)
            announcer(notice)
            if isinstance(notice, control.Ready):
                return 0
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        raise
    os.waitpid(pid, 0)
    return announcer.code or OTHER


def _run_detached(directory: DataDir, runtimes: tuple[str, ...], channel: socket.socket) -> int:
    announcer = Announcer(directory, time.monotonic())

    def observe(notice: control.Notice) -> None:
        with contextlib.suppress(OSError):
            channel.send(control.encode(notice))
        announcer(notice)

    return _run(directory, runtimes, observe)
