"""Fixtures: one certificate authority a session, one gateway and one Pod a test."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.gateway.stage import FakeRuntimed, Stage, run_fact, stage
from tests.wire.installation import Installation


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the process runs on: another one's sockets and TLS end in other ways."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("pki"))


@pytest.fixture
async def empty(installation: Installation) -> AsyncIterator[Stage]:
    """A gateway that knows no Run and no Pod."""
    async with stage(installation) as the_stage:
        yield the_stage


@pytest.fixture
async def runtimed(installation: Installation) -> AsyncIterator[FakeRuntimed]:
    server = await FakeRuntimed(installation).start()
    yield server
    server.server.close()


@pytest.fixture
async def gateway(empty: Stage, runtimed: FakeRuntimed) -> Stage:
    """A gateway that knows the Run `hello`, Ready on the Pod of `runtimed`."""
    empty.see_pod(runtimed.fact())
    empty.see_run(run_fact())
    return empty
