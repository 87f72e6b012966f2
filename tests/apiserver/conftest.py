"""Fixtures: a certificate authority made once, a server for each test that asks for one."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.embedded.apiserver.main import Running
from controlplane.pki.ca import create_installation
from tests.apiserver.harness import Api, serving


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of keys and certificates to copy."""
    path = tmp_path_factory.mktemp("installation") / "pki"
    create_installation(path)
    return path


@pytest.fixture
def data(tmp_path: Path, installation: Path) -> Path:
    """A data directory that has its certificates."""
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    shutil.copytree(installation, path / "pki")
    return path


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
