"""Image names that this machine can run: each maps to a built-in command.

Lives here: the table. May not live here: starting anything (`pod` does, next).
"""

from typing import Final

import msgspec

REGISTRY_PREFIX: Final = "kruntimes/"


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """A built-in command: `target` is a module with a `main`, `title` what `ps` shows, `env` what an image would set.

    `journal`: it keeps a journal, in a folder that it names after itself and its Pod."""

    target: str
    title: str
    env: dict[str, str] = {}
    journal: bool = False


IMAGES: Final[dict[str, Image]] = {
    "kruntimes/runtimed": Image(target="dataplane.runtimed.main", title="runtimed", journal=True),
    "kruntimes/python-runtime": Image(
        target="runtimes.server.main", title="python", env={"KRUNTIMES_LANGUAGE": "python"}
    ),
    "kruntimes/bash-runtime": Image(target="runtimes.server.main", title="bash", env={"KRUNTIMES_LANGUAGE": "bash"}),
}


def find(reference: str) -> Image | None:
    """The command for an image reference, whatever its registry, tag or digest; None for an image unknown here."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    name = f"{head}{slash}{last.partition(':')[0]}"
    for known, image in IMAGES.items():
        if name == known or name.endswith(f"/{known}"):
            return image
    return None


def unknown_message(reference: str) -> str:
    """Why an image is not run, and which ones are."""
    return f"image {reference!r} is not built into this machine; there are: {', '.join(IMAGES)}"
