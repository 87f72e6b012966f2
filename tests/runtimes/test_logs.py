"""Run logs: whole lines, under their invocation, bounded, and never an error to a call."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtimes.contract.limits import (
    LOG_INVOCATION_MAX_BYTES,
    LOG_LINE_MAX_BYTES,
    LOG_RUN_MAX_BYTES,
    STDERR_TAIL_MAX_BYTES,
)
from runtimes.server.logs import Capture, RunLog, prune_logs


def entries(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Pipe:
    """A pipe whose reading end a Capture has."""

    def __init__(self, folder: Path) -> None:
        reading, self.writing = os.pipe()
        os.set_blocking(reading, False)
        self.path = folder / "run.ndjson"
        self.log = RunLog(folder, "run", 2)
        self.capture = Capture(asyncio.get_running_loop(), reading, "stderr", self.log)

    def write(self, data: bytes) -> None:
        """Write as a handler does, while the other end reads."""
        for start in range(0, len(data), 60_000):
            os.write(self.writing, data[start : start + 60_000])
            self.capture.drain()

    def close(self) -> None:
        os.close(self.writing)
        self.capture.close()
        self.log.close()


@pytest.fixture
async def pipe(tmp_path: Path) -> Iterator[Pipe]:  # type: ignore[misc]
    made = Pipe(tmp_path)
    yield made
    made.close()


async def test_lines_belong_to_the_invocation_that_was_current(pipe: Pipe) -> None:
    pipe.capture.begin("one")
    pipe.write(b"a\nb\npart")
    pipe.write(b"ial\nrest")
    pipe.capture.finish()
    pipe.write(b"between\n")
    pipe.capture.begin("two")
    pipe.write(b"c\n")
    found = [(e["invocation"], e["line"], e["attempt"], e["stream"]) for e in entries(pipe.path)]
    assert found == [
        ("one", "a", 2, "stderr"),
        ("one", "b", 2, "stderr"),
        ("one", "partial", 2, "stderr"),
        ("one", "rest", 2, "stderr"),
        ("", "between", 2, "stderr"),
        ("two", "c", 2, "stderr"),
    ]


async def test_bytes_that_are_no_text_are_replaced(pipe: Pipe) -> None:
    pipe.write(b"a\xff\x00b\n")
    assert entries(pipe.path)[0]["line"] == "a\ufffd\x00b"


async def test_a_long_line_is_cut_and_says_so(pipe: Pipe) -> None:
    pipe.write(b"x" * (LOG_LINE_MAX_BYTES + 10) + b"\nshort\n")
    found = entries(pipe.path)
    assert all(len(str(e["line"])) <= LOG_LINE_MAX_BYTES for e in found)
    assert found[0]["cut"] and not found[-1]["cut"] and found[-1]["line"] == "short"


async def test_what_one_invocation_prints_is_bounded_and_the_next_is_heard_again(pipe: Pipe) -> None:
    pipe.capture.begin("loud")
    pipe.write(b"0123456789\n" * (LOG_INVOCATION_MAX_BYTES // 11 + 1000))
    pipe.capture.finish()
    pipe.capture.begin("next")
    pipe.write(b"heard\n")
    found = entries(pipe.path)
    assert (
        sum(len(str(e["line"])) + 1 for e in found if e["stream"] == "stderr" and e["invocation"] == "loud")
        <= LOG_INVOCATION_MAX_BYTES
    )
    assert [e["stream"] for e in found if e["cut"]] == ["system"]
    assert found[-1]["line"] == "heard"


async def test_the_tail_is_the_last_whole_lines(pipe: Pipe) -> None:
    pipe.capture.begin("x")
    pipe.write(b"".join(b"line %d\n" % i for i in range(5000)))
    tail = pipe.capture.tail
    assert len(tail) <= STDERR_TAIL_MAX_BYTES and tail.startswith("line ") and tail.endswith("line 4999")
    pipe.capture.begin("y")
    assert pipe.capture.tail == ""


def test_a_full_log_is_moved_aside_once(tmp_path: Path) -> None:
    log = RunLog(tmp_path, "run", 1)
    for number in range(3 * LOG_RUN_MAX_BYTES // 100_000):
        log.write("stdout", "i", [b"%d" % number] + [b"x" * 10_000] * 10)
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["run.1.ndjson", "run.ndjson"]
    assert all(path.stat().st_size <= LOG_RUN_MAX_BYTES for path in tmp_path.iterdir())
    last = int(str(entries(tmp_path / "run.1.ndjson")[-11]["line"]))
    notice, first = entries(tmp_path / "run.ndjson")[:2]
    assert "older lines are gone" in str(notice["line"]) and first["line"] == str(last + 1)


def test_a_log_that_cannot_be_written_raises_nothing_and_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log = RunLog(folder, "run", 1)
    log.write("stdout", "", [b"lost"])
    folder.mkdir()
    log.write("stdout", "", [b"kept"])
    log.close()
    assert [e["line"] for e in entries(folder / "run.ndjson")] == ["kept"]


def test_pruning_removes_the_oldest_of_runs_that_are_gone(tmp_path: Path) -> None:
    for age, name in enumerate(["newest", "held", "old.1", "oldest"]):
        path = tmp_path / f"{name}.ndjson"
        path.write_bytes(b"x" * 100)
        os.utime(path, ns=(10**18 - age * 10**9, 10**18 - age * 10**9))
    assert prune_logs(tmp_path, {"held"}, limit_bytes=250) == 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held.ndjson", "newest.ndjson"]
    assert prune_logs(tmp_path, {"held"}, limit_bytes=1000, limit_files=1) == 100
    assert [path.name for path in tmp_path.iterdir()] == ["held.ndjson"]
