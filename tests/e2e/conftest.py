"""The running system that the end-to-end tests share, and fresh ones for tests that break it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, marked, until


def _ended(stack: Stack) -> None:
    if stack.process is not None and stack.process.poll() is None:
        assert stack.stop() == 0
    until("every process of the system ended", lambda: not marked(stack.directory))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A system that tests share: they use names of their own and leave the processes alone."""
    shared = Stack(tmp_path_factory.mktemp("shared") / "data")
    try:
        shared.start()
        yield shared
    finally:
        _ended(shared)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Stack]:
    """A system of one test's own, not started yet."""
    own = Stack(tmp_path / "data")
    yield own
    _ended(own)
