"""Follows the installation's Secret: takes what it holds, and does what an administrator asks of it by annotation.

    kubectl annotate secret kruntimes-pki -n kruntimes-system kruntimes.io/rotate=intermediate | root | finish

`intermediate`: a new key signs from now on, and every leaf is renewed. `root`: the same under a new root, while the old
one stays trusted. `finish`: the old root is trusted no more. Every control plane adopts; the one that leads also acts,
and says what it did in `kruntimes.io/rotated`, or why not in `kruntimes.io/rotation-refused`. On one machine the Secret
is empty and the installation stays in its folder; `krt up` finishes there when it starts. How roots follow one another
is in `roots`; holders of certificates notice by the published text (`controlplane.kube.certificates`).
"""

import asyncio
import base64
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

from controlplane.kube.api import Kube
from controlplane.kube.certificates import LOOK_S
from controlplane.kube.clock import Clock
from controlplane.kube.errors import Invalid, KubeError
from controlplane.kube.informer import Change, Informer
from controlplane.kube.resources import SECRETS
from controlplane.kube.types import Secret
from controlplane.pki.building import PkiError
from controlplane.pki.ca import ROOT_FILE, ROOT_KEY_FILE, Authority, adopt_root
from controlplane.pki.installation import material
from controlplane.pki.steps import files, rotated

ASKED: Final = "kruntimes.io/rotate"
DONE: Final = "kruntimes.io/rotated"
REFUSED: Final = "kruntimes.io/rotation-refused"

RETRY_S: Final = 5.0

_log = logging.getLogger(__name__)


class Rotation:
    """One per control plane, over a folder that `open_installation` has filled. `lead`: this one acts."""

    def __init__(self, kube: Kube, clock: Clock, *, namespace: str, name: str, folder: Path) -> None:
        self._kube = kube
        self._clock = clock
        self._folder = folder
        self._secret: Secret | None = None
        self._adopted = files(folder)
        self._leads = False
        self._asked = asyncio.Event()
        self._informer = Informer(
            kube, SECRETS, namespace=namespace, fields=f"metadata.name={name}", on_change=self._changed, clock=clock
        )

    def lead(self) -> None:
        """This control plane acts on what is asked, from here on."""
        self._leads = True
        self._asked.set()

    async def run(self) -> None:
        """Follow and act, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._informer.run())
            group.create_task(self._act())

    def _changed(self, change: Change[Secret]) -> None:
        self._secret = change.current
        if self._secret is None:
            _log.error("the installation's Secret is gone: what it held last is used on")
            return
        self._asked.set()
        if not self._secret.data:
            return
        try:
            found = material(self._secret)
            if found != self._adopted:
                adopt_root(self._folder, *found, clock=self._clock)
                self._adopted = found
                _log.info("signing under what the installation's Secret holds now")
        except (PkiError, OSError) as error:
            _log.error("what the installation's Secret holds cannot be used: %s", error)

    async def _act(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            secret = self._secret
            if secret is None or not self._leads or ASKED not in secret.metadata.annotations:
                continue
            try:
                await self._answer(secret, secret.metadata.annotations[ASKED])
            except Invalid:
                _log.info("the installation's Secret has changed meanwhile: its watch tells the rest")
            except KubeError as error:
                _log.warning("a rotation is not written yet: %s", error)
                await asyncio.sleep(RETRY_S)
                self._asked.set()

    async def _answer(self, secret: Secret, asked: str) -> None:
        """Write what was asked for, or why not; both take the request away. Raises KubeError."""
        now = datetime.fromtimestamp(self._clock.now_us() // 1_000_000, UTC)
        metadata = secret.metadata
        data = secret.data
        try:
            if data:
                certificate, key = rotated(material(secret), asked, now)
                data = {**data, ROOT_FILE: _encoded(certificate), ROOT_KEY_FILE: _encoded(key)}
            else:
                self._rotate_folder(asked, now)
        except (PkiError, OSError) as error:
            _log.warning("a rotation is refused: %s", error)
            notes = {REFUSED: f"{asked}: {error}"}
        else:
            notes = {DONE: f"{asked} {now:%Y-%m-%dT%H:%M:%SZ}"}
        kept = {name: text for name, text in metadata.annotations.items() if name not in (ASKED, DONE, REFUSED)}
        ops: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.resource_version},
            {"op": "add", "path": "/metadata/annotations", "value": kept | notes},
            {"op": "add", "path": "/data", "value": data},
        ]
        await self._kube.json_patch(SECRETS, metadata.namespace, metadata.name, ops)
        _log.info("rotation: %s", asked)

    def _rotate_folder(self, asked: str, now: datetime) -> None:
        """The same for an installation that is kept in the folder alone. Raises PkiError, OSError."""
        if asked == "finish":
            raise PkiError("stop krt up and start it again: it finishes then")
        found = files(self._folder)
        adopt_root(self._folder, *rotated(found, asked, now), clock=self._clock)


async def follow_published(authority: Authority, tell: Callable[[str], None]) -> NoReturn:
    """Tell the published roots whenever they have changed, until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            tell(authority.published.decode())
        except PkiError as error:
            _log.error("the published roots cannot be read: %s", error)


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
