"""What one call prints is in the log whole and in order, up to the named limits, and every cut is said."""

import contextlib
import json

from runtimes.contract.calls import CallError
from runtimes.contract.limits import LOG_INVOCATION_MAX_BYTES, LOG_LINE_MAX_BYTES, LOG_RECORD_BYTES
from tests.conformance.kit import Bench, failing

PRINTS = """
import sys

def invoke(request):
    for number in range(request.get("lines", 0)):
        print(f"out {number} ü", flush=number % 7 == 0)
        print(f"err {number}", file=sys.stderr)
    if "long" in request:
        print("x" * request["long"])
        print("after it")
    return {}
"""


async def printed(bench: Bench, request: dict[str, int]) -> list[dict[str, object]]:
    epoch, registration = await bench.register("", files={"main.py": PRINTS})
    await bench.invoke(registration, {"lines": 1}, invocation="other-1")
    await bench.invoke(registration, request, invocation="mine", timeout=30)
    await bench.invoke(registration, {"lines": 1}, invocation="other-2")
    found = sorted((bench.server.folder / "logs").glob(f"{epoch.run_uid}*.ndjson"))  # the older one first
    entries = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    return [entry for entry in entries if entry["invocation"] == "mine"]


async def test_every_line_of_a_call_is_there_in_the_order_of_its_stream(python: Bench) -> None:
    entries = await printed(python, {"lines": 3000})
    assert [e["line"] for e in entries if e["stream"] == "stdout"] == [f"out {n} ü" for n in range(3000)]
    assert [e["line"] for e in entries if e["stream"] == "stderr"] == [f"err {n}" for n in range(3000)]
    assert not any(e["cut"] for e in entries)
    assert [e["time"] for e in entries] == sorted(str(e["time"]) for e in entries)


async def test_a_line_beyond_its_limit_is_cut_and_a_line_says_so(python: Bench) -> None:
    entries = await printed(python, {"long": LOG_LINE_MAX_BYTES})
    assert [(e["line"], e["cut"]) for e in entries] == [("x" * LOG_LINE_MAX_BYTES, False), ("after it", False)]
    entries = await printed(python, {"long": LOG_LINE_MAX_BYTES + 1})
    first, notice, after = entries
    assert first["line"] == "x" * LOG_LINE_MAX_BYTES and first["cut"]
    assert notice["stream"] == "system" and str(LOG_LINE_MAX_BYTES) in str(notice["line"])
    assert after["line"] == "after it"


async def test_a_call_beyond_its_limit_keeps_its_first_lines_and_says_so(python: Bench) -> None:
    entries = await printed(python, {"lines": 200_000})
    out = [str(e["line"]) for e in entries if e["stream"] == "stdout"]
    assert out == [f"out {n} ü" for n in range(len(out))]
    stored = sum(len(text.encode()) + LOG_RECORD_BYTES for text in out)
    assert LOG_INVOCATION_MAX_BYTES * 0.99 < stored <= LOG_INVOCATION_MAX_BYTES
    notices = [str(e["line"]) for e in entries if e["stream"] == "system"]
    assert {notice.split()[-1] for notice in notices} == {"stdout]", "stderr]"}
    assert all(str(LOG_INVOCATION_MAX_BYTES) in notice for notice in notices)


UNENDED = """
import os, sys

def invoke(request):
    os.write(1, b"x" * request)
    sys.stderr.write("e")
    return {}
"""


async def test_a_line_without_an_end_ends_with_its_call_however_long(python: Bench) -> None:
    epoch, registration = await python.register("", files={"main.py": UNENDED})
    for number, size in enumerate((1, LOG_LINE_MAX_BYTES * 3, 2, LOG_INVOCATION_MAX_BYTES * 2, 3)):
        await python.invoke(registration, size, invocation=f"i-{number}")
    found = sorted((python.server.folder / "logs").glob(f"{epoch.run_uid}*.ndjson"))
    entries = [json.loads(line) for path in found for line in path.read_text().splitlines()]
    lines = {f"i-{n}": [e["line"] for e in entries if e["invocation"] == f"i-{n}"] for n in (0, 2, 4)}
    assert lines == {"i-0": ["x", "e"], "i-2": ["xx", "e"], "i-4": ["xxx", "e"]}


FAILS = """
import sys

def inner(request):
    raise ValueError("first\\nsecond ü")

def invoke(request):
    if request == "result":
        return 5
    print("printed")
    sys.stderr.write("x" * request + "\\n" if request > 1 else "begun, not ended")
    inner(request)
"""


async def logged(bench: Bench, source: str, request: object) -> list[tuple[str, str]]:
    """(stream, line) of a call that fails, after a call that was refused for its request."""
    epoch, registration = await bench.register("", files={bench.dialect.file(): source})
    async with failing("InvalidRequest"):
        await bench.invoke(registration, raw=b"{", invocation="mine")
    with contextlib.suppress(CallError):
        await bench.invoke(registration, request, invocation="mine")
    return [(e["stream"], e["line"]) for e in bench.log(epoch.run_uid) if e["invocation"] == "mine"]


async def test_an_exception_is_in_the_log_of_its_call_behind_what_that_printed(python: Bench) -> None:
    lines = await logged(python, FAILS, 1)
    stderr = [line for stream, line in lines if stream == "stderr"]
    assert stderr[:2] == ["begun, not ended", "Traceback (most recent call last):"]
    assert [line.rpartition("/")[2] for line in stderr if line.startswith("  File")] == [
        'main.py", line 12, in invoke',
        'main.py", line 5, in inner',
    ]
    assert stderr[-2:] == ["ValueError: first", "second ü"]
    assert ("stdout", "printed") in lines
    assert [line for _, line in await logged(python, FAILS, "result")] == [
        'the handler returned a int; expected an object {"outputs": {...}, '
        '"artifactRefs": [{"name": ..., "uri": ...}]} with no other keys'
    ]


async def test_an_exception_counts_in_the_bound_of_its_call(python: Bench) -> None:
    lines = await logged(python, FAILS, LOG_LINE_MAX_BYTES)
    assert lines[-1] == ("stderr", "second ü")
    lines = await logged(python, FAILS.replace("first\\n", "first" + "\\n" * 9000), 2)
    assert len(lines) < 6000  # The message of a call is bounded itself.
    lines = await logged(python, FAILS.replace('"x" * request', '"x\\n" * request'), 2_000_000)
    stored = sum(len(line.encode()) + LOG_RECORD_BYTES for stream, line in lines if stream == "stderr")
    assert stored <= LOG_INVOCATION_MAX_BYTES
    assert any(stream == "system" and "stderr" in line for stream, line in lines)


async def test_a_status_and_an_answer_that_is_none_are_in_the_log_of_a_bash_call(bash: Bench) -> None:
    lines = await logged(bash, "invoke() { echo why >&2; return 3; }", 1)
    assert lines == [("stderr", "why"), ("stderr", "invoke ended with status 3")]
    ((stream, line),) = await logged(bash, "invoke() { echo no json; }", 1)
    assert stream == "stderr" and "expected one JSON object" in line
