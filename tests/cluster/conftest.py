"""The cluster that these tests share: brought up and installed by scripts/cluster, only when it is asked for by name.

    KRUNTIMES_TEST_CLUSTER=1 scripts/test tests/cluster        brings it up, builds, loads and installs first
    KRUNTIMES_TEST_CLUSTER=as-is scripts/test tests/cluster    takes what is installed

A cluster that was up before stays up; one that the tests brought up goes down with them.
"""

import os
from collections.abc import Iterator

import pytest

from tests.cluster.kit import Cluster, scripts_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with the chart installed and Runtimes python and bash in namespace default."""
    asked = os.environ.get("KRUNTIMES_TEST_CLUSTER")
    if not asked:
        pytest.skip("needs a real cluster: set KRUNTIMES_TEST_CLUSTER=1 (root; see scripts/cluster)")
    was_up = scripts_cluster("status", check=False) == 0
    scripts_cluster("up")
    try:
        if asked != "as-is":
            scripts_cluster("install", "--set", "defaultRuntimes.namespaces={default},defaultRuntimes.runs=8")
        shared = Cluster()
        shared.settle()
        yield shared
    finally:
        if not was_up:
            scripts_cluster("down")
