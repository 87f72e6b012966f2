"""Options of the whole suite, and the signals that its processes begin with."""

import signal

import pytest


def pytest_configure() -> None:
    """A suite that a script starts in the background inherits an ignored SIGINT, and so would every `krt` it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-scenarios",
        action="store_true",
        help="write the transcripts of tests/scenarios anew; commit none that you cannot explain",
    )
