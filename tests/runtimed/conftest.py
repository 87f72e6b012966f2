"""Fixtures of the daemon's tests: a Pod that is taken down after each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtimed.fakes import FakePod


@pytest.fixture
async def pod(tmp_path: Path) -> AsyncIterator[FakePod]:
    """A Pod without a daemon yet: tests seed what it finds and `boot` it."""
    pod = FakePod(tmp_path)
    yield pod
    await pod.crash()
