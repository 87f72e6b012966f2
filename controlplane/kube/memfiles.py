"""Files that exist in memory only, for libraries that read keys from paths and nowhere else."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """A path that this process can open while the context is open. Nothing is written to a disk."""
    descriptor = os.memfd_create("kruntimes", os.MFD_CLOEXEC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
