"""A bad API server and clients of it, for the tests of this folder."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from controlplane.kube.client import KubeClient
from tests.kube.apiserver import BadApiServer, kubeconfig

Connect = Callable[..., Awaitable[KubeClient]]


@pytest.fixture
async def server() -> AsyncIterator[BadApiServer]:
    bad = await BadApiServer().start()
    yield bad
    await bad.stop()


@pytest.fixture
async def connect(server: BadApiServer, tmp_path: Path) -> AsyncIterator[Connect]:
    clients: list[KubeClient] = []

    async def make(path: Path | None = None, **limits: object) -> KubeClient:
        config = path or kubeconfig(tmp_path, server.url, user={"token": "secret"})
        client = await KubeClient.connect(str(config), user_agent="kruntimes-test/1", **limits)  # type: ignore[arg-type]
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()
