"""Logs of Pods and of Runs, the journal, and the log of requests."""

import json
from pathlib import Path

import pytest

from controlplane.embedded.apiserver import limits
from controlplane.embedded.apiserver.requestlog import RequestLog
from tests.apiserver.harness import CONFIG_MAPS, DEADLINE_SECONDS, JSON_PATCH, PODS, RUNS, Api, config_map, pod, run

RUN_LOGS = "/apis/logs.kruntimes.io/v1alpha1/namespaces/default/runs"


async def logged_pod(api: Api, data: Path, text: str) -> Path:
    created = (await api.post(PODS, pod("p", nodeName="local"))).ok()
    folder = data / "pods" / created["metadata"]["uid"] / "logs"
    folder.mkdir(parents=True)
    path = folder / "runtime.log"
    path.write_text(text)
    return path


async def test_a_pods_log_is_read_whole_or_from_its_end(api: Api, data: Path) -> None:
    await logged_pod(api, data, "one\ntwo\nthree\n")
    assert (await api.get(f"{PODS}/p/log")).body == b"one\ntwo\nthree\n"
    assert (await api.get(f"{PODS}/p/log?tailLines=1")).body == b"three\n"
    assert (await api.get(f"{PODS}/p/log?tailLines=9&container=runtime")).body == b"one\ntwo\nthree\n"
    assert (await api.get(f"{PODS}/p/log?tailLines=0")).body == b""
    assert (await api.get(f"{PODS}/p/log?limitBytes=5")).body == b"one\nt"
    (await api.get(f"{PODS}/p/log?container=other")).refused(400)
    (await api.get(f"{PODS}/absent/log")).refused(404)
    (await api.get(f"{PODS}/p/log?previous=true")).refused(501)


async def test_a_container_without_a_log_is_waiting(api: Api) -> None:
    (await api.post(PODS, pod("p"))).ok()
    assert "waiting to start" in (await api.get(f"{PODS}/p/log")).refused(400)["message"]
    two = [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}]
    (await api.post(PODS, {"metadata": {"name": "q"}, "spec": {"containers": two}})).ok()
    assert "choose one of: [a b]" in (await api.get(f"{PODS}/q/log")).refused(400)["message"]


async def test_a_followed_log_goes_on_until_the_pod_is_gone(api: Api, data: Path) -> None:
    path = await logged_pod(api, data, "one\n")
    async with api.stream(f"{PODS}/p/log?follow=true") as log:
        assert await log.response.content.readline() == b"one\n"
        with path.open("a") as file:
            file.write("two\n")
        assert await log.response.content.readline() == b"two\n"
        (await api.delete(f"{PODS}/p", {"gracePeriodSeconds": 0})).ok()
        assert await log.response.content.read() == b""


async def test_a_long_tail_is_found_across_blocks(api: Api, data: Path) -> None:
    lines = [f"line {number} {'x' * 100}\n" for number in range(2_000)]
    await logged_pod(api, data, "".join(lines))
    assert (await api.get(f"{PODS}/p/log?tailLines=1500")).body.decode() == "".join(lines[-1500:])


def line(text: str, at: int, invocation: str = "") -> str:
    time = f"2026-01-01T00:00:{at:02}.000000Z"
    entry = {"time": time, "stream": "stdout", "invocation": invocation, "attempt": 1, "line": text}
    return json.dumps(entry) + "\n"


