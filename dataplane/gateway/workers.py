"""Several gateway processes on one port: a parent that forks them, passes signals on and replaces what dies.

Here: processes and nothing of the gateway; the parent has no loop, no thread and no socket. The kernel deals new
connections out among the listeners (SO_REUSEPORT). Each worker has its own projection, caches and pool: nothing is
shared, so each asks the Kubernetes API for itself. Next: `main` calls `run_workers` when more than one is wanted.
"""

import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Final

STARTING_S: Final = 5.0  # a worker that ends earlier than this cannot start: its successor waits
RESTART_S: Final = 1.0  # before that successor

log = logging.getLogger(__name__)


def run_workers(count: int, work: Callable[[int], int]) -> int:
    """Run `work(number)` in `count` children until SIGTERM or SIGINT, which they get too; a child that ends before is
    replaced. 0 when every child ended with 0 after the signal, else 1."""
    children: dict[int, tuple[int, float]] = {}
    stopping = False
    codes: list[int] = []

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for pid in children:
            os.kill(pid, signal.SIGTERM)

    def start(number: int) -> None:
        signals = (signal.SIGTERM, signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # no signal meets a child that is not known yet
        pid = os.fork()
        if pid == 0:
            for one in signals:
                signal.signal(one, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            code = 1
            try:
                code = work(number)
            finally:
                os._exit(code)
        children[pid] = number, time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        for number in range(count):
            start(number)
        while children:
            pid, status = os.waitpid(-1, 0)
            ended = children.pop(pid, None)
            if ended is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            number, since = ended
            if stopping:
                codes.append(code)
                continue
            log.error("a gateway worker ended", extra={"worker": number, "exitCode": code})
            if time.monotonic() - since < STARTING_S:
                time.sleep(RESTART_S)
            if not stopping:
                start(number)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return int(any(codes))
