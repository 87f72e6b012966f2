"""Logs are one JSON object a line, whatever is logged."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from runtimes.contract import jsonlog


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    out = io.StringIO()
    jsonlog.setup("gateway", stream=out)
    yield out
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_when_who_what_and_about_which_run(stream: io.StringIO) -> None:
    logging.getLogger("dataplane.x").warning("moved %s", "on", extra={"run": "uid-1", "attempt": 2, "gone": None})
    (entry,) = lines(stream)
    assert entry["time"].endswith("Z")
    assert len(entry["time"]) == len("2026-01-01T00:00:00.000000Z")
    del entry["time"]
    assert entry == {
        "level": "warning",
        "process": "gateway",
        "logger": "dataplane.x",
        "message": "moved on",
        "run": "uid-1",
        "attempt": 2,
        "gone": None,
    }


def test_an_error_comes_with_its_last_frames_on_the_same_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("broken\nin two lines")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (entry,) = lines(stream)
    assert entry["error"].endswith("ValueError: broken\nin two lines")


def test_fields_cannot_replace_ours_and_long_or_strange_ones_are_cut_to_text(stream: io.StringIO) -> None:
    extra = {"logger": "liar", "long": "x" * 10_000, "object": object(), "time": "never"}
    logging.getLogger("x").error("y" * 10_000, extra=extra)
    (entry,) = lines(stream)
    assert (entry["time"] != "never", entry["logger"]) == (True, "x")
    assert len(entry["message"]) == jsonlog.MESSAGE_MAX_CHARS
    assert len(entry["long"]) == jsonlog.FIELD_MAX_CHARS
    assert entry["object"].startswith("<object")


def test_setting_up_again_replaces_what_was_there(stream: io.StringIO) -> None:
    second = io.StringIO()
    jsonlog.setup("node", stream=second)
    logging.getLogger("x").info("once")
    assert stream.getvalue() == ""
    assert [entry["process"] for entry in lines(second)] == ["node"]


def test_debug_lines_and_access_lines_of_libraries_are_left_out(stream: io.StringIO) -> None:
    logging.getLogger("x").debug("no")
    logging.getLogger("aiohttp.access").info("no")
    logging.getLogger("asyncio").info("no")
    assert stream.getvalue() == ""