async def test_a_runs_log_is_gathered_from_the_pods_it_ran_on(api: Api, data: Path) -> None:
    uid = (await api.post(RUNS, run("a"))).ok()["metadata"]["uid"]
    for number, pod_uid in enumerate(("first", "second")):
        folder = data / "pods" / pod_uid / "volumes" / "work" / "logs"
        folder.mkdir(parents=True)
        (folder / f"{uid}.ndjson").write_text(line(f"from {pod_uid}", 10 - number, "i1") + line("late", 20 + number))
    answer = await api.get(f"{RUN_LOGS}/a/log")
    assert answer.code == 200
    lines = [json.loads(each) for each in answer.body.splitlines()]
    assert [each.get("line") for each in lines] == ["from second", "from first", "late", "late", None]
    assert len((await api.get(f"{RUN_LOGS}/a/log?invocation=i1")).body.splitlines()) == 3
    assert len((await api.get(f"{RUN_LOGS}/a/log?tailLines=1")).body.splitlines()) == 2
    (await api.get(f"{RUN_LOGS}/a/log?tailLines=501")).refused(400)
    cursor = lines[-1]["cursor"]
    with (folder / f"{uid}.ndjson").open("a") as file:
        file.write(line("new", 30) + '{"torn')
    more = [json.loads(each) for each in (await api.get(f"{RUN_LOGS}/a/log?cursor={cursor}")).body.splitlines()]
    assert [each.get("line") for each in more] == ["new", None]
    (await api.get(f"{RUN_LOGS}/a/log?cursor=nonsense")).refused(400)
    (await api.get(f"{RUN_LOGS}/absent/log")).refused(404, "NotFound")
    (await api.get(f"{RUN_LOGS}/a/other")).refused(404)
    (await api.get(f"{RUN_LOGS}/a/journal")).refused(404)


async def test_a_followed_run_log_ends_with_the_run(api: Api, data: Path) -> None:
    uid = (await api.post(RUNS, run("a"))).ok()["metadata"]["uid"]
    folder = data / "pods" / "p" / "volumes" / "work" / "logs"
    folder.mkdir(parents=True)
    async with api.stream(f"{RUN_LOGS}/a/log?follow=true") as log:
        (folder / f"{uid}.ndjson").write_text(line("one", 1))
        assert json.loads(await log.response.content.readline())["line"] == "one"
        (await api.delete(f"{RUNS}/a")).ok()
        assert [set(each) for each in await log.rest()] == [{"cursor"}]


async def test_logs_of_runs_have_a_right_of_their_own(api: Api) -> None:
    (await api.post(RUNS, run("a"))).ok()
    token = (await api.post("/api/v1/namespaces/default/serviceaccounts/default/token", {})).ok()["status"]["token"]
    status = (await api.with_token(token).get(f"{RUN_LOGS}/a/log")).refused(403, "Forbidden")
    assert 'cannot get resource "runs/log" in API group "logs.kruntimes.io"' in status["message"]


async def test_every_request_is_logged_with_what_a_patch_writes(api: Api, data: Path) -> None:
    (await api.post(RUNS, run("a"))).ok()
    operations = [
        {"op": "test", "path": "/status/phase", "value": "Pending"},
        {"op": "replace", "path": "/status/phase", "value": "Ready"},
    ]
    (await api.patch(f"{RUNS}/a/status", operations, JSON_PATCH)).ok()
    async with api.watch(RUNS) as watch:
        await watch.next()
        entries = [json.loads(each) for each in (data / "logs" / "requests.ndjson").read_text().splitlines()]
    assert [entry["verb"] for entry in entries] == ["create", "patch", "watch"]
    patch = entries[1]
    assert patch["patchPaths"] == ["/status/phase"]
    expected = {"user": "admin", "group": "kruntimes.io", "resource": "runs", "subresource": "status", "name": "a"}
    assert {name: patch[name] for name in expected} == expected
    assert (patch["code"], patch["namespace"]) == (200, "default")
    assert 0 < patch["latencyMs"] < DEADLINE_SECONDS * 1000


async def test_the_request_log_is_bounded_by_rotation(api: Api, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REQUEST_LOG_MAX_BYTES", 2_000)
    for number in range(20):
        (await api.post(CONFIG_MAPS, config_map(f"c{number}"))).ok()
    sizes = {path.name: path.stat().st_size for path in (data / "logs").iterdir()}
    assert sizes.keys() == {"requests.ndjson", "requests.1.ndjson"}
    assert max(sizes.values()) <= 2_000


def test_a_request_log_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "absent" / "requests.ndjson")
    log._append(b"x\n")
    (tmp_path / "absent").mkdir()
    log._append(b"y\n")
    log.close()
    assert (tmp_path / "absent" / "requests.ndjson").read_bytes() == b"y\n"
