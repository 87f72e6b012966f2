"""Which epochs are held, which were closed: the rules R1 and R2 of spec section 5, without any process or socket.

Pure: `service` asks before it acts, and performs what is returned (closing what a newer attempt supersedes). Of each
Run the highest closed attempt is remembered as its tombstone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from runtimes.contract.limits import HELD_MAX_COUNT, TOMBSTONES_MAX_COUNT
from runtimes.contract.messages import (
    ALREADY_EXISTS,
    FAILED_PRECONDITION,
    Epoch,
    ErrorHead,
)
from runtimes.contract.mux import CallError


class Holdable(Protocol):
    """What the registry keeps: a function or a task of one epoch."""

    @property
    def epoch(self) -> Epoch: ...

    @property
    def digest(self) -> str: ...

    @property
    def open(self) -> bool: ...


H = TypeVar("H", bound=Holdable)


class Registry(Generic[H]):
    """At most one open epoch of each Run; closed ones stay until `drop`, while they drain or keep a result."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], H] = {}
        self._tombstones: OrderedDict[str, int] = OrderedDict()

    def __iter__(self) -> Iterator[H]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def admit(self, epoch: Epoch, digest: str) -> H | None:
        """The holding that already is this epoch, or None when a new one may be made. Raises CallError otherwise.

        After None the caller closes `older(epoch)`, makes the new holding and calls `hold`, without waiting in between.
        """
        held = self.find(epoch)
        tombstone = self._tombstones.get(epoch.run_uid, 0)
        if epoch.attempt <= tombstone:
            raise _error(FAILED_PRECONDITION, f"{_name(epoch)} is closed (tombstone at attempt {tombstone})")
        if held is not None:
            if held.digest == digest:
                return held
            raise _error(ALREADY_EXISTS, f"{_name(epoch)} is held with another digest")
        newest = max((h.epoch.attempt for h in self._of(epoch.run_uid)), default=0)
        if epoch.attempt < newest:
            raise _error(FAILED_PRECONDITION, f"{_name(epoch)} is superseded by attempt {newest}")
        if len(self._held) >= HELD_MAX_COUNT:
            error = ErrorHead(reason="Overloaded", message=f"{HELD_MAX_COUNT} epochs are held", retry_after_ms=1000)
            raise CallError(error)
        return None

    def hold(self, holding: H) -> None:
        key = (holding.epoch.run_uid, holding.epoch.attempt)
        assert key not in self._held, "admit has said that there is none"
        self._held[key] = holding

    def find(self, epoch: Epoch) -> H | None:
        """The holding of exactly this epoch. Raises CallError when the attempt is held for another Pod UID (L3)."""
        held = self._held.get((epoch.run_uid, epoch.attempt))
        if held is not None and held.epoch.pod_uid != epoch.pod_uid:
            message = f"{_name(epoch)} is held for Pod {held.epoch.pod_uid}, not {epoch.pod_uid}"
            raise _error(FAILED_PRECONDITION, message)
        return held

    def older(self, epoch: Epoch) -> list[H]:
        """Open holdings of lower attempts of this Run."""
        return [h for h in self._of(epoch.run_uid) if h.open and h.epoch.attempt < epoch.attempt]

    def up_to(self, epoch: Epoch) -> list[H]:
        """All holdings of this Run at or below this attempt."""
        return [h for h in self._of(epoch.run_uid) if h.epoch.attempt <= epoch.attempt]

    def bury(self, epoch: Epoch) -> None:
        """Leave the tombstone: nothing at or below this attempt is ever admitted again."""
        highest = max(epoch.attempt, self._tombstones.pop(epoch.run_uid, 0))
        self._tombstones[epoch.run_uid] = highest
        while len(self._tombstones) > TOMBSTONES_MAX_COUNT:
            self._tombstones.popitem(last=False)

    def drop(self, holding: H) -> None:
        """Forget a holding. Its tombstone, if it has one, stays."""
        key = (holding.epoch.run_uid, holding.epoch.attempt)
        if self._held.get(key) is holding:
            del self._held[key]

    def _of(self, run_uid: str) -> list[H]:
        return [h for (uid, _), h in self._held.items() if uid == run_uid]


def _name(epoch: Epoch) -> str:
    return f"attempt {epoch.attempt} of Run {epoch.run_uid}"


def _error(reason: str, message: str) -> CallError:
    return CallError(ErrorHead(reason=reason, message=message))
