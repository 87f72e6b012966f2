"""The steps of a rotation: what is published and kept before, in; what is after, out. No process and no API in it.

`rotation` takes them when they are asked for, `krt up` takes the last one when it starts.
"""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from controlplane.kube.clock import Clock
from controlplane.pki.building import BACKDATED, PkiError
from controlplane.pki.ca import ROOT_FILE, ROOT_KEY_FILE, adopt_root, published
from controlplane.pki.roots import Roots

OVERLAP_MIN: Final = timedelta(minutes=10)  # kubelets bring the new root to every Pod within two, owners to every Run

_log = logging.getLogger(__name__)


def rotated(found: tuple[bytes, bytes], asked: str, now: datetime) -> tuple[bytes, bytes]:
    """What is to be published and kept once that was done. Raises PkiError: it cannot be done (yet)."""
    roots = Roots.read(found[1], ROOT_KEY_FILE, beside=found[0])
    match asked:
        case "intermediate":
            after = roots
        case "root":
            after = roots.succeeded(now)
        case "finish":
            after = finished(roots, now)
        case _:
            raise PkiError("it must be intermediate, root or finish")
    return published(after, note(asked, now)), after.pem


def finished(roots: Roots, now: datetime) -> Roots:
    """The signing root alone. Raises PkiError while somebody may not have heard of it yet."""
    if not roots.older:
        raise PkiError("no root is being replaced")
    since = roots.certificate.not_valid_before_utc + BACKDATED
    if now < since + OVERLAP_MIN:
        raise PkiError(f"not before {since + OVERLAP_MIN:%Y-%m-%dT%H:%M:%SZ}: some may not have heard of the new root")
    return roots.alone()


def note(asked: str, now: datetime) -> str:
    """The line above the published roots: another one for each rotation."""
    return f"kruntimes: {asked}, {now:%Y-%m-%dT%H:%M:%SZ}; certificates from before are renewed"


def files(folder: Path) -> tuple[bytes, bytes]:
    """What is published and kept in a folder. Raises OSError."""
    return (folder / ROOT_FILE).read_bytes(), (folder / ROOT_KEY_FILE).read_bytes()


def finish_in(folder: Path, *, clock: Clock) -> None:
    """Trust the older root no more, in an installation that nobody uses now, if all had the time to hear of the new
    one. Raises PkiError, OSError."""
    now = datetime.fromtimestamp(clock.now_us() // 1_000_000, UTC)
    try:
        after = rotated(files(folder), "finish", now)
    except PkiError as error:
        _log.debug("nothing is finished: %s", error)
        return
    adopt_root(folder, *after, clock=clock)
