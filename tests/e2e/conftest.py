"""The running systems that the end-to-end tests take: one that they share, and fresh ones for tests that break it.

Both come as `krt up` on this machine and, where KRUNTIMES_TEST_CLUSTER is set, as a namespace of a real cluster; the
marker `cluster` picks the latter. A test marked `embedded` is of the former alone.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.fixture import ASKED
from tests.e2e.embedded import Embedded, marked
from tests.e2e.stack import Stack, until

STACKS = ["embedded", *([pytest.param("cluster", marks=pytest.mark.cluster)] if ASKED else [])]
NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what does not exist: a test of one machine on a cluster."""
    absent = [item for item in items if item.get_closest_marker("embedded") and item.get_closest_marker("cluster")]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in set(absent)]


def _ended(stack: Embedded) -> None:
    if stack.process is not None and stack.process.poll() is None:
        assert stack.stop() == 0
    until("every process of the system ended", lambda: not marked(stack.directory))


@contextmanager
def _namespace(request: pytest.FixtureRequest, name: str, directory: Path, *languages: str) -> Iterator[Stack]:
    from tests.e2e.oncluster import OnCluster

    own = OnCluster(request.getfixturevalue("cluster"), name, directory, *languages)
    try:
        yield own
    finally:
        own.stop()


@pytest.fixture(scope="session", params=STACKS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A system that tests share: they use names of their own and leave the processes alone."""
    folder = tmp_path_factory.mktemp("shared")
    if request.param == "cluster":
        with _namespace(request, f"e2e-{os.getpid()}", folder, "python", "bash") as own:
            own.start()
            yield own
        return
    shared = Embedded(folder / "data")
    try:
        shared.start()
        yield shared
    finally:
        _ended(shared)


@pytest.fixture
def one_machine(tmp_path: Path) -> Iterator[Embedded]:
    """A `krt up` of one test's own, not started yet."""
    own = Embedded(tmp_path / "data")
    yield own
    _ended(own)


@pytest.fixture(params=STACKS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """A system of one test's own, not started yet."""
    if request.param == "cluster":
        with _namespace(request, f"fresh-{os.getpid()}-{next(NUMBERS)}", tmp_path, "python") as own:
            yield own
    else:
        yield request.getfixturevalue("one_machine")
