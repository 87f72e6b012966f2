"""The Runtime Server's process: configuration from the environment, wiring, and a clean end. Nothing else lives here.

Started by the node (`krt up`) or as the `runtime` container's command; `python -m runtimes.server` is the same.
"""

from __future__ import annotations

import asyncio
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
from runtimes.contract.endpoint import Server
from runtimes.python.adapter import Python
from runtimes.server.environment import remove_leftovers
from runtimes.server.language import Language
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


class Config(msgspec.Struct, frozen=True):
    """What the process is told, from the environment."""

    socket: Path
    work: Path
    language: str
    interpreter: str

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Config:
        """Raises ValueError, one sentence for each rule."""
        language = environ.get("KRUNTIMES_LANGUAGE", "python")
        config = cls(
            socket=Path(environ.get("KRUNTIMES_SOCKET", "/run/kruntimes/runtime.sock")),
            work=Path(environ.get("KRUNTIMES_WORK_DIR", "/work")),
            language=language,
            interpreter=environ.get("KRUNTIMES_INTERPRETER") or ("bash" if language == "bash" else "python3"),
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


async def serve(config: Config) -> None:
    """Run until SIGTERM or SIGINT, then drain. Raises OSError when the socket or the interpreter cannot be had."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    remove_leftovers(config.work)
    language: Language = Bash(config.interpreter) if config.language == "bash" else Python(config.interpreter)
    spawner = Spawner(language.interpreter)
    await spawner.start()
    service = Service(language=language, spawner=spawner, work=config.work)
    server = Server(service.handle)
    await server.listen_unix(config.socket, mode=0o660)
    logger.info(
        "serving", extra={"language": language.name, "interpreter": spawner.version, "instance": service.instance_id}
    )
    await stop.wait()
    logger.info("stopping")
    await owner_has_closed(service, server)
    await service.drain(DRAIN_TIMEOUT_S)
    await server.drain(timeout=GOODBYE_S)
    await spawner.stop()
    config.socket.unlink(missing_ok=True)


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
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config))
    except (OSError, TimeoutError) as error:
        logger.error("%s", error)
        return 1
    return 0
