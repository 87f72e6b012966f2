"""The command line of the chart's Jobs: `apply-crds FOLDER`, or `farewell SECONDS`. Only wiring."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import uvloop

from controlplane.hooks.crds import apply_crds
from controlplane.hooks.farewell import Farewell, NotDone
from controlplane.kube.client import KubeClient
from controlplane.kube.errors import KubeError
from controlplane.kube.kubeconfig import ConfigError
from runtimes.contract import jsonlog

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Do it. Returns the exit status: 0 done, 1 failed (Helm then stops), 2 usage."""
    jsonlog.setup("hooks")
    arguments = list(sys.argv[1:] if argv is None else argv)
    env = os.environ if environ is None else environ
    match arguments:
        case ["apply-crds", folder]:
            seconds = 0
        case ["farewell", text] if text.isdigit():
            folder, seconds = "", int(text)
        case _:
            _log.error("usage: apply-crds FOLDER | farewell SECONDS")
            return EXIT_USAGE
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_do(folder, seconds, env))
    except (KubeError, ConfigError, NotDone, OSError) as error:
        _log.error("not done: %s", error)
        return EXIT_FAILED
    return EXIT_OK


async def _do(folder: str, seconds: int, environ: Mapping[str, str]) -> None:
    kubeconfig = environ.get("KUBECONFIG") or None
    async with await KubeClient.connect(kubeconfig, environ=environ, user_agent="kruntimes-hooks") as kube:
        if folder:
            await apply_crds(kube, Path(folder))
        else:
            farewell = Farewell(kube, namespace=environ.get("POD_NAMESPACE", "kruntimes-system"), drain_s=seconds)
            await farewell.run()
