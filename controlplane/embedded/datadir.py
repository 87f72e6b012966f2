"""The data directory of one machine: who may use it, its lock, and what is remembered in it.

Lives here: opening, locking, emptying and describing DIR, and the choice of ports. May not live here: processes.
`controlplane.cli.up` opens it, `parent` holds it while the system runs, `topology` derives paths from it.

    DIR/lock          held (flock) by parent and supervisor for as long as anything of this directory runs
    DIR/config.json   what a later start takes up again: ports and the Pod network; its presence marks DIR as ours
    DIR/status.json   what runs now (`control.SystemState`)
"""

import contextlib
import errno
import fcntl
import os
import random
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from controlplane.embedded.control import SystemState

FORMAT: Final = 1
"""Of the layout of DIR. A directory of a higher format is refused, never guessed at."""

DEFAULT_API_PORT: Final = 16443
DEFAULT_GATEWAY_PORT: Final = 18443

LOCK_WAIT_SECONDS: Final = 10.0
"""How long a start waits for a directory whose parent is dead but whose processes are still being ended."""

LOCK_RACE_SECONDS: Final = 0.3
"""`krt status` holds the lock for a moment while it looks; a start that meets it tries again for this long."""

LOCK_RETRY_SECONDS: Final = 0.05

RUN_DIR_BASE_MAX_BYTES: Final = 40
"""Where the folder for sockets is made; with its name, a Pod's and the socket's it has to stay below 108 bytes."""

RUN_DIR_PREFIX: Final = "krt-"

PICKED_PORTS: Final = range(20_000, 32_768)
"""Free ports are picked below Linux' ephemeral range, so that no outgoing connection takes one between two starts."""

OURS: Final = frozenset(
    {
        "lock",
        "config.json",
        "status.json",
        "kubeconfig",
        "pki",
        "tokens",
        "logs",
        "journal",
        "pods",
        "artifacts",
        "cache",
    }
)
"""Names at the top of DIR that belong to us, beside `state.db*`; a reset removes these and nothing else."""


