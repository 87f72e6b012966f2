"""What keeps the store small while writes go on, and does nothing when they stop."""

import datetime

import pytest

from controlplane.embedded.apiserver import limits
from controlplane.embedded.apiserver.chores import Chores
from controlplane.embedded.apiserver.errors import storage_full
from controlplane.embedded.apiserver.main import Running
from tests.apiserver.harness import CONFIG_MAPS, Api, Object, config_map
from tests.kit.waiting import eventually

EVENTS = "/api/v1/namespaces/default/events"


async def test_the_write_ahead_log_is_bounded_under_a_storm_of_writes(
    api: Api, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECKPOINT_AFTER_BYTES", 500_000)
    monkeypatch.setattr(limits, "WRITE_AHEAD_MAX_BYTES", 1_000_000)
    (await api.post(CONFIG_MAPS, config_map("c"))).ok()
    largest = 0
    for number in range(100):
        (await api.patch(f"{CONFIG_MAPS}/c", {"data": {"key": f"{number:060000}"}})).ok()
        largest = max(largest, running.store.write_ahead_bytes)
    assert largest < 4_000_000
    assert (await api.get(f"{CONFIG_MAPS}/c")).ok()["data"]["key"].endswith("99")


async def test_history_is_bounded_by_its_size_too(api: Api, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_MAX_BYTES", 500_000)
    monkeypatch.setattr(limits, "COMPACTION_STEP_REVISIONS", 5)
    (await api.post(CONFIG_MAPS, config_map("c"))).ok()
    for number in range(60):
        (await api.patch(f"{CONFIG_MAPS}/c", {"data": {"key": f"{number:050000}"}})).ok()
    await eventually(lambda: running.store.history_bytes < 900_000)


def event(name: str, age: datetime.timedelta) -> Object:
    at = (datetime.datetime.now(datetime.UTC) - age).strftime("%Y-%m-%dT%H:%M:%SZ")
    involved = {"kind": "Run", "name": "a", "namespace": "default"}
    return {"metadata": {"name": name}, "involvedObject": involved, "firstTimestamp": at, "lastTimestamp": at}


async def test_events_are_kept_for_an_hour(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENT_PURGE_SECONDS", -1.0)
    (await api.post(EVENTS, event("recent", datetime.timedelta(minutes=50)))).ok()
    (await api.post(EVENTS, event("old", datetime.timedelta(minutes=70)))).ok()
    await api.until_gone(f"{EVENTS}/old")
    (await api.get(f"{EVENTS}/recent")).ok()


async def test_a_chore_that_meets_a_full_disk_is_tried_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHORE_RETRY_SECONDS", 0.01)
    tries: list[int] = []

    def job() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise storage_full("test")

    running.chores.add("job", job)
    await eventually(lambda: len(tries) == 3 and running.chores.idle)


async def test_a_chore_that_fails_stops_no_other(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def broken() -> None:
        raise RuntimeError("broken")

    running.chores.add("broken", broken)
    running.chores.add("other", lambda: done.append("other"))
    await eventually(lambda: done == ["other"])
    assert "chore failed" in caplog.text


def test_a_chore_that_waits_is_not_added_twice() -> None:
    chores = Chores()
    chores.add("a", lambda: None)
    chores.add("a", lambda: None)
    assert len(chores._jobs) == 1
    assert not chores.idle
