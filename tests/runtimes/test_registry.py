"""R1 and R2: which epochs are admitted, from events to the whole outcome."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runtimes.contract.limits import TOMBSTONES_MAX_COUNT
from runtimes.contract.messages import Epoch
from runtimes.contract.mux import CallError
from runtimes.server.registry import Registry


@dataclass
class Holding:
    epoch: Epoch
    digest: str = "d"
    open: bool = True


def epoch(attempt: int, *, run: str = "run", pod: str = "pod") -> Epoch:
    return Epoch(run_uid=run, attempt=attempt, pod_uid=pod)


def play(registry: Registry[Holding], *steps: tuple[str, Epoch]) -> None:
    for verb, at in steps:
        if verb == "hold":
            registry.hold(Holding(at))
        elif verb == "close":
            for held in registry.up_to(at):
                held.open = False
            registry.bury(at)
        else:
            held = registry.find(at)
            assert held is not None
            if verb == "end":
                held.open = False  # A task that has exited: its result is kept.
            else:
                registry.drop(held)


@pytest.mark.parametrize(
    ("steps", "asked", "digest", "outcome"),
    [
        ([], epoch(1), "d", "new"),
        ([("hold", epoch(1))], epoch(1), "d", "same"),
        ([("hold", epoch(1))], epoch(1), "other", "AlreadyExists"),
        ([("hold", epoch(1))], epoch(2), "d", "new"),
        ([("hold", epoch(2))], epoch(1), "d", "FailedPrecondition"),
        ([("hold", epoch(1))], epoch(1, pod="other"), "d", "FailedPrecondition"),
        ([("hold", epoch(1))], epoch(1, run="another"), "d", "new"),
        ([("close", epoch(1))], epoch(1), "d", "FailedPrecondition"),
        ([("close", epoch(3))], epoch(2), "d", "FailedPrecondition"),
        ([("close", epoch(3)), ("close", epoch(1))], epoch(3), "d", "FailedPrecondition"),
        ([("close", epoch(3))], epoch(4), "d", "new"),
        ([("hold", epoch(1)), ("close", epoch(1))], epoch(1), "d", "FailedPrecondition"),
        ([("hold", epoch(1)), ("close", epoch(1)), ("drop", epoch(1))], epoch(1), "d", "FailedPrecondition"),
        ([("hold", epoch(1)), ("close", epoch(2))], epoch(1), "d", "FailedPrecondition"),
        ([("hold", epoch(1)), ("drop", epoch(1))], epoch(1), "d", "new"),
        ([("hold", epoch(1)), ("end", epoch(1))], epoch(1), "d", "same"),
        ([("hold", epoch(1)), ("end", epoch(1))], epoch(1), "other", "AlreadyExists"),
    ],
)
def test_admission(steps: list[tuple[str, Epoch]], asked: Epoch, digest: str, outcome: str) -> None:
    registry: Registry[Holding] = Registry()
    play(registry, *steps)
    try:
        held = registry.admit(asked, digest)
    except CallError as error:
        assert error.error.reason == outcome
        assert error.error.message
    else:
        assert outcome == ("new" if held is None else "same")


def test_a_higher_attempt_finds_the_open_ones_below_it() -> None:
    registry: Registry[Holding] = Registry()
    play(registry, ("hold", epoch(1)), ("close", epoch(1)), ("hold", epoch(2)))
    assert [held.epoch.attempt for held in registry.older(epoch(3))] == [2]
    assert sorted(held.epoch.attempt for held in registry.up_to(epoch(2))) == [1, 2]


def test_tombstones_are_bounded_and_the_oldest_go_first() -> None:
    registry: Registry[Holding] = Registry()
    for number in range(TOMBSTONES_MAX_COUNT + 1):
        registry.bury(epoch(1, run=f"run-{number}"))
    assert registry.admit(epoch(1, run="run-0"), "d") is None
    with pytest.raises(CallError):
        registry.admit(epoch(1, run="run-1"), "d")
