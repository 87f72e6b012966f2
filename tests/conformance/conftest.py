"""Servers for the suite: one a language and session, a client for each test; fresh ones where a test kills them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from runtimes.conformance.dialects import BASH, PYTHON, Dialect
from tests.conformance.kit import Bench, RuntimeProcess


@pytest.fixture(scope="session", params=[PYTHON, BASH], ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    language: Dialect = request.param
    return language


@pytest.fixture(scope="session")
def shared(dialect: Dialect) -> Iterator[RuntimeProcess]:
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    process = RuntimeProcess(dialect, folder)
    process.start()
    yield process
    assert process.stop() == 0, (folder / "server.log").read_text()
    shutil.rmtree(folder)


@pytest.fixture
def fresh(dialect: Dialect) -> Iterator[RuntimeProcess]:
    """A server of this test's own."""
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    process = RuntimeProcess(dialect, folder)
    process.start()
    yield process
    for started in process.started:
        if started.poll() is None:
            started.kill()
            started.wait()
    shutil.rmtree(folder)


@pytest.fixture
async def bench(shared: RuntimeProcess, tmp_path: Path) -> AsyncIterator[Bench]:
    client = await shared.connect()
    yield Bench(client, shared, tmp_path)
    client.close()
    await client.connection.closed


@pytest.fixture
async def own(fresh: RuntimeProcess, tmp_path: Path) -> AsyncIterator[Bench]:
    client = await fresh.connect()
    yield Bench(client, fresh, tmp_path)
    client.close()
    await client.connection.closed
