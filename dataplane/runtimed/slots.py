"""Who has room: a pure ledger of what the epochs in this Pod hold of its declared capacity.

A Run in Releasing with nothing registered holds none; an epoch that still drains does, whatever the API says of it.
Next: `decide.py` asks before a claim.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from dataplane.runtimed.local import Local, Stage


class Room(StrEnum):
    """Whether a claim fits."""

    FREE = "free"
    LATER = "later"  # only what is on its way out stands in the way: the claim waits for it
    FULL = "full"


_LIVE = frozenset({Stage.CLAIMED, Stage.OPEN})


def room(requests: Iterable[tuple[str, int]], capacity: Mapping[str, int], others: Iterable[Local]) -> Room:
    """Whether `requests` fit beside `others`. A resource that the Runtime does not declare never fits."""
    live: dict[str, int] = {}
    leaving: dict[str, int] = {}
    for local in others:
        if local.cleared:
            continue
        held = live if local.stage in _LIVE else leaving
        for name, quantity in local.requests or (("runs", 1),):
            held[name] = held.get(name, 0) + quantity
    answer = Room.FREE
    for name, quantity in requests:
        free = capacity.get(name, 0) - live.get(name, 0)
        if quantity > free:
            return Room.FULL
        if quantity > free - leaving.get(name, 0):
            answer = Room.LATER
    return answer
