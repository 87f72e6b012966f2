"""The client against a server that answers slowly, wrongly, half, or with something else than Kubernetes."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from controlplane.kube.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from controlplane.kube.resources import CONFIGMAPS, NAMESPACES
from controlplane.kube.transport import CONNECTIONS_MAX
from tests.kit.waiting import eventually
from tests.kube.apiserver import BadApiServer, answer, config_map, kubeconfig, listed, status, stream
from tests.kube.conftest import Connect

MAPS = "/api/v1/namespaces/default/configmaps"
ONE = f"{MAPS}/one"


async def test_a_call_says_who_it_is_and_decodes_into_the_struct(server: BadApiServer, connect: Connect) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(config_map("one", 7, key="value") | {"unknownField": [1, 2]})

    server.routes[ONE] = handler
    client = await connect()
    found = await client.get(CONFIGMAPS, "default", "one")
    assert (found.metadata.resource_version, found.data) == ("7", {"key": "value"})
    method, path, headers = server.seen[0]
    assert (method, path) == ("GET", ONE)
    assert headers["Authorization"] == "Bearer secret"
    assert headers["User-Agent"] == "kruntimes-test/1"


async def test_connections_are_kept(server: BadApiServer, connect: Connect) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(config_map("one", 7))

    server.routes[ONE] = handler
    client = await connect()
    for _ in range(20):
        await client.get(CONFIGMAPS, "default", "one")
    assert server.connections == 1


async def test_a_created_object_carries_its_kind(server: BadApiServer, connect: Connect) -> None:
    bodies = []

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return answer(bodies[-1], 201)

    server.routes[MAPS] = handler
    client = await connect()
    await client.create(CONFIGMAPS, "default", {"metadata": {"name": "one"}, "data": {"a": "b"}})
    assert bodies == [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "b"}}]


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (415, "UnsupportedMediaType", BadRequest),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (507, "InsufficientStorage", Unavailable),
    ],
)
async def test_each_refusal_is_its_own_class(
    server: BadApiServer, connect: Connect, code: int, reason: str, kind: type[KubeError]
) -> None:
    async def handler(_: web.Request) -> web.Response:
        return status(code, reason, "because", **{"Retry-After": "3"})

    server.routes[ONE] = handler
    client = await connect()
    with pytest.raises(kind, match="because") as caught:
        await client.get(CONFIGMAPS, "default", "one")
    assert type(caught.value) is kind
    assert caught.value.status.code == code
    assert caught.value.retry_after_seconds == 3


@pytest.mark.parametrize(
    "body", [b"", b"<html>Bad Gateway</html>", b"\xff\xfe\x00", b'{"kind":"Status"}', b"[]", b"null"]
)
async def test_a_proxy_that_answers_is_unavailable(server: BadApiServer, connect: Connect, body: bytes) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(body, 502)

    server.routes[ONE] = handler
    client = await connect()
    with pytest.raises(Unavailable) as caught:
        await client.get(CONFIGMAPS, "default", "one")
    assert caught.value.status.code == 502
    assert str(caught.value)


@pytest.mark.parametrize("body", [b"", b"garbage", b"\x00\xff", b'{"metadata": 5}', b"[1]", b'{"metadata": {"uid"'])
async def test_a_success_that_is_no_object_is_unavailable(server: BadApiServer, connect: Connect, body: bytes) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(body)

    server.routes[ONE] = handler
    client = await connect()
    with pytest.raises(Unavailable, match="ConfigMap"):
        await client.get(CONFIGMAPS, "default", "one")


async def test_a_redirect_is_not_followed(server: BadApiServer, connect: Connect) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(b"", 302, Location="http://127.0.0.1:1/steal")

    server.routes[ONE] = handler
    client = await connect()
    with pytest.raises(KubeError) as caught:
        await client.get(CONFIGMAPS, "default", "one")
    assert caught.value.status.code == 302


async def test_a_slow_server_is_left_after_the_bound(server: BadApiServer, connect: Connect) -> None:
    async def handler(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server.routes[ONE] = handler
    client = await connect(request_timeout=0.1)
    with pytest.raises(Unavailable, match="no answer in time") as caught:
        await client.get(CONFIGMAPS, "default", "one")
    assert caught.value.sent


async def test_an_answer_that_stops_halfway_is_unavailable(server: BadApiServer, connect: Connect) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await response.write(b'{"metadata":')
        assert request.transport is not None
        request.transport.abort()
        return response

    server.routes[ONE] = handler
    client = await connect()
    with pytest.raises(Unavailable) as caught:
        await client.get(CONFIGMAPS, "default", "one")
    assert caught.value.sent


async def test_a_refused_connection_was_never_sent(connect: Connect, tmp_path: Path) -> None:
    client = await connect(kubeconfig(tmp_path, "http://127.0.0.1:1", name="nobody"))
    with pytest.raises(Unavailable) as caught:
        await client.get(CONFIGMAPS, "default", "one")
    assert not caught.value.sent


async def test_a_closed_client_is_unavailable(server: BadApiServer, connect: Connect) -> None:
    client = await connect()
    await client.close()
    with pytest.raises(Unavailable):
        await client.get(CONFIGMAPS, "default", "one")


async def test_a_list_joins_its_pages(server: BadApiServer, connect: Connect) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.query.get("continue") == "more":
            return answer(listed(9, config_map("two", 2)))
        assert "resourceVersion" not in request.query
        return answer(listed(9, config_map("one", 1), **{"continue": "more"}))

    server.routes[MAPS] = handler
    client = await connect()
    found = await client.list(CONFIGMAPS, "default", labels="a=b", fields="metadata.name=x")
    assert [item.metadata.name for item in found.items] == ["one", "two"]
    assert found.resource_version == "9"
    assert all("labelSelector=a%3Db" in path and "fieldSelector=" in path for _, path, _ in server.seen)


async def test_a_list_whose_snapshot_went_starts_again_in_one_piece(server: BadApiServer, connect: Connect) -> None:
    async def handler(request: web.Request) -> web.Response:
        if "continue" in request.query:
            return status(410, "Expired", "the token is too old")
        if "limit" in request.query:
            return answer(listed(9, config_map("one", 1), **{"continue": "more"}))
        return answer(listed(11, config_map("one", 1), config_map("two", 2)))

    server.routes[MAPS] = handler
    client = await connect()
    found = await client.list(CONFIGMAPS, "default")
    assert [item.metadata.name for item in found.items] == ["one", "two"]
    assert found.resource_version == "11"


async def test_an_unreadable_object_does_not_hide_the_others(
    server: BadApiServer, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(_: web.Request) -> web.Response:
        bad = config_map("bad", 1) | {"data": "not a map"}
        return answer(listed(9, bad, config_map("one", 1)))

    server.routes[MAPS] = handler
    client = await connect()
    found = await client.list(CONFIGMAPS, "default")
    assert [item.metadata.name for item in found.items] == ["one"]
    assert "cannot be read" in caplog.text


async def test_null_items_are_none(server: BadApiServer, connect: Connect) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer({"metadata": {"resourceVersion": "3"}, "items": None})

    server.routes["/api/v1/namespaces"] = handler
    client = await connect()
    assert (await client.list(NAMESPACES)).items == ()


async def test_many_calls_at_once_share_the_pool(server: BadApiServer, connect: Connect) -> None:
    async def handler(_: web.Request) -> web.Response:
        return answer(config_map("one", 1))

    server.routes[ONE] = handler
    client = await connect()
    await asyncio.gather(*(client.get(CONFIGMAPS, "default", "one") for _ in range(200)))
    await eventually(lambda: len(server.seen) == 200)
    assert server.connections <= CONNECTIONS_MAX


async def test_a_cancelled_call_leaves_the_client_usable(server: BadApiServer, connect: Connect) -> None:
    started = asyncio.Event()
    hold = True

    async def handler(_: web.Request) -> web.Response:
        started.set()
        if hold:
            await asyncio.Event().wait()
        return answer(config_map("one", 1))

    server.routes[ONE] = handler
    client = await connect()
    call = asyncio.create_task(client.get(CONFIGMAPS, "default", "one"))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    hold = False
    assert (await client.get(CONFIGMAPS, "default", "one")).metadata.name == "one"
