"""Invocations through the whole gateway: what goes in and comes out, and the order of answers."""

import asyncio

import pytest

from dataplane.gateway import dispatch
from dataplane.wire.messages import Cause, InvokeReply, InvokeRequest
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError, Refused, Reply, Request
from statemachine.reasons import Reason
from statemachine.run import Mode, Phase, RunUID
from tests.gateway.stage import PATH, POD, RUN, FakeRuntimed, Stage, run_fact
from tests.kit.waiting import eventually


async def test_a_call_reaches_the_owner_and_its_answer_comes_back(gateway: Stage, runtimed: FakeRuntimed) -> None:
    client = await gateway.client()
    headers = {"X-Kruntime-Invocation-ID": "my-id", "X-Kruntime-Timeout-Ms": "5000", "Content-Type": "application/json"}
    response = await client.request(body='{"a":"ä"}'.encode(), headers=headers)
    assert response.status == 200
    assert response.body == '{"a":"ä"}'.encode()
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-kruntime-invocation-id"] == "my-id"
    assert response.headers["server-timing"].startswith("gateway;dur=")
    assert "runtimed;dur=0.200, worker;dur=0.100" in response.headers["server-timing"]
    (seen,) = runtimed.seen
    assert (seen.namespace, seen.runtime, seen.run_uid) == ("default", "python", RUN)
    assert (seen.attempt, seen.pod_uid, seen.hops) == (1, POD, 0)
    assert seen.user == "jane"
    assert seen.invocation_id == "my-id"
    assert 4000 < seen.deadline_ms <= 5000
    assert seen.traceparent is None


async def test_an_empty_body_is_an_empty_object_and_an_id_is_made(gateway: Stage) -> None:
    client = await gateway.client()
    response = await client.request(body=b"")
    assert (response.status, response.body) == (200, b"{}")
    assert len(response.headers["x-kruntime-invocation-id"]) == 32


