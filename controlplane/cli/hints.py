"""What a user may do next about a failure: a hint behind the message on stderr, never a part of the API's texts.

Commands that know the Run give its name. `Failure.line` prints it.
"""

import re
from typing import Final

from statemachine.reasons import Reason

SOURCE_TOO_LARGE: Final = "SourceTooLarge"  # of a file that `krt run` would write into the Run

_NEXT: Final[dict[str, str]] = {
    SOURCE_TOO_LARGE: "put it into a Git repository and name that in spec.source.git",
    Reason.TASK_FAILED: "krt logs {name} shows what it printed",
    Reason.TOO_MANY_INVOCATIONS: "wait for a call to end, or make the Run with more spec.mode.function.concurrency",
    Reason.RUN_FINISHED: "krt run --replace makes it anew",
}
_FRAME: Final = re.compile(r'^  File "([^"]*)", line (\d+)', re.MULTILINE)


def next_step(reason: str, name: str = "") -> str:
    """The hint for a reason; empty where there is nothing to do but to read the message."""
    return _NEXT.get(reason, "").format(name=name)


def last_frame(frames: str) -> str:
    """Where user code failed, `file:line` with the file as in its source; empty when the frames do not say."""
    found = _FRAME.findall(frames)
    if not found:
        return ""
    path, line = found[-1]
    return f"{path.rpartition('/src/')[2]}:{line} (-v shows all frames)"
