"""`krt logs`: lines of the API's ndjson, once and as they come."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.harness import run as a_run
from tests.cli.stage import Krt, Kubernetes


class Log:
    """The file that a Runtime Server writes for one Run."""

    def __init__(self, kubernetes: Kubernetes, uid: str) -> None:
        self.path = kubernetes.directory / "pods" / "pod" / "volumes" / "work" / "logs" / f"{uid}.ndjson"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._count = 0

    def write(self, line: str, invocation: str = "") -> None:
        self._count += 1
        time = f"2026-01-01T00:00:00.{self._count:06d}Z"
        record = {"time": time, "stream": "stdout", "invocation": invocation, "attempt": 1, "line": line, "cut": False}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")


@pytest.fixture
def log(kubernetes: Kubernetes) -> Iterator[Log]:
    made = Log(kubernetes, kubernetes.put(a_run("it"))["metadata"]["uid"])
    yield made
    made.path.unlink(missing_ok=True)


def test_lines_are_printed_as_they_were(krt: Krt, log: Log) -> None:
    for number in range(3):
        log.write(f"line {number} ü", f"call-{number}")
    assert krt("logs", "it").out == "line 0 ü\nline 1 ü\nline 2 ü\n"
    assert krt("logs", "it", "--tail", "1").out == "line 2 ü\n"
    assert krt("logs", "it", "--tail", "0").out == ""
    assert krt("logs", "it", "--tail", "-1").out == krt("logs", "run/it").out
    assert krt("logs", "it", "--invocation", "call-1").out == "line 1 ü\n"
    nothing = krt("logs", "it", "--invocation", "other")
    said = "the log of Run it has no line of invocation other\n"
    assert (nothing.code, nothing.out, nothing.err) == (0, "", said)
    timed = "2026-01-01T00:00:00.000001Z stdout call-0 line 0 ü"
    assert krt("logs", "it", "--timestamps").out.splitlines()[0] == timed


def test_following_ends_with_the_run(krt: Krt, kubernetes: Kubernetes, log: Log) -> None:
    log.write("before")
    script = kubernetes.task(kubernetes.script("it", [{"phase": "Succeeded"}]))
    done = krt("logs", "it", "-f")
    script.result(5)
    assert (done.code, done.out) == (0, "before\n")
    log.write("after")
    assert krt("logs", "it", "-f", "--tail", "1").out == "after\n"
    assert krt("logs", "it", "-f", "--tail", "0").out == ""


@pytest.mark.parametrize("options", [("--tail", "501"), ("--tail", "-2"), ("--invocation", "")])
def test_options_out_of_bounds_are_usage_errors(options: tuple[str, str], krt: Krt) -> None:
    krt("logs", "it", *options).failed(2, "InvalidOption")


def test_a_run_that_is_not_there_has_no_log(krt: Krt, kubernetes: Kubernetes, tmp_path: Path) -> None:
    krt("logs", "nobody").failed(3, "NotFound")
    krt("logs", "nobody", "-f").failed(3, "NotFound")
    kubernetes.put(a_run("silent"))
    assert krt("logs", "silent") == krt("logs", "silent", "--tail", "5")
