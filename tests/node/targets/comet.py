"""A process that flees: it forks and ends, for ever, each time in a session of its own."""

import os
from collections.abc import Mapping, Sequence


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
