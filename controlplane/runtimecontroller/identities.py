"""Removes a Runtime's identity and rights once neither the Runtime nor any Pod of it is left.

They are not the Runtime's garbage: its Pods drain after it is gone, and what moves their Runs is written with these
rights. Whoever restarts finds what is left over by the labels. `controller` says what is in use and when to look.
"""

import logging
from collections.abc import Callable
from typing import Final

from controlplane.kube.api import Kube
from controlplane.kube.errors import Conflict, KubeError, NotFound
from controlplane.kube.informer import Change
from controlplane.kube.resources import Kind
from controlplane.kube.types import PlainObject
from controlplane.runtimecontroller.objects import IDENTITY, object_name
from controlplane.runtimecontroller.template import RUNTIME_LABEL
from controlplane.tasks import Tasks
from controlplane.timers import CallLater

Key = tuple[str, str]
RETRY_S: Final = 5.0  # nobody waits for it

_log = logging.getLogger(__name__)


class Identities:
    """The accounts, roles and bindings of all Runtimes. `in_use` tells whether a Runtime, or a Pod of it, is there."""

    def __init__(self, *, kube: Kube, call_later: CallLater, tasks: Tasks, in_use: Callable[[Key], bool]) -> None:
        self._kube = kube
        self._call_later = call_later
        self._tasks = tasks
        self._in_use = in_use
        self._there: dict[Key, dict[str, str]] = {}
        self._removing: set[Key] = set()
        self._started = False

    def start(self) -> None:
        """Remove from now on: call it once the first lists are in."""
        self._started = True
        for key in list(self._there):
            self.look(key)

    def close(self) -> None:
        """Remove no more."""
        self._started = False

    def changed(self, kind: Kind[PlainObject], change: Change[PlainObject]) -> None:
        """One of the objects that `controller` makes changed or went."""
        obj = change.current or change.previous
        assert obj is not None
        name = obj.metadata.labels.get(RUNTIME_LABEL, "")
        if kind not in IDENTITY or obj.metadata.name != object_name(name):
            return
        key = (obj.metadata.namespace, name)
        if change.current is not None:
            self._there.setdefault(key, {})[kind.plural] = obj.metadata.uid
            self.look(key)
            return
        there = self._there.get(key, {})
        there.pop(kind.plural, None)
        if not there:
            self._there.pop(key, None)

    def removing(self, key: Key) -> bool:
        """Whether it is being removed: a new Runtime of that name is applied after that."""
        return key in self._removing

    def look(self, key: Key) -> None:
        """Remove it if it is there and nothing needs it."""
        if self._started and key in self._there and key not in self._removing and not self._in_use(key):
            self._removing.add(key)
            self._tasks.spawn(self._remove(key))

    async def _remove(self, key: Key) -> None:
        namespace, name = key
        try:
            for kind in IDENTITY:
                uid = self._there.get(key, {}).get(kind.plural)
                if uid is not None:
                    await self._delete(kind, namespace, object_name(name), uid)
        except KubeError as error:
            _log.warning("cannot remove the identity of Runtime %s: %s", name, error, extra={"namespace": namespace})
            self._call_later(RETRY_S, lambda: self.look(key))
        finally:
            self._removing.discard(key)

    async def _delete(self, kind: Kind[PlainObject], namespace: str, name: str, uid: str) -> None:
        try:
            await self._kube.delete(kind, namespace, name, uid=uid)
        except (NotFound, Conflict):
            return  # somebody was faster
