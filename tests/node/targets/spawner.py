"""Stands for the node: spawns what `SPAWN` says once (lines `id target`), and writes each report to file `REPORTS`."""

import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from controlplane.embedded import spawning


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    assert environ is not None
    channel = socket.socket(fileno=int(environ["KRUNTIMES_SPAWNER_FD"]))
    channel.send(spawning.encode(spawning.Enumerate()))
    known: set[str] = set()
    while data := channel.recv(spawning.MESSAGE_MAX_BYTES):
        report = spawning.decode_report(data)
        with Path(environ["REPORTS"]).open("a") as reports:
            reports.write(f"{os.getpid()} {report}\n")
        match report:
            case spawning.Started(id=id) | spawning.Exited(id=id):
                known.add(id)
            case spawning.Enumerated():
                for line in environ["SPAWN"].splitlines():
                    id, target = line.split()
                    if id not in known:
                        log = str(Path(environ["LOGS"]) / f"{id}.log")
                        channel.send(spawning.encode(spawning.Spawn(id, target, dict(environ), log, id)))
            case spawning.Shutdown():
                for id in known:
                    channel.send(spawning.encode(spawning.Signal(id, signal.SIGTERM)))
                return 0
    return 1
