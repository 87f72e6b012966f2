"""What a process of the invoke path asks of the kernel before it holds anything.

Callers' tokens, our own key and everybody's requests are in its memory: none of it may reach a core file, and no other
process of the same user (on one machine that may be a function) may read it or attach. And it holds many sockets.
Next: the mains of gateway and runtimed call `harden` once.
"""

import ctypes
import resource
from typing import Final

DESCRIPTORS_MAX: Final = 65_536
"""Enough for every connection that our limits allow; more only costs what sizes tables by it."""

_PR_SET_DUMPABLE: Final = 4


def harden() -> None:
    """Be unreadable to others, leave no core file, and have as many descriptors as the hard limit gives."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
