"""A process that says why and ends with 3."""

import sys
from collections.abc import Mapping, Sequence


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    sys.stderr.write("no luck today\n")
    return 3