class StartRefused(Exception):
    """A start (or stop) that cannot go on, for a reason that the user can act on. Nothing was changed by us."""

    def __init__(self, reason: str, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What DIR remembers. `pod_network` is the first three octets of the loopback addresses that Pods get."""

    format: int
    api_port: int
    gateway_port: int
    signer_port: int
    pod_network: str
    run_dir: str = ""


class DataDir:
    """An opened and locked data directory. `close` releases the lock (the supervisor's copy holds on)."""

    def __init__(self, path: Path, lock: int, config: Config) -> None:
        self.path = path
        self.lock = lock
        self.config = config

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def write_state(self, state: SystemState) -> bool:
        """Replace DIR/status.json. False where a full disk keeps the old one, which is no reason to stop anything."""
        try:
            write_file(self.path / "status.json", msgspec.json.encode(state))
        except OSError:
            return False
        return True

    def hold(self) -> None:
        """Name this process as the one that holds the lock, after a fork."""
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, str(os.getpid()).encode(), 0)

    def make_run_dir(self) -> None:
        """A short private folder for sockets (their paths are bounded to 108 bytes), kept for the life of DIR unless
        the machine cleans it away. Raises StartRefused."""
        old = Path(self.config.run_dir) if self.config.run_dir else None
        with contextlib.suppress(OSError):
            if (
                old is not None
                and (found := old.lstat()).st_uid == os.geteuid()
                and found.st_mode & 0o177077 == 0o40000
            ):
                return
        try:
            made = tempfile.mkdtemp(prefix=RUN_DIR_PREFIX, dir=self._run_dir_base())
            self.config = msgspec.structs.replace(self.config, run_dir=made)
            save_config(self.path, self.config)
        except OSError as exc:
            raise StartRefused("RunDirectoryUnwritable", f"cannot make a folder for sockets: {exc}") from exc

    def _run_dir_base(self) -> Path:
        """DIR itself where its path is short, so that nothing of it is in a folder that functions share: what is hidden
        below /tmp hides the files that are made beside it later."""
        runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
        for base in (self.path, Path(runtime)):
            if len(os.fsencode(base)) <= RUN_DIR_BASE_MAX_BYTES and os.access(base, os.W_OK | os.X_OK):
                return base
        return Path("/tmp")

    def remove_run_dir(self) -> None:
        """At the end of everything: nothing listens there any more."""
        if self.config.run_dir:
            shutil.rmtree(self.config.run_dir, ignore_errors=True)

    def close(self) -> None:
        os.close(self.lock)


def default_path() -> Path:
    """`~/.kruntimes`."""
    return Path.home() / ".kruntimes"


def of_kubeconfig(path: Path) -> Path | None:
    """The data directory that this kubeconfig is of; None for any other file."""
    folder = path.expanduser().absolute().parent
    return folder if path.name == "kubeconfig" and (folder / "config.json").is_file() else None


def open_directory(path: Path, *, api_port: int | None, gateway_port: int | None, reset: bool) -> DataDir:
    """Make or take up the directory `path` and lock it. Ports: None takes the remembered one, else the default; 0 the
    remembered one, else a free one. Raises StartRefused; the directory is then as it was."""
    path = path.expanduser().absolute()
    _make(path)
    lock = _lock(path)
    try:
        _check_format(path)
        if reset:
            _empty(path)
        config = _configure(path, api_port, gateway_port)
        for name in ("logs", "tokens", "journal", "pods"):
            (path / name).mkdir(mode=0o700, exist_ok=True)
    except OSError as exc:
        os.close(lock)
        raise _unwritable(path, exc) from exc
    except StartRefused:
        os.close(lock)
        raise
    return DataDir(path, lock, config)


def read_state(path: Path) -> SystemState | None:
    """What DIR/status.json says, or None. It may be old: compare `start_ticks` before believing a pid."""
    try:
        return msgspec.json.decode((path / "status.json").read_bytes(), type=SystemState)
    except (OSError, msgspec.MsgspecError):
        return None


def is_locked(path: Path) -> bool:
    """True while something of this directory runs."""
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holder(path: Path) -> int | None:
    """The pid of the parent that runs on this directory; None if nothing runs. While a dead parent's processes are
    being ended the pid may be gone already."""
    if not is_locked(path):
        return None
    with contextlib.suppress(OSError, ValueError):
        return int((path / "lock").read_text())
    return None


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step, so that no reader sees half of it. Raises OSError; the old file then stays."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _make(path: Path) -> None:
    """The directory exists, is ours or empty, and only its owner may enter it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in os.scandir(path)}
        owner = path.stat().st_uid
    except FileExistsError as exc:
        raise StartRefused("DataDirectoryInvalid", f"{path} is not a directory; name another with --data-dir") from exc
    except OSError as exc:
        raise _unwritable(path, exc) from exc
    ours = "config.json" in names or not {name for name in names if name not in OURS}
    if not ours or (owner not in (os.geteuid(), 0) and os.geteuid() != 0):
        raise StartRefused(
            "DataDirectoryForeign", f"{path} holds something else than kruntimes' data; name another with --data-dir"
        )
    with contextlib.suppress(OSError):
        path.chmod(0o700)


def _lock(path: Path) -> int:
    """Hold DIR/lock. Waits while the parent is dead and its processes are being ended, refuses if it lives."""
    try:
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise _unwritable(path, exc) from exc
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            return fd
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            alive = holder.isdigit() and Path(f"/proc/{holder}").exists()
            if time.monotonic() >= began + (LOCK_RACE_SECONDS if alive else LOCK_WAIT_SECONDS):
                os.close(fd)
                raise StartRefused(
                    "AlreadyRunning",
                    f"krt up already runs on {path}{f' (pid {holder})' if alive else ''}; stop it with krt down",
                ) from None
            time.sleep(LOCK_RETRY_SECONDS)
        except OSError as exc:
            os.close(fd)
            raise _unwritable(path, exc) from exc


def _check_format(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        try:
            found = msgspec.json.decode((path / "config.json").read_bytes(), type=dict[str, object]).get("format")
        except msgspec.MsgspecError:
            found = None
        if found != FORMAT:
            raise StartRefused(
                "DataDirectoryInvalid",
                f"{path}/config.json is of format {found}, this version reads {FORMAT}; name another directory with "
                "--data-dir",
            )


def _empty(path: Path) -> None:
    for entry in list(os.scandir(path)):
        if entry.name == "lock" or not (entry.name in OURS or entry.name.startswith(("state.db", RUN_DIR_PREFIX))):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()


def _configure(path: Path, api_port: int | None, gateway_port: int | None) -> Config:
    old: Config | None = None
    with contextlib.suppress(FileNotFoundError):
        try:
            old = msgspec.json.decode((path / "config.json").read_bytes(), type=Config)
        except msgspec.MsgspecError as exc:
            raise StartRefused("DataDirectoryInvalid", f"{path}/config.json is damaged: {exc}") from exc
    taken: set[int] = set()
    api = _choose("api", api_port, old.api_port if old else 0, DEFAULT_API_PORT, taken)
    gateway = _choose("gateway", gateway_port, old.gateway_port if old else 0, DEFAULT_GATEWAY_PORT, taken)
    signer = _choose("signer", 0, old.signer_port if old else 0, 0, taken)
    network = old.pod_network if old else f"127.{random.randint(1, 254)}.{random.randint(1, 254)}"
    config = Config(
        format=FORMAT,
        api_port=api,
        gateway_port=gateway,
        signer_port=signer,
        pod_network=network,
        run_dir=old.run_dir if old else "",
    )
    save_config(path, config)
    return config


def save_config(path: Path, config: Config) -> None:
    """Remember `config` for the next start. Raises OSError."""
    write_file(path / "config.json", msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")


def _choose(what: str, wanted: int | None, remembered: int, default: int, taken: set[int]) -> int:
    port = wanted or remembered or (default if wanted is None else 0)
    if port and port in taken:
        raise StartRefused("PortInUse", f"port {port} is asked for twice; choose another {what} port", 2)
    if port and (problem := _bind_problem(port)) is not None:
        if wanted == 0:
            port = 0
        elif problem == errno.EACCES:
            raise StartRefused("PortNotAllowed", f"port {port} needs privileges; choose another with --{what}-port")
        else:
            raise StartRefused("PortInUse", f"port {port} is in use; choose another with --{what}-port (0 picks one)")
    if not port:
        port = next(p for p in random.sample(PICKED_PORTS, 512) if p not in taken and _bind_problem(p) is None)
    taken.add(port)
    return port


def _bind_problem(port: int) -> int | None:
    """The errno that listening on the loopback address would meet, or None."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError as exc:
            return exc.errno
    return None


def _unwritable(path: Path, exc: OSError) -> StartRefused:
    return StartRefused("DataDirectoryUnwritable", f"cannot write to {path}: {exc.strerror or exc}")