async def test_ten_calls_use_one_connection_at_each_side_and_one_review_of_each_kind(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    client = await gateway.client()
    for _ in range(10):
        assert (await client.request()).status == 200
    assert len(runtimed.server.connections) == 1
    assert gateway.gatekeeper.reviews_asked == (1, 1)


async def test_the_whole_mebibyte_passes_both_ways(gateway: Stage) -> None:
    client = await gateway.client()
    body = b'"' + b"x" * (1024 * 1024 - 2) + b'"'
    response = await client.request(body=body)
    assert response.body == body


async def test_a_call_finds_its_owner_through_any_ready_pod_when_the_owner_is_not_known(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    elsewhere = "11111111-2222-4333-8444-555555555555"
    gateway.see_run(run_fact(RunUID("other"), pod_uid=elsewhere))  # type: ignore[arg-type]
    client = await gateway.client()
    response = await client.request(path=PATH.replace(RUN, "other"))
    assert response.status == 200
    assert runtimed.seen[0].pod_uid == elsewhere


@pytest.mark.parametrize(
    ("path", "method", "headers", "status", "reason"),
    [
        ("/", "POST", {}, 404, "NotFound"),
        ("/v1/namespaces/default/runtimes/python/runs/x", "POST", {"Authorization": "-"}, 404, "NotFound"),
        (PATH.replace("default", "def%61ult"), "POST", {}, 404, "NotFound"),
        (PATH.replace("/runs/", "/./runs/"), "POST", {}, 404, "NotFound"),
        (PATH, "GET", {"Authorization": "-"}, 405, "MethodNotAllowed"),
        (PATH, "PUT", {"Authorization": "-"}, 405, "MethodNotAllowed"),
        (PATH.replace(RUN, "nope"), "POST", {"Authorization": "-"}, 401, "Unauthenticated"),
        (PATH, "POST", {"Authorization": "Bearer wrong"}, 401, "Unauthenticated"),
        (PATH, "POST", {"Authorization": "Basic eDp5"}, 401, "Unauthenticated"),
        (PATH.replace("python", "bash"), "POST", {}, 404, "RunNotFound"),
        (PATH.replace("default", "other"), "POST", {}, 404, "RunNotFound"),
        (PATH, "POST", {"Content-Type": "text/plain"}, 415, "UnsupportedMediaType"),
        (PATH, "POST", {"Content-Encoding": "gzip"}, 415, "UnsupportedMediaType"),
        (PATH, "POST", {"Content-Type": "text/plain", "Content-Length": "2000000"}, 415, "UnsupportedMediaType"),
        (PATH, "POST", {"Content-Length": "1048577", "X-Kruntime-Timeout-Ms": "0"}, 413, "RequestTooLarge"),
        (PATH, "POST", {"X-Kruntime-Timeout-Ms": "0"}, 400, "InvalidRequest"),
        (PATH, "POST", {"X-Kruntime-Timeout-Ms": "300001"}, 400, "InvalidRequest"),
        (PATH, "POST", {"X-Kruntime-Timeout-Ms": "1.5"}, 400, "InvalidRequest"),
        (PATH, "POST", {"X-Kruntime-Invocation-ID": "a b"}, 400, "InvalidRequest"),
        (PATH, "POST", {"X-Kruntime-Invocation-ID": "x" * 129}, 400, "InvalidRequest"),
    ],
)
async def test_each_refusal_has_its_status_and_its_place_in_the_order(
    gateway: Stage, path: str, method: str, headers: dict[str, str], status: int, reason: str
) -> None:
    client = await gateway.client()
    response = await client.request(method, path, headers=headers)
    assert (response.status, response.reason) == (status, reason)
    if status == 401:
        assert response.headers["www-authenticate"].startswith("Bearer")
    if status == 405:
        assert response.headers["allow"] == "POST"


async def test_an_unknown_run_is_told_before_what_the_caller_may(gateway: Stage) -> None:
    gateway.kube.users["other"] = gateway.kube.users["good"].__class__(username="joe")
    client = await gateway.client()
    gateway.lose_run(RunUID("deleted"))
    headers = {"Authorization": "Bearer other"}
    assert (await client.request(path=PATH.replace(RUN, "deleted"), headers=headers)).reason == "RunNotFound"
    response = await client.request(headers=headers)
    assert response.reason == "Forbidden"
    assert "hello" not in response.body.decode()


@pytest.mark.parametrize(
    ("phase", "attempt", "status", "reason"),
    [
        (Phase.PENDING, 0, 503, "RunNotReady"),
        (Phase.RELEASING, 1, 409, "RunFinished"),
        (Phase.SUCCEEDED, 1, 409, "RunFinished"),
        (Phase.FAILED, 1, 409, "RunFinished"),
        (Phase.TIMEOUT, 1, 409, "RunFinished"),
        (Phase.CANCELLED, 1, 409, "RunFinished"),
        (Phase.RUNNING, 1, 409, "NotAFunction"),
    ],
)
async def test_a_run_that_takes_no_calls_says_so_before_the_body_is_judged(
    gateway: Stage, phase: Phase, attempt: int, status: int, reason: str
) -> None:
    gateway.see_run(run_fact(RunUID("r"), phase, attempt=attempt, pod_uid=POD if attempt else None))
    client = await gateway.client()
    response = await client.request(path=PATH.replace(RUN, "r"), headers={"Content-Type": "text/plain"})
    assert (response.status, response.reason) == (status, reason)
    assert response.json["details"] == {
        "name": "hello",
        "group": "kruntimes.io",
        "kind": "runs",
        "uid": "r",
    } | ({"retryAfterSeconds": 1} if status == 503 else {})


@pytest.mark.parametrize(
    "reason",
    [
        Reason.TOO_MANY_INVOCATIONS,
        Reason.HANDLER_FAILED,
        Reason.INVALID_REQUEST,
        Reason.WORKER_CRASHED,
        Reason.RUN_FINISHED,
        Reason.WORKER_STARTING,
        Reason.OUTCOME_UNKNOWN,
        Reason.INVOCATION_TIMEOUT,
        Reason.RUN_NOT_READY,
    ],
)
async def test_an_error_of_the_owner_is_passed_on_whole(gateway: Stage, runtimed: FakeRuntimed, reason: Reason) -> None:
    async def fail(request: Request, head: InvokeRequest) -> Reply:
        causes = (Cause("ValueError", "line 3"),)
        return Reply(
            InvokeReply(status=reason.info.http_status, reason=reason, message="boom ü", hop="worker", causes=causes)
        )

    runtimed.handler = fail
    gateway.see_run(run_fact(RunUID("first"), Phase.REGISTERING))
    client = await gateway.client()
    response = await client.request(path=PATH.replace(RUN, "first"))
    assert (response.status, response.reason) == (reason.info.http_status, reason.value)
    assert response.json["message"] == "boom ü"
    assert response.json["details"]["causes"] == [{"reason": "ValueError", "message": "line 3"}]
    assert response.json["kruntimes"]["hop"] == "worker"
    assert response.json["kruntimes"]["retryable"] is reason.info.retryable
    assert len(runtimed.seen) == 1


async def test_an_error_frame_is_an_error_and_an_unknown_reason_is_ours(gateway: Stage, runtimed: FakeRuntimed) -> None:
    async def fail(request: Request, head: InvokeRequest) -> Reply:
        raise CallError(ErrorHead(reason="Strange", message="what"))

    runtimed.handler = fail
    client = await gateway.client()
    response = await client.request()
    assert (response.status, response.reason) == (500, "InternalError")
    assert response.json["message"] == "Strange: what"


async def test_a_refused_call_at_first_registration_is_told_at_once(gateway: Stage, runtimed: FakeRuntimed) -> None:
    async def refuse(request: Request, head: InvokeRequest) -> Reply:
        raise Refused(ErrorHead(reason="RunNotReady", message="not registered yet"))

    runtimed.handler = refuse
    gateway.see_run(run_fact(RunUID("first"), Phase.REGISTERING))
    client = await gateway.client()
    response = await client.request(path=PATH.replace(RUN, "first"))
    assert (response.status, response.reason) == (503, "RunNotReady")
    assert len(runtimed.seen) == 1


async def test_a_call_that_is_not_dispatched_by_its_deadline_did_not_run(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    gateway.kube.answering.clear()
    client = await gateway.client()
    waiting = asyncio.create_task(client.request(headers={"X-Kruntime-Timeout-Ms": "1"}))
    await eventually(lambda: len(gateway.kube.asked) > 0)
    await asyncio.sleep(0.005)  # past the deadline of the call
    gateway.kube.answering.set()
    response = await waiting
    assert (response.status, response.reason) == (504, "InvocationTimeout")
    assert response.json["kruntimes"]["retryable"] is True
    assert runtimed.seen == []


async def test_health_pages_answer_get_and_head(gateway: Stage) -> None:
    client = await gateway.client()
    assert (await client.request("GET", "/livez", b"")).status == 200
    assert (await client.request("HEAD", "/readyz", b"")).status == 200
    gateway.ready = False
    assert (await client.request("GET", "/readyz", b"")).status == 503
    assert (await client.request("GET", "/livez", b"")).status == 200


async def test_health_pages_are_read_and_nothing_else(gateway: Stage) -> None:
    client = await gateway.client()
    for method in ("POST", "TRACE", "DELETE"):
        response = await client.request(method, "/livez", b"")
        assert (response.status, response.reason) == (405, "MethodNotAllowed")
        assert response.headers["allow"] == "GET, HEAD"


async def test_a_callers_token_never_leaves_for_a_pod(gateway: Stage, runtimed: FakeRuntimed) -> None:
    """Whoever has taken a Pod over reads what it is sent: user and body, no credential."""
    token = "secret-of-the-caller"
    gateway.kube.users[token] = gateway.kube.users["good"]
    sent: list[bytes] = []

    async def read(request: Request, head: InvokeRequest) -> Reply:
        sent.append(bytes(request.head) + request.body)
        return Reply(InvokeReply(status=200), b"{}")

    runtimed.handler = read
    client = await gateway.client()
    for fields in ({}, {"Cookie": token}, {"traceparent": f"00-{token}"}):
        headers = {"Authorization": f"Bearer {token}"} | fields
        assert (await client.request(headers=headers, body=b'{"a":1}')).status == 200
    assert len(sent) == 3
    assert b"jane" in sent[0]
    assert not any(token.encode() in one for one in sent)


async def test_a_task_that_waits_for_its_first_pod_is_no_function_and_a_function_is_not_ready(
    gateway: Stage, runtimed: FakeRuntimed
) -> None:
    """A Table has no modes: a runtimed of the Runtime is asked, once a Run, before the body is judged or even sent."""
    runtimed.modes = {"waiting-task": Mode.TASK, "waiting-function": Mode.FUNCTION}
    client = await gateway.client()
    assert (await client.request()).status == 200  # its connection is warm, as a ready Pod's is
    for uid, reason, asked in (
        ("waiting-task", "NotAFunction", 1),
        ("waiting-task", "NotAFunction", 1),
        ("waiting-function", "RunNotReady", 2),
        ("waiting-function", "RunNotReady", 2),
        ("unheard-of", "RunNotReady", 3),
    ):
        gateway.see_run(run_fact(RunUID(uid), Phase.PENDING, attempt=0, pod_uid=None))  # again, as a watch shows it
        response = await client.request(path=PATH.replace(RUN, uid), headers={"Content-Type": "text/plain"})
        assert (response.reason, runtimed.asked) == (reason, asked)
    assert len(runtimed.seen) == 1


async def test_who_does_not_say_what_a_waiting_run_is_keeps_no_call_beyond_its_time(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MODE_TIMEOUT_S", 60.0)
    runtimed.silent = True
    client = await gateway.client()
    assert (await client.request()).status == 200
    gateway.see_run(run_fact(RunUID("waiting"), Phase.PENDING, attempt=0, pod_uid=None))
    path = PATH.replace(RUN, "waiting")
    response = await client.request(path=path, headers={"X-Kruntime-Timeout-Ms": "50"})
    assert (response.reason, runtimed.asked) == ("RunNotReady", 1)


async def test_where_nobody_can_say_what_a_waiting_run_is_it_is_not_ready(empty: Stage) -> None:
    empty.see_run(run_fact(phase=Phase.PENDING, attempt=0, pod_uid=None))
    assert (await (await empty.client()).request()).reason == "RunNotReady"
