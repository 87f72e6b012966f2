"""What a command opened and nobody closes before its end: connections that are kept for the next request.

`commands` calls `end` when a command is over, whichever way it went.
"""

from contextlib import ExitStack
from typing import Any, Final

_opened: Final = ExitStack()


def at_end(call: Any, *args: Any) -> None:
    """Do this when the command is over."""
    _opened.callback(call, *args)


def end() -> None:
    """The command is over."""
    _opened.close()
