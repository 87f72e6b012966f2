"""Watches: where they start, what they select, how they end."""

from pathlib import Path

import pytest

from controlplane.embedded.apiserver import limits
from controlplane.embedded.apiserver.main import Running
from tests.apiserver.harness import CONFIG_MAPS, PODS, RUNS, TABLE, Api, config_map, pod, run, serving
from tests.kit.waiting import eventually


async def test_a_watch_from_a_version_sees_what_came_after_it(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    version = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
    (await api.post(RUNS, run("b"))).ok()
    async with api.watch(RUNS, f"&resourceVersion={version}") as watch:
        (await api.patch(f"{RUNS}/a/status", {"status": {"phase": "Scheduled"}})).ok()
        (await api.delete(f"{RUNS}/b")).ok()
        assert await watch.take(3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]


async def test_a_watch_without_a_version_begins_with_what_is_there(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    async with api.watch(RUNS) as watch:
        (await api.post(RUNS, run("b"))).ok()
        assert await watch.take(2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_initial_events_end_with_a_bookmark(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with api.watch(RUNS, query) as watch:
        assert (await watch.next())["type"] == "ADDED"
        bookmark = await watch.next()
        assert bookmark["type"] == "BOOKMARK"
        metadata = bookmark["object"]["metadata"]
        assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
        version = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
        assert metadata["resourceVersion"] == version


async def test_initial_events_need_their_match(api: Api) -> None:
    (await api.get(f"{RUNS}?watch=true&sendInitialEvents=true")).refused(422, "Invalid")
    (await api.get(f"{RUNS}?watch=true&resourceVersionMatch=Exact")).refused(422, "Invalid")
    (await api.get(f"{RUNS}?watch=true&resourceVersion=x")).refused(400)


async def test_a_selector_turns_changes_into_additions_and_deletions(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    (await api.post(RUNS, run("b"))).ok()
    version = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
    query = f"&resourceVersion={version}&fieldSelector=status.phase%3DReady"
    async with api.watch(RUNS, query) as watch:
        (await api.patch(f"{RUNS}/a/status", {"status": {"phase": "Ready"}})).ok()
        (await api.patch(f"{RUNS}/b/status", {"status": {"phase": "Scheduled"}})).ok()
        (await api.patch(f"{RUNS}/a/status", {"status": {"attempt": 1}})).ok()
        (await api.patch(f"{RUNS}/a/status", {"status": {"phase": "Releasing"}})).ok()
        (await api.delete(f"{RUNS}/b")).ok()
        (await api.patch(f"{RUNS}/a/status", {"status": {"phase": "Ready"}})).ok()
        (await api.delete(f"{RUNS}/a")).ok()
        expected = ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
        assert await watch.take(5) == [(change, "a") for change in expected]


async def test_the_same_selection_is_seen_through_history(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    version = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
    for phase in ("Ready", "Releasing"):
        (await api.patch(f"{RUNS}/a/status", {"status": {"phase": phase}})).ok()
    async with api.watch(RUNS, f"&resourceVersion={version}&fieldSelector=status.phase%3DReady") as watch:
        assert await watch.take(2) == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_watch_of_one_namespace_sees_no_other(api: Api) -> None:
    (await api.post("/api/v1/namespaces", {"metadata": {"name": "other"}})).ok()
    everywhere = "/api/v1/configmaps"
    async with api.watch(CONFIG_MAPS, "&fieldSelector=metadata.name!%3Dkube-root-ca.crt") as one:
        (await api.post(CONFIG_MAPS.replace("default", "other"), config_map("a"))).ok()
        (await api.post(CONFIG_MAPS, config_map("b"))).ok()
        assert await one.take(1) == [("ADDED", "b")]
    async with api.watch(everywhere, "&labelSelector=a") as every:
        item = config_map("c", labels={"a": ""})
        (await api.post(CONFIG_MAPS.replace("default", "other"), item)).ok()
        assert await every.take(1) == [("ADDED", "c")]


async def test_a_watch_ends_by_its_timeout_with_a_last_bookmark(api: Api) -> None:
    version = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
    query = f"&resourceVersion={version}&timeoutSeconds=1&allowWatchBookmarks=true"
    async with api.watch(RUNS, query) as watch:
        (await api.post(CONFIG_MAPS, config_map("c"))).ok()
        newest = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
        events = await watch.rest()
    assert [event["type"] for event in events] == ["BOOKMARK"]
    assert events[0]["object"]["metadata"]["resourceVersion"] == newest
    assert events[0]["object"]["kind"] == "Run"


async def test_a_quiet_watch_gets_a_bookmark_after_enough_other_writes(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATCH_BOOKMARK_EVERY_REVISIONS", 5)
    async with api.watch(RUNS, "&allowWatchBookmarks=true") as watch:
        for number in range(10):
            (await api.post(CONFIG_MAPS, config_map(f"c{number}"))).ok()
        assert (await watch.next())["type"] == "BOOKMARK"


async def test_a_compacted_version_is_gone(api: Api, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    version = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
    listed = (await api.get("/api/v1/configmaps?limit=1")).ok()["metadata"]["continue"]
    (await api.post(RUNS, run("a"))).ok()
    for attempt in range(3):
        (await api.patch(f"{RUNS}/a/status", {"status": {"attempt": attempt + 1}})).ok()
    kept = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
    running.store.compact(int(kept) - 1)
    async with api.watch(RUNS, f"&resourceVersion={version}") as watch:
        event = (await watch.rest())[0]
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    async with api.watch(RUNS, f"&resourceVersion={int(kept) - 1}") as watch:
        assert await watch.take(1) == [("MODIFIED", "a")]
    (await api.get(f"/api/v1/configmaps?limit=1&continue={listed}")).refused(410, "Expired")
    async with api.watch(RUNS, f"&resourceVersion={int(kept) + 1000}") as watch:
        assert (await watch.rest())[0]["object"]["code"] == 410


async def test_history_is_compacted_by_count_as_writes_go_on(
    api: Api, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HISTORY_MAX_REVISIONS", 20)
    monkeypatch.setattr(limits, "COMPACTION_STEP_REVISIONS", 5)
    (await api.post(RUNS, run("a"))).ok()
    for attempt in range(60):
        (await api.patch(f"{RUNS}/a/status", {"status": {"attempt": attempt + 1}})).ok()
    assert running.store.compacted > 20
    assert running.store.revision - running.store.compacted <= 26
    assert (await api.get(f"{RUNS}/a")).ok()["status"]["attempt"] == 60


async def test_a_slow_watcher_is_cut_off_and_not_waited_for(
    api: Api, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATCH_BUFFER_MAX_EVENTS", 2)
    version = (await api.get(RUNS)).ok()["metadata"]["resourceVersion"]
    for name in "abcd":
        (await api.post(RUNS, run(name))).ok()
    async with api.watch(RUNS, f"&resourceVersion={version}") as watch:
        assert len(await watch.rest()) <= 2


async def test_a_client_that_goes_away_leaves_no_watcher(api: Api, running: Running) -> None:
    async with api.watch(RUNS) as watch:
        (await api.post(RUNS, run("a"))).ok()
        await watch.next()
        assert running.hub.watching("kruntimes.io/runs") == 1
    await eventually(lambda: running.hub.watching("kruntimes.io/runs") == 0)


async def test_one_object_can_be_watched_by_its_path(api: Api) -> None:
    (await api.post(PODS, pod("a"))).ok()
    (await api.post(PODS, pod("b"))).ok()
    async with api.watch(f"{PODS}/b") as watch:
        assert await watch.take(1) == [("ADDED", "b")]


async def test_a_table_watch_names_its_columns_once(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    query = "&includeObject=None&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with api.watch(RUNS, query, accept=TABLE) as watch:
        first = await watch.next()
        names = [column["name"] for column in first["object"]["columnDefinitions"]]
        assert names[:2] == ["Name", "Phase"]
        assert first["object"]["rows"][0]["cells"][:2] == ["a", "Pending"]
        assert first["object"]["rows"][0]["object"] is None
        bookmark = await watch.next()
        assert (bookmark["type"], bookmark["object"]["kind"]) == ("BOOKMARK", "Table")
        carried = bookmark["object"]["rows"][0]["object"]["metadata"]
        assert carried["annotations"] == {"k8s.io/initial-events-end": "true"}
        (await api.patch(f"{RUNS}/a/status", {"status": {"phase": "Ready"}})).ok()
        second = await watch.next()
        assert second["object"]["columnDefinitions"] is None
        assert second["object"]["rows"][0]["cells"][:2] == ["a", "Ready"]
        version = (await api.get(f"{RUNS}/a")).ok()["metadata"]["resourceVersion"]
        assert second["object"]["metadata"]["resourceVersion"] == version


async def test_watches_end_when_the_server_stops(data: Path) -> None:
    async with serving(data) as (running, api), api.watch(RUNS) as watch:
        await running.stop()
        assert await watch.rest() == []
