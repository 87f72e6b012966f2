"""The rolling update as a pure function: its bounds hold at every step, and it always ends."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.embedded.node import rollout
from controlplane.kube.types import Deployment, ReplicaSet

NOW = "2026-01-01T00:00:00Z"


def deployment(
    replicas: int | None = 2, surge: Any = 1, unavailable: Any = 0, type_: str = "RollingUpdate"
) -> Deployment:
    strategy = {"type": type_, "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    body = {"metadata": {"name": "d", "generation": 3}, "spec": {"replicas": replicas, "strategy": strategy}}
    return msgspec.convert(body, Deployment)


def replicaset(name: str, wanted: int, available: int, exist: int | None = None) -> ReplicaSet:
    status = {
        "replicas": wanted if exist is None else exist,
        "availableReplicas": available,
        "readyReplicas": available,
    }
    body = {"metadata": {"name": name, "creationTimestamp": name}, "spec": {"replicas": wanted}, "status": status}
    return msgspec.convert(body, ReplicaSet)


def test_a_new_deployment_makes_all_its_pods_at_once() -> None:
    assert rollout.scales(deployment(3), None, []) == (3, {})


def test_no_replicas_means_one_and_zero_means_none() -> None:
    assert rollout.scales(deployment(None), None, [])[0] == 1
    assert rollout.scales(deployment(0), None, [])[0] == 0


def test_an_update_adds_one_and_takes_none_until_that_one_is_available() -> None:
    old = replicaset("old", 2, 2)
    assert rollout.scales(deployment(2), None, [old]) == (1, {})
    assert rollout.scales(deployment(2), replicaset("new", 1, 0), [old]) == (1, {})
    assert rollout.scales(deployment(2), replicaset("new", 1, 1), [old]) == (1, {"old": 1})
    assert rollout.scales(deployment(2), replicaset("new", 2, 2), [replicaset("old", 1, 1)]) == (2, {"old": 0})


def test_old_pods_that_serve_nobody_go_first() -> None:
    broken, good = replicaset("a", 1, 0), replicaset("b", 2, 2)
    assert rollout.scales(deployment(2), replicaset("new", 1, 1), [good, broken])[1] == {"a": 0, "b": 1}


def test_recreate_waits_until_the_old_ones_are_gone() -> None:
    wanted = deployment(2, type_="Recreate")
    assert rollout.scales(wanted, None, [replicaset("old", 2, 2)]) == (0, {"old": 0})
    assert rollout.scales(wanted, None, [replicaset("old", 0, 0, exist=1)]) == (0, {})
    assert rollout.scales(wanted, None, [replicaset("old", 0, 0)]) == (2, {})


@pytest.mark.parametrize(
    ("surge", "unavailable", "bounds"),
    [(1, 0, (1, 0)), ("25%", "25%", (1, 0)), ("50%", "50%", (2, 1)), (0, 0, (0, 1)), ("0", "2", (0, 2))],
)
def test_bounds_are_numbers_or_percents(surge: Any, unavailable: Any, bounds: tuple[int, int]) -> None:
    assert rollout.bounds(deployment(3, surge, unavailable)) == bounds


@given(
    desired=st.integers(0, 5),
    surge=st.integers(0, 3),
    unavailable=st.integers(0, 3),
    old=st.lists(st.integers(0, 5), max_size=3),
    become_available=st.lists(st.booleans(), min_size=200, max_size=200),
)
def test_bounds_hold_at_every_step_and_the_rollout_ends(
    desired: int, surge: int, unavailable: int, old: list[int], become_available: list[bool]
) -> None:
    wanted = deployment(desired, surge, unavailable)
    surge, unavailable = rollout.bounds(wanted)
    olds = {f"old{index}": (count, count) for index, count in enumerate(old)}
    new: tuple[int, int] | None = None
    least, most = min(sum(old), desired - unavailable), max(sum(old), desired + surge)
    for step in [*become_available, *[True] * 100]:
        target, changes = rollout.scales(
            wanted,
            replicaset("new", *new) if new else None,
            [replicaset(name, count, available) for name, (count, available) in olds.items()],
        )
        new = (target, min(new[1] if new else 0, target))
        olds |= {name: (count, min(olds[name][1], count)) for name, count in changes.items()}
        assert target + sum(count for count, _ in olds.values()) <= most
        assert new[1] + sum(available for _, available in olds.values()) >= least
        if step and new[1] < new[0]:
            new = (new[0], new[1] + 1)
    assert new == (desired, desired)
    assert all(count == 0 for count, _ in olds.values())


def test_the_status_says_what_rollout_status_waits_for() -> None:
    done = rollout.status(deployment(2), replicaset("new", 2, 2), [replicaset("old", 0, 0)], NOW)
    assert (done.observed_generation, done.replicas, done.updated_replicas, done.available_replicas) == (3, 2, 2, 2)
    assert {c.type: (c.status, c.reason) for c in done.conditions} == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    half = rollout.status(deployment(2), replicaset("new", 1, 0), [replicaset("old", 2, 1)], NOW)
    assert half.unavailable_replicas == 1
    assert {c.type: (c.status, c.reason) for c in half.conditions} == {
        "Available": ("False", "MinimumReplicasUnavailable"),
        "Progressing": ("True", "ReplicaSetUpdated"),
    }


def test_the_hash_of_a_template_differs_with_every_field_and_with_nothing_else() -> None:
    one = msgspec.convert({"metadata": {"labels": {"a": "1"}}, "spec": {"x": 1, "y": 2}}, rollout.PodTemplate)
    same = msgspec.convert({"spec": {"y": 2, "x": 1}, "metadata": {"labels": {"a": "1"}}}, rollout.PodTemplate)
    other = msgspec.convert({"metadata": {"labels": {"a": "1"}}, "spec": {"x": 1, "y": 3}}, rollout.PodTemplate)
    assert rollout.template_hash(one) == rollout.template_hash(same) != rollout.template_hash(other)
    assert len(rollout.template_hash(one)) == rollout.HASH_CHARS
