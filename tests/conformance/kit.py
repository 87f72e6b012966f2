"""The built-in Runtime Servers as processes; what the suite does with them is `runtimes.conformance.kit`, given on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtimes.conformance.dialects import Dialect
from runtimes.conformance.kit import (
    POD,
    Bench,
    alive,
    descendants,
    failing,
    folder_mode,
    until,
    until_free,
    until_held,
)
from runtimes.contract.client import RuntimeClient

__all__ = [
    "POD",
    "Bench",
    "RuntimeProcess",
    "alive",
    "descendants",
    "failing",
    "folder_mode",
    "until",
    "until_free",
    "until_held",
]

ROOT = Path(__file__).parent.parent.parent


@dataclass
class RuntimeProcess:
    """One server process. `folder` is short: the path of a unix socket has at most 107 bytes."""

    dialect: Dialect
    folder: Path
    interpreter: str = ""
    process: subprocess.Popen[bytes] | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    """Beside what every server of the suite is told."""

    @property
    def socket(self) -> Path:
        return self.folder / "s"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "KRUNTIMES_SOCKET": str(self.socket),
            "KRUNTIMES_WORK_DIR": str(self.folder),
            "KRUNTIMES_LANGUAGE": self.dialect.name,
            "KRUNTIMES_INTERPRETER": self.interpreter,
            "SECRET_OF_THE_SERVER": "must not reach user code",
            **self.environ,
        }
        log = (self.folder / "server.log").open("ab")
        with log:
            self.process = subprocess.Popen([sys.executable, "-m", "runtimes.server"], env=environ, stderr=log, cwd="/")
        self.started.append(self.process)

    def homes(self) -> list[Path]:
        """The private folders of Runs that are on disk."""
        return list(self.folder.glob("runs/*/*/home"))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """End it as the node does; returns its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    async def connect(self) -> RuntimeClient:
        assert self.process is not None
        until = time.monotonic() + 20
        while True:
            try:
                return await RuntimeClient.connect(self.socket)
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    pytest.fail("the server did not start: " + (self.folder / "server.log").read_text())
                await asyncio.sleep(0.01)
