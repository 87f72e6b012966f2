"""Watches over HTTP: split lines, errors in mid-stream, garbage, silence."""

import asyncio
from contextlib import aclosing

import pytest
from aiohttp import web

from controlplane.kube.api import WatchType
from controlplane.kube.errors import (
    Gone,
    Unavailable,
)
from controlplane.kube.exchange import LINE_MAX_BYTES
from controlplane.kube.resources import CONFIGMAPS
from tests.kit.waiting import eventually
from tests.kube.apiserver import BadApiServer, config_map, line, stream
from tests.kube.conftest import Connect

MAPS = "/api/v1/namespaces/default/configmaps"
ONE = f"{MAPS}/one"


async def test_a_watch_puts_split_lines_together(server: BadApiServer, connect: Connect) -> None:
    first, second = line("ADDED", config_map("one", 1, text="ä" * 50)), line("MODIFIED", config_map("one", 2))

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        for byte in first[:60]:
            await response.write(bytes([byte]))
        await response.write(first[60:] + second + b"\n" + line("BOOKMARK", {"metadata": {"resourceVersion": "5"}}))
        return response

    server.routes[MAPS] = handler
    client = await connect()
    opened: list[bool] = []
    events = [
        (event.type, event.resource_version)
        async for event in client.watch(
            CONFIGMAPS, "default", resource_version="0", on_open=lambda: opened.append(True)
        )
    ]
    assert events == [(WatchType.ADDED, "1"), (WatchType.MODIFIED, "2"), (WatchType.BOOKMARK, "5")]
    assert opened == [True]
    assert "allowWatchBookmarks=true" in server.seen[0][1]
    assert "timeoutSeconds=" in server.seen[0][1]


async def test_an_error_line_in_a_watch_is_that_error(server: BadApiServer, connect: Connect) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await response.write(line("ADDED", config_map("one", 1)))
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        await response.write(line("ERROR", gone))
        return response

    server.routes[MAPS] = handler
    client = await connect()
    seen = []
    with pytest.raises(Gone, match="too old"):
        async for event in client.watch(CONFIGMAPS, "default", resource_version="0"):
            seen.append(event)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\n",
        b"\x00\xff\xfe\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":5}\n',
        b'{"type":"SURPRISE","object":{}}\n',
        b'{"type":"ADDED","object":{"metadata":',
        b"[]\n",
    ],
)
async def test_garbage_in_a_watch_is_unavailable(server: BadApiServer, connect: Connect, garbage: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await response.write(garbage)
        return response

    server.routes[MAPS] = handler
    client = await connect()
    with pytest.raises(Unavailable):
        async for _ in client.watch(CONFIGMAPS, "default", resource_version="0"):
            pass


async def test_a_line_without_end_is_bounded(server: BadApiServer, connect: Connect) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        block = b"x" * (1024 * 1024)
        for _ in range(2 * LINE_MAX_BYTES // len(block)):
            await response.write(block)
        return response

    server.routes[MAPS] = handler
    client = await connect()
    with pytest.raises(Unavailable, match="longer than"):
        async for _ in client.watch(CONFIGMAPS, "default", resource_version="0"):
            pass


async def test_a_half_open_watch_is_noticed(server: BadApiServer, connect: Connect) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await response.write(line("ADDED", config_map("one", 1)))
        await asyncio.Event().wait()
        return response

    server.routes[MAPS] = handler
    client = await connect(watch_timeout=0.05, watch_silence_margin=0.05)
    seen = []
    with pytest.raises(Unavailable, match="no answer in time"):
        async for event in client.watch(CONFIGMAPS, "default", resource_version="0"):
            seen.append(event)
    assert len(seen) == 1


async def test_leaving_a_watch_early_closes_its_connection(server: BadApiServer, connect: Connect) -> None:
    transports: list[asyncio.BaseTransport] = []
    done = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await response.write(line("ADDED", config_map("one", 1)))
        assert request.transport is not None
        transports.append(request.transport)
        await done.wait()
        return response

    server.routes[MAPS] = handler
    client = await connect()
    async with aclosing(client.watch(CONFIGMAPS, "default", resource_version="0")) as events:  # type: ignore[type-var]
        async for _ in events:
            break
    await eventually(lambda: transports[0].is_closing())
    done.set()
