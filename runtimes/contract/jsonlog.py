"""Structured logs of every process: one JSON object a line on stderr.

Standard library only, so that a Runtime Server may use it. A process calls `setup` once in its main; everyone else uses
`logging.getLogger(__name__)` and passes fields in `extra`: `logger.info("claimed", extra={"run": uid, "attempt": 2})`.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

MESSAGE_MAX_CHARS: Final = 4096  # a line must stay readable and below the limits of log collectors
FIELD_MAX_CHARS: Final = 1024
TRACEBACK_MAX_CHARS: Final = 8192  # its end is kept: the last frames say most

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, process, logger, message, the extra fields, and the error if there is one."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "time": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": _cut(record.getMessage(), MESSAGE_MAX_CHARS),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD and key not in entry:
                entry[key] = _plain(value)
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = self.formatException(record.exc_info)[-TRACEBACK_MAX_CHARS:]
        return json.dumps(entry, ensure_ascii=False, default=str)


def setup(process: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send every log record of this process to `stream` (stderr) as JSON, in place of what was set up before.

    In a forked child this also drops the handlers of the parent.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for chatty in ("asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _cut(value, FIELD_MAX_CHARS)
    return _cut(str(value), FIELD_MAX_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
