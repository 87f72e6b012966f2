"""What `krt status` says of the isolation of functions: plainly, and as the weakest of the Runtime Servers."""

import pytest

from controlplane.cli.machine import isolation
from runtimes.contract.messages import Isolation

LANDLOCK = Isolation(level="sandbox", landlock_abi=6)
OLDER = Isolation(level="sandbox", landlock_abi=3)
NONE = Isolation(level="process")


@pytest.mark.parametrize(
    ("said", "level", "words"),
    [
        ([LANDLOCK, LANDLOCK], "sandbox", "Landlock"),
        ([LANDLOCK, OLDER], "sandbox", "signal each other"),
        ([LANDLOCK, NONE], "process", "functions of one Pod trust each other"),
        ([], "unknown", "nothing is known"),
    ],
)
def test_the_weakest_counts_and_no_sandbox_is_said_plainly(said: list[Isolation], level: str, words: str) -> None:
    found = isolation(said)
    assert found["level"] == level and words in found["message"]
