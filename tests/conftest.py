"""Options, markers and signals of the whole suite, and the cluster that its tests may share."""

import signal

import pytest

from tests.cluster.fixture import cluster as cluster  # a fixture of every test

MARKERS = (
    "cluster: on a real Kubernetes; without KRUNTIMES_TEST_CLUSTER there are none (tests/cluster/fixture.py)",
    "embedded(reason): of a system on one machine alone, and why",
)


def pytest_configure(config: pytest.Config) -> None:
    """A suite that a script starts in the background inherits an ignored SIGINT, and so would every `krt` it starts."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write the transcripts of tests/scenarios anew; commit none that you cannot explain",
    )
