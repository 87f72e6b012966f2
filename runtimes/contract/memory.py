"""How a process of the invoke path keeps the memory that bodies use.

By default glibc maps each buffer above 128 KiB afresh and gives it back when it is freed, so that a body of 1 MiB costs
some thousand page faults on its way through one process: a third of its time there. Next: the mains call it once.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 32 * 1024 * 1024
"""Freed memory that stays at the top of the heap: some large bodies in flight at once."""
MAPPED_BYTES: Final = 8 * 1024 * 1024
"""A buffer above this is still mapped for itself: more than any body with its frames."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def give_back() -> None:
    """Return free memory to the kernel, wherever in the heap it is: after a flood of large bodies has gone, which
    leaves holes that are far below the top. It takes some milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(KEPT_BYTES)


def keep_freed_buffers() -> None:
    """Serve large buffers from the heap and keep KEPT_BYTES of it. Where the C library knows no mallopt: nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
