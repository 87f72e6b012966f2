"""The cluster that tests share: brought up and installed by scripts/cluster, only when it is asked for by name.

    KRUNTIMES_TEST_CLUSTER=1 scripts/test -m cluster        brings it up, builds, loads and installs first
    KRUNTIMES_TEST_CLUSTER=as-is scripts/test -m cluster    takes what is installed

A cluster that was up before stays up; one that the tests brought up goes down with them. `tests.conftest` makes the
fixture known to every test.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tests.cluster.kit import Cluster

VALUES: Final = ("--set", "defaultRuntimes.namespaces={default},defaultRuntimes.runs=8")
ASKED: Final = os.environ.get("KRUNTIMES_TEST_CLUSTER", "")


@pytest.fixture(scope="session")
def cluster() -> "Iterator[Cluster]":
    """A cluster with the chart installed and Runtimes python and bash in namespace default."""
    from tests.cluster.kit import Cluster, scripts_cluster

    if not ASKED:
        pytest.skip("needs a real cluster: set KRUNTIMES_TEST_CLUSTER=1 (root; see scripts/cluster)")
    was_up = scripts_cluster("status", check=False) == 0
    if ASKED == "as-is":
        assert was_up, "no cluster is up, and KRUNTIMES_TEST_CLUSTER=as-is takes only what there is"
    try:
        if ASKED != "as-is":
            scripts_cluster("up")
            scripts_cluster("install", *VALUES)
        shared = Cluster()
        shared.settle()
        yield shared
    finally:
        if not was_up:
            scripts_cluster("down")
