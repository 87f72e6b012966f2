"""The machine that the numbers depend on: what it is, and how much of it others took while they were measured.

A ratio of two rounds in turns stands a busy machine better than a time does, but none stands it well: where others took
more than BUSY_SHARE of the processors, a missed budget says nothing about us, and a verdict must not say so.
"""

import os
import platform
from pathlib import Path
from typing import Any, Final

from tests.e2e.embedded import descendants

BUSY_SHARE: Final = 0.1
"""Of all processors, taken by processes that are none of the benchmark's."""


def facts() -> dict[str, Any]:
    """What the numbers depend on."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
    }


class Meter:
    """From its making on: what share of the processors others took. The benchmark is this process and all below it."""

    def __init__(self) -> None:
        self._busy, self._all = _machine_ticks()
        self._ours = _our_ticks()

    def others(self) -> float:
        """Between 0 and 1."""
        busy, everything = _machine_ticks()
        passed = everything - self._all
        theirs = (busy - self._busy) - (_our_ticks() - self._ours)
        return max(0.0, theirs / passed) if passed else 0.0


def _machine_ticks() -> tuple[int, int]:
    """Busy ones, and all."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, idle, waiting, irq, soft, stolen = map(int, words)
    busy = user + nice + system + irq + soft + stolen
    return busy, busy + idle + waiting


def _our_ticks() -> int:
    """Of this process and those below it, ended ones too."""
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))
    return total
