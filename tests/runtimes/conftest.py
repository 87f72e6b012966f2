"""A Python Runtime Server for these tests, under the interpreter of the tests and, where present, under others."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conformance.dialects import BASH, PYTHON, Dialect
from tests.conformance.kit import Bench, RuntimeProcess

VERSIONS = Path.home() / ".pyenv/versions"
OTHER_INTERPRETERS = [VERSIONS / version / "bin/python3" for version in ("3.9.18", "3.13.0")]
"""The oldest that is served and the newest."""
MORE_INTERPRETERS = [VERSIONS / version / "bin/python3" for version in ("3.10.13", "3.12.1")] + [
    Path("/usr/bin/python3")
]

BASE_INTERPRETER: str = getattr(sys, "_base_executable", sys.executable)
"""The one below the tests' virtual environment, which has this project installed."""


def _serve(dialect: Dialect, interpreter: str) -> Iterator[RuntimeProcess]:
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    process = RuntimeProcess(dialect, folder, interpreter)
    process.start()
    yield process
    assert process.stop() == 0, (folder / "server.log").read_text()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def python_server() -> Iterator[RuntimeProcess]:
    yield from _serve(PYTHON, BASE_INTERPRETER)


@pytest.fixture(
    scope="session",
    params=[*OTHER_INTERPRETERS, *(pytest.param(path, marks=pytest.mark.soak) for path in MORE_INTERPRETERS)],
    ids=lambda path: path.parent.parent.name,
)
def other_server(request: pytest.FixtureRequest) -> Iterator[RuntimeProcess]:
    if not request.param.exists():
        pytest.skip(f"{request.param} is not on this machine")
    yield from _serve(PYTHON, str(request.param))


@pytest.fixture(scope="session")
def bash_server() -> Iterator[RuntimeProcess]:
    yield from _serve(BASH, "")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for a server, with a path that is short enough for its sockets."""
    folder = Path(tempfile.mkdtemp(prefix="kr-"))
    yield folder
    shutil.rmtree(folder)


@asynccontextmanager
async def own_server(
    dialect: Dialect, folder: Path, tmp: Path, *, interpreter: str = "", **environ: str
) -> AsyncIterator[Bench]:
    """A server of one test's own in `folder`, with these variables; it has to end with 0."""
    process = RuntimeProcess(dialect, folder, interpreter, environ=environ)
    process.start()
    async for bench in _bench(process, tmp):
        yield bench
    assert process.stop() == 0, (folder / "server.log").read_text()


def base_interpreter(dialect: Dialect) -> str:
    """For Python the one without this project; Bash needs none."""
    return BASE_INTERPRETER if dialect is PYTHON else ""


@pytest.fixture(params=[PYTHON, BASH], ids=lambda dialect: dialect.name)
async def own(request: pytest.FixtureRequest, short_folder: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """A server of this test's own, of each language."""
    async with own_server(request.param, short_folder, tmp_path) as bench:
        yield bench


async def _bench(process: RuntimeProcess, tmp: Path) -> AsyncIterator[Bench]:
    client = await process.connect()
    yield Bench(client, process, tmp)
    client.close()
    await client.connection.closed


@pytest.fixture
async def python(python_server: RuntimeProcess, tmp_path: Path) -> AsyncIterator[Bench]:
    async for bench in _bench(python_server, tmp_path):
        yield bench


@pytest.fixture
async def other_python(other_server: RuntimeProcess, tmp_path: Path) -> AsyncIterator[Bench]:
    async for bench in _bench(other_server, tmp_path):
        yield bench


@pytest.fixture
async def bash(bash_server: RuntimeProcess, tmp_path: Path) -> AsyncIterator[Bench]:
    async for bench in _bench(bash_server, tmp_path):
        yield bench
