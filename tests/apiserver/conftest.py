"""Fixtures: a data directory made once, a server for each test that asks for one."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.embedded.apiserver.main import Running
from tests.apiserver.harness import Api, serving
from tests.kit.waiting import eventually


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory as the first start leaves it."""
    path = tmp_path_factory.mktemp("installation") / "data"

    async def start_once() -> None:
        async with serving(path) as (running, _):
            await eventually(lambda: running.chores.idle)

    asyncio.run(start_once())
    shutil.rmtree(path / "logs")
    return path


@pytest.fixture
def data(tmp_path: Path, installation: Path) -> Path:
    """A data directory of a server that ran before."""
    return Path(shutil.copytree(installation, tmp_path / "data"))


@pytest.fixture
async def server(data: Path) -> AsyncIterator[tuple[Running, Api]]:
    async with serving(data) as pair:
        yield pair


@pytest.fixture
def api(server: tuple[Running, Api]) -> Api:
    """The administrator's client."""
    return server[1]


@pytest.fixture
def running(server: tuple[Running, Api]) -> Running:
    return server[0]
