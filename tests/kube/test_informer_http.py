"""The informer over real HTTP: a watch that is half open, ends, breaks or lies."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from controlplane.kube.client import KubeClient
from controlplane.kube.clock import SystemClock
from tests.kit.waiting import eventually
from tests.kube.apiserver import BadApiServer, answer, config_map, kubeconfig, line, listed, status, stream
from tests.kube.following import MAPS, Seen, following, running


@pytest.fixture
async def client(server: BadApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    made = await KubeClient.connect(
        str(kubeconfig(tmp_path, server.url)), user_agent="test", watch_timeout=0.2, watch_silence_margin=0.1
    )
    yield made
    await made.close()


async def test_a_half_open_watch_is_replaced_and_nothing_is_missed(server: BadApiServer, client: KubeClient) -> None:
    done = asyncio.Event()
    watches = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return answer(listed(5, config_map("one", 5)))
        watches += 1
        response = await stream(request)
        if watches == 1:
            await response.write(line("ADDED", config_map("two", 6)))
        else:
            assert request.query["resourceVersion"] == "6"
            await response.write(line("DELETED", config_map("two", 7)))
        await done.wait()  # neither a byte nor an end
        return response

    server.routes[MAPS] = handler
    seen = Seen()
    informer = following(client, seen, SystemClock())
    async with running(informer):
        await eventually(lambda: "-two" in seen.lines)
    done.set()
    assert seen.lines == ["+one@5", "LISTED", "+two@6", "-two"]
    assert informer.interruptions >= 1


async def test_a_410_over_http_in_mid_stream_finds_the_deleted(server: BadApiServer, client: KubeClient) -> None:
    lists = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" in request.query:
            if lists > 1:
                return answer(b"")
            response = await stream(request)
            await response.write(line("MODIFIED", config_map("one", 6)))
            gone = {"kind": "Status", "apiVersion": "v1", "code": 410, "reason": "Expired", "message": "too old"}
            await response.write(line("ERROR", gone))
            return response
        lists += 1
        assert "resourceVersion" not in request.query
        return answer(
            listed(5, config_map("one", 5), config_map("two", 4)) if lists == 1 else listed(9, config_map("two", 8))
        )

    server.routes[MAPS] = handler
    seen = Seen()
    informer = following(client, seen, SystemClock())
    async with running(informer):
        await eventually(lambda: seen.lines.count("LISTED") == 2)
    assert seen.lines == ["+one@5", "+two@4", "LISTED", "~one@6", "-one", "~two@8", "LISTED"]


@pytest.mark.parametrize("garbage", [b"\x00\xffgarbage\n", b'{"type":"ADDED","object":{"metadata":7}}\n', b"[]\n"])
async def test_garbage_is_passed_by_listing_again(server: BadApiServer, client: KubeClient, garbage: bytes) -> None:
    lists = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" not in request.query:
            lists += 1
            return answer(listed(5) if lists == 1 else listed(6, config_map("one", 6)))
        response = await stream(request)
        if request.query["resourceVersion"] == "5":  # the same line again and again, as a server has it in its history
            await response.write(garbage)
        return response

    server.routes[MAPS] = handler
    seen = Seen()
    async with running(following(client, seen, SystemClock())):
        await eventually(lambda: "+one@6" in seen.lines)


async def test_a_server_that_forbids_is_asked_again_and_listed_anew(server: BadApiServer, client: KubeClient) -> None:
    refusals = 2

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal refusals
        if "watch" in request.query:
            return await stream(request)
        if refusals:
            refusals -= 1
            return status(403, "Forbidden", "not yet bound")
        return answer(listed(5, config_map("one", 5)))

    server.routes[MAPS] = handler
    seen = Seen()
    async with running(following(client, seen, SystemClock())):
        await eventually(lambda: "LISTED" in seen.lines)
    assert seen.lines[0] == "+one@5"


async def test_a_watch_that_ends_at_once_again_and_again_does_not_spin(
    server: BadApiServer, client: KubeClient
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(request) if "watch" in request.query else answer(listed(5))

    server.routes[MAPS] = handler
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with running(following(client, Seen(), SystemClock())):
        await eventually(lambda: len(server.seen) == 6)
    assert loop.time() - began >= 0.3  # one list and five watches: none, 50, 100 and 200 ms between them, at the least
