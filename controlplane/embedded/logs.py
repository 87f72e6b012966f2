"""Log files of processes and containers: bounded, and their last line for an error message.

Lives here: reading and cutting files that others append to. May not live here: what is logged. `supervisor` calls it
next.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Final

LOG_MAX_BYTES: Final = 16 * 1024 * 1024
"""Of one log file; checked once a minute, so a storm may pass it meanwhile. As much again is kept as `.1`."""

LAST_LINE_SHOWN_CHARS: Final = 512
"""Of a line that becomes part of an error message."""

LAST_LINE_BYTES: Final = 4096
"""How far back the last line is looked for."""


def bound(path: Path) -> None:
    """Cut a log that outgrew its limit: its content is copied to `<name>.1`, then the file is emptied in place, since
    its writers (O_APPEND) hold it open. A disk that takes no copy loses the content, not the process."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= LOG_MAX_BYTES:
            return
        with contextlib.suppress(OSError), path.open("rb") as source, path.with_name(f"{path.name}.1").open("wb") as to:
            os.sendfile(to.fileno(), source.fileno(), 0, 2 * LOG_MAX_BYTES)
        os.truncate(path, 0)


def last_line(path: Path) -> str:
    """The last line that is not empty, of a structured one its message, cut to a sane length; "" if there is none."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LAST_LINE_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        return _message(lines[-1])[:LAST_LINE_SHOWN_CHARS] if lines else ""
    return ""


def _message(line: str) -> str:
    with contextlib.suppress(ValueError):
        entry = json.loads(line)
        if isinstance(entry, dict) and isinstance(entry.get("message"), str):
            cause = str(entry.get("error", "")).strip().rpartition("\n")[2]
            return f"{entry['message']}: {cause}" if cause else str(entry["message"])
    return line
