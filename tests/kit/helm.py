"""Finds Helm: on the PATH, or the one that scripts/cluster keeps in its cache."""

import os
import shutil
from pathlib import Path
from typing import Final

CACHED: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kruntimes" / "cluster"


def find_helm() -> str | None:
    """Its path; None where there is none."""
    return shutil.which("helm") or next((str(path) for path in sorted(CACHED.glob("helm-v*"))), None)
