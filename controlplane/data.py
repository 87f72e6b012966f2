"""Where the files that ship with the project are: CRDs and examples, in a checkout and in an installed wheel alike."""

from pathlib import Path
from typing import Final

_PACKAGED: Final = Path(__file__).parent / "_data"
_CHECKOUT: Final = Path(__file__).parent.parent


def crd_directory() -> Path:
    """The directory of the generated CRD manifests (`*.yaml`)."""
    packaged = _PACKAGED / "crds"
    return packaged if packaged.is_dir() else _CHECKOUT / "deploy" / "crds"


def examples_directory() -> Path:
    """The directory of the example manifests."""
    packaged = _PACKAGED / "examples"
    return packaged if packaged.is_dir() else _CHECKOUT / "examples"
