"""One Run of the loop: as last seen, what waits for it, and the task that is writing for it.

Only `loop` uses it. The inbox is bounded: it may lose decisions, which their takers take again, but never the newest
object nor a removal.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from controlplane.kube.types import RunObject
from statemachine.events import Event, Removed
from statemachine.run import Run

INBOX_MAX: Final = 64  # objects and decisions queued for one Run: a write takes milliseconds, so this is far too many

Item = RunObject | Event


class Cell:
    """See the file's docstring. `version` is the resourceVersion of `obj`, -1 before the first adoption."""

    __slots__ = ("failures", "inbox", "obj", "run", "seen_us", "task", "version")

    def __init__(self, obj: RunObject) -> None:
        self.obj = obj
        self.run: Run | None = None
        self.version = -1
        self.inbox: deque[Item] = deque()
        self.task: asyncio.Task[None] | None = None
        self.failures = 0  # in a row, of writes for this Run
        self.seen_us = 0  # first sight, while the Run still waits for its first Pod

    def receive(self, item: Item) -> Sequence[Event]:
        """Queue an item. Returns the decisions that had to go because the inbox was full."""
        dropped = self._make_room() if len(self.inbox) >= INBOX_MAX else ()
        self.inbox.append(item)
        return dropped

    def _make_room(self) -> Sequence[Event]:
        """Objects are states, so the newest one says it all; of the decisions the older half stays."""
        objects = [item for item in self.inbox if isinstance(item, RunObject)]
        removals = [item for item in self.inbox if isinstance(item, Removed)]
        decisions = [item for item in self.inbox if not isinstance(item, RunObject | Removed)]
        kept, dropped = decisions[: INBOX_MAX // 2], decisions[INBOX_MAX // 2 :]
        self.inbox.clear()
        self.inbox.extend((*objects[-1:], *kept, *removals))
        return dropped
