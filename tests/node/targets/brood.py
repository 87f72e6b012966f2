"""A process that leaves strays: a daemon of its own session, reparented twice. Their pids go to the file `PIDS`."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    assert environ is not None
    file = Path(environ["PIDS"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with file.open("a") as out:
                out.write(f"{os.getpid()}\n")
            while True:
                time.sleep(3600)
        os._exit(0)
    while True:
        time.sleep(3600)
