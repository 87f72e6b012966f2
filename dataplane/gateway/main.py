"""The gateway's process: configuration in, signals to a stop, exit code out. It only wires."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import uvloop

from controlplane.kube.clock import SystemClock
from controlplane.kube.kubeconfig import ConfigError as KubeConfigError
from dataplane.gateway.config import Config, ConfigError, from_environ, of_worker
from dataplane.gateway.process import serve
from dataplane.gateway.workers import run_workers
from dataplane.wire.hardening import harden
from runtimes.contract import jsonlog
from runtimes.contract.memory import keep_freed_buffers

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. 0 after a drain, 2 when the environment is wrong, 1 otherwise."""
    jsonlog.setup("gateway")
    if sys.argv[1:] if argv is None else argv:
        log.error("the gateway takes no arguments: it is configured by its environment")
        return 2
    try:
        config = from_environ(os.environ if environ is None else environ)
    except ConfigError as error:
        log.error("%s", error)
        return 2
    if config.workers > 1:
        return run_workers(config.workers, lambda number: run_one(of_worker(config, number)))
    return run_one(config)


def run_one(config: Config) -> int:
    """One gateway process, from start to drain."""
    harden()
    keep_freed_buffers()

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(config, SystemClock(), stop)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except (KubeConfigError, OSError) as error:
        log.error("the gateway cannot start: %s", error)
        return 1
    except Exception:
        log.exception("the gateway ends by a defect")
        return 1
    return 0
