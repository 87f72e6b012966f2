"""A process that waits for SIGTERM and then ends with 0. `SLOW_STOP` makes it take that many seconds."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.sigwait({signal.SIGTERM})
    time.sleep(float((environ or {}).get("SLOW_STOP", "0")))
    sys.stdout.write("stopped\n")
    return 0
