"""The Runtime Server's process: configuration from the environment, wiring, and a clean end. Nothing else lives here.

Started by the node (`krt up`) or as the `runtime` container's command; `python -m runtimes.server` is the same.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import resource
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import uvloop

from runtimes.bash.adapter import Bash
from runtimes.contract import jsonlog
from runtimes.contract.endpoint import Server, peer_credentials
from runtimes.contract.memory import keep_freed_buffers
from runtimes.contract.mux import Connection
from runtimes.python.adapter import Python
from runtimes.server.confinement import (
    MIB,
    WORKER_MEMORY_MIN_BYTES,
    WORKER_PROCESSES_DEFAULT,
    WORKER_PROCESSES_MIN,
    Confinement,
    default_memory_bytes,
    hidden_folders,
    is_user_code,
    isolation,
)
from runtimes.server.environment import links_folder, remove_leftovers, remove_tree
from runtimes.server.language import Language
from runtimes.server.pool import WORKER_AGE_MAX_S, WORKER_CALLS_MAX, WORKER_RSS_MAX_BYTES, Wear
from runtimes.server.service import Service
from runtimes.server.spawner import Spawner

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S: Final = 300.0
"""The longest invocation."""
OWNER_CLOSES_WITHIN_S: Final = 10.0
"""What runtimed has to close its epochs after this container was told to stop."""
OWNER_LOOK_S: Final = 0.5
GOODBYE_S: Final = 1.0
"""For the last answers to be read."""
_PR_SET_DUMPABLE: Final = 4


class Config(msgspec.Struct, frozen=True):
    """What the process is told, from the environment."""

    socket: Path
    work: Path
    language: str
    interpreter: str
    memory_bytes: int
    """Private memory of one process of user code."""
    processes: int
    """Processes and threads of one worker or task."""
    wear: Wear
    hidden: tuple[str, ...]
    """Folders that user code sees nothing of, beside those that follow from the rest."""
    short: Path | None
    """A folder with a short path, for links to temporary folders whose own is too long for sockets."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Config:
        """Raises ValueError, one sentence for each rule."""
        language = environ.get("KRUNTIMES_LANGUAGE", "python")
        config = cls(
            socket=Path(environ.get("KRUNTIMES_SOCKET", "/run/kruntimes/runtime.sock")),
            work=Path(environ.get("KRUNTIMES_WORK_DIR", "/work")),
            language=language,
            interpreter=environ.get("KRUNTIMES_INTERPRETER") or ("bash" if language == "bash" else "python3"),
            memory_bytes=_number(environ, "KRUNTIMES_WORKER_MEMORY_MIB", default_memory_bytes() // MIB) * MIB,
            processes=_number(environ, "KRUNTIMES_WORKER_PROCESSES", WORKER_PROCESSES_DEFAULT),
            wear=Wear(
                calls=_number(environ, "KRUNTIMES_WORKER_CALLS", WORKER_CALLS_MAX),
                age_s=_number(environ, "KRUNTIMES_WORKER_AGE_SECONDS", int(WORKER_AGE_MAX_S)),
                rss_bytes=_number(environ, "KRUNTIMES_WORKER_RSS_MIB", WORKER_RSS_MAX_BYTES // MIB) * MIB,
            ),
            hidden=tuple(path for path in environ.get("KRUNTIMES_HIDDEN", "").split(os.pathsep) if path),
            short=Path(environ["KRUNTIMES_SHORT_DIR"]) if environ.get("KRUNTIMES_SHORT_DIR") else None,
        )
        config.validate()
        return config

    def validate(self) -> None:
        if self.language not in ("python", "bash"):
            raise ValueError(f"KRUNTIMES_LANGUAGE is {self.language!r}; it must be python or bash.")
        if not self.work.is_dir():
            raise ValueError(f"KRUNTIMES_WORK_DIR {self.work} is not a folder.")
        if not self.socket.parent.is_dir():
            raise ValueError(f"KRUNTIMES_SOCKET {self.socket} is not in a folder that exists.")
        if len(os.fsencode(self.socket)) > 107:
            raise ValueError(f"KRUNTIMES_SOCKET {self.socket} is longer than the 107 bytes of a socket's path.")
        if self.memory_bytes < WORKER_MEMORY_MIN_BYTES:
            raise ValueError(f"KRUNTIMES_WORKER_MEMORY_MIB is at least {WORKER_MEMORY_MIN_BYTES // MIB}.")
        if self.wear.calls < 1:
            raise ValueError("KRUNTIMES_WORKER_CALLS is at least 1.")
        if self.processes < WORKER_PROCESSES_MIN:
            raise ValueError(f"KRUNTIMES_WORKER_PROCESSES is at least {WORKER_PROCESSES_MIN}.")

    def confinement(self) -> Confinement:
        return Confinement(
            hidden=hidden_folders(self.work, self.socket, self.hidden),
            interpreter=self.language == "python",
            memory_bytes=self.memory_bytes,
            processes=self.processes,
        )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{name} is {text[:64]!r}; it must be a whole number.")
    return int(text) if text else default


async def serve(config: Config) -> None:
    """Run until SIGTERM or SIGINT, then drain. Raises OSError when the socket or the interpreter cannot be had."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _become_unreadable()
    remove_leftovers(config.work)
    language: Language = (
        Bash(config.interpreter, config.work) if config.language == "bash" else Python(config.interpreter)
    )
    spawner = Spawner(language.interpreter, config.confinement(), label=str(config.work))
    await spawner.start()
    links = links_folder(config.short, config.work) if config.short is not None else None
    service = Service(language=language, spawner=spawner, work=config.work, wear=config.wear, links=links)
    if links is not None:
        service.keep_modes(links)

    def refuse_user_code(connection: Connection) -> None:
        caller = peer_credentials(connection)[0]  # 0: it is in a container whose processes are not seen from here.
        if caller and is_user_code(caller, os.getpid()):
            raise PermissionError("user code may not call the Runtime Server")

    server = Server(service.handle, on_connect=refuse_user_code)
    await server.listen_unix(config.socket, mode=0o660)
    service.keep_modes(config.socket)
    logger.info(
        "serving",
        extra={
            "language": language.name,
            "interpreter": spawner.version,
            "instance": service.instance_id,
            "isolation": isolation(spawner.landlock_abi).level,
        },
    )
    await stop.wait()
    logger.info("stopping")
    await owner_has_closed(service, server)
    await service.drain(DRAIN_TIMEOUT_S)
    await server.drain(timeout=GOODBYE_S)
    await spawner.stop()
    config.socket.unlink(missing_ok=True)
    if links is not None:
        remove_tree(links)


def _become_unreadable() -> None:
    """Requests of all functions are in this memory: no other process of this user may look into it."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


async def owner_has_closed(service: Service, server: Server) -> None:
    """In a Pod that ends, this container is told first: runtimed moves its Runs and closes their epochs, and until
    then calls are served. Returns when nothing is open, when nobody is connected, or when runtimed took too long.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + OWNER_CLOSES_WITHIN_S
    while service.busy and server.connections and loop.time() < until:
        await service.wait_for_release(OWNER_LOOK_S)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Entry point. Takes no arguments; returns the exit status: 0 stopped, 1 could not serve, 2 bad configuration."""
    jsonlog.setup("runtime")
    try:
        config = Config.read(os.environ if environ is None else environ)
    except ValueError as error:
        logger.error("%s", error)
        return 2
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    keep_freed_buffers()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config))
    except (OSError, TimeoutError) as error:
        logger.error("%s", error)
        return 1
    return 0
