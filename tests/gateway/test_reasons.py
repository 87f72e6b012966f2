"""Every row of the error table, from every place that can produce it, as the client's socket shows it (I1)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dataplane.gateway import connection, dispatch
from dataplane.gateway.limits import FIELD_MAX_BYTES, FIELDS_MAX, TARGET_MAX_BYTES
from dataplane.runtimed.answers import of_server_error, refusal
from dataplane.wire.messages import Hop, InvokeRequest
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError, Refused, Reply, Request
from statemachine.reasons import Fault, Reason
from statemachine.run import Phase, RunUID
from tests.gateway.stage import PATH, RUN, FakeRuntimed, Response, Stage, encode_request, run_fact

ANSWERS = [reason for reason in Reason if reason.info.http_status]
FIRST = RunUID("first")
"""A Run at its first registration: its calls are not held while it is not ready."""

GOOD = encode_request()
ON_THE_SOCKET = {
    "InvalidRequest": [
        GOOD.replace(b"Host: localhost\r\n", b""),
        GOOD.replace(b"Host: localhost", b"Host: a\r\nHost: b"),
        GOOD.replace(b"Authorization", b"Authorization: Bearer good\r\nAuthorization"),
        GOOD.replace(b"Host", b"no header\r\nHost"),
        GOOD.replace(b"Host", b"X-Kruntime-Timeout-Ms: 1\r\nX-Kruntime-Timeout-Ms: 1\r\nHost"),
        GOOD.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
    ],
    "URITooLong": [encode_request(path="/" + "x" * TARGET_MAX_BYTES)],
    "HeadersTooLarge": [
        encode_request(headers={"X": "x" * FIELD_MAX_BYTES}),
        encode_request(headers={f"X-{number}": "y" for number in range(FIELDS_MAX)}),
    ],
    "ExpectationFailed": [encode_request(headers={"Expect": "the-best"})],
    "NotImplemented": [encode_request(headers={"Content-Length": "-", "Transfer-Encoding": "gzip, chunked"})],
    "HTTPVersionNotSupported": [GOOD.replace(b"HTTP/1.1", b"HTTP/1.2"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"],
}


@pytest.mark.parametrize(
    ("reason", "raw"), [pytest.param(reason, raw, id=reason) for reason, all_ in ON_THE_SOCKET.items() for raw in all_]
)
async def test_what_is_no_request_gets_the_same_shape_and_ends_the_connection(
    gateway: Stage, runtimed: FakeRuntimed, reason: str, raw: bytes
) -> None:
    client = await gateway.client()
    client.send(raw + GOOD)
    response = await client.receive()
    assert (response.status, response.reason) == (Reason(reason).info.http_status, reason)
    assert response.json["kruntimes"]["hop"] == "gateway"
    assert response.headers["connection"] == "close"
    assert await client.closed()
    assert runtimed.seen == []


async def test_a_head_that_takes_too_long_gets_the_same_shape(gateway: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)
    client = await gateway.client()
    client.send(GOOD[:30])
    response = await client.receive()
    assert (response.status, response.reason) == (408, "RequestTimeout")
    assert await client.closed()


Place = Callable[[Reason], Callable[[Request, InvokeRequest], Awaitable[Reply]]]


def as_refusal(hop: Hop) -> Place:
    """runtimed answers, as owner or as the peer that passed the call on."""

    def place(reason: Reason) -> Callable[[Request, InvokeRequest], Awaitable[Reply]]:
        async def answer(request: Request, head: InvokeRequest) -> Reply:
            return Reply(refusal(reason, hop=hop))

        return answer

    return place


def of_the_server(reason: Reason) -> Callable[[Request, InvokeRequest], Awaitable[Reply]]:
    """The Runtime Server took it and it failed there, or in the worker."""

    async def answer(request: Request, head: InvokeRequest) -> Reply:
        return Reply(of_server_error(ErrorHead(reason=reason.value, message="so it was", details={"type": "E"})))

    return answer


def as_an_error_frame(reason: Reason) -> Callable[[Request, InvokeRequest], Awaitable[Reply]]:
    """runtimed's port itself."""

    async def answer(request: Request, head: InvokeRequest) -> Reply:
        raise CallError(ErrorHead(reason=reason.value, message="so it was"))

    return answer


async def ask(gateway: Stage, runtimed: FakeRuntimed, handler: Callable[..., Awaitable[Reply]]) -> Response:
    runtimed.handler = handler
    gateway.see_run(run_fact(FIRST, Phase.REGISTERING))
    client = await gateway.client()
    return await client.request(path=PATH.replace(RUN, FIRST))


@pytest.mark.parametrize("reason", ANSWERS, ids=str)
@pytest.mark.parametrize(
    "place", [as_refusal("runtimed"), as_refusal("peer"), of_the_server, as_an_error_frame], ids=range(4)
)
async def test_every_reason_of_an_owner_is_told_with_its_row(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch, place: Place, reason: Reason
) -> None:
    monkeypatch.setattr(dispatch, "MOVING_HOLD_S", 0.01)
    response = await ask(gateway, runtimed, place(reason))
    info = reason.info
    assert (response.status, response.reason) == (info.http_status, reason.value)
    said = response.json
    assert said["kruntimes"]["retryable"] is info.retryable
    assert said["kruntimes"]["hop"] in ("runtimed", "peer", "runtime", "worker")
    assert (said["kruntimes"]["hop"] == "worker") <= (info.fault is Fault.FUNCTION)
    assert ("retry-after" in response.headers) is (info.retryable and info.http_status in (429, 503))
    assert (said["details"]["kind"], said["details"]["uid"], said["details"]["name"]) == ("runs", FIRST, "hello")
    assert len(runtimed.seen) == 1


@pytest.mark.parametrize("reason", ANSWERS, ids=str)
async def test_what_was_refused_did_not_run_and_says_so_whatever_the_refusal_is_called(
    gateway: Stage, runtimed: FakeRuntimed, monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    async def refuse(request: Request, head: InvokeRequest) -> Reply:
        raise Refused(ErrorHead(reason=reason.value, message="not here"))

    monkeypatch.setattr(dispatch, "MOVING_HOLD_S", 0.01)
    response = await ask(gateway, runtimed, refuse)
    assert response.status == 503
    assert response.reason
    assert response.json["kruntimes"]["retryable"] is True
    assert response.headers["retry-after"] == "1"


async def test_the_same_is_said_to_who_waits_beside(gateway: Stage, runtimed: FakeRuntimed) -> None:
    """The id of each answer is its own call's, also among many at once."""
    clients = [await gateway.client() for _ in range(8)]

    async def one(number: int) -> None:
        for count in range(20):
            name = f"{number}-{count}"
            method = "GET" if count % 3 == 0 else "POST"
            response = await clients[number].request(method, headers={"X-Kruntime-Invocation-ID": name})
            assert response.headers["x-kruntime-invocation-id"] == name
            assert response.status == (405 if method == "GET" else 200)

    await asyncio.gather(*(one(number) for number in range(8)))
