# ruff: noqa: PTH103, PTH118, PTH120, PTH123
# No worker has pathlib in memory for our sake.
"""The job of a worker that serves one function: load the handler, then answer one invocation after the other.

Loaded by `zygote.py` under the *user's* interpreter: standard library only.
"""

from __future__ import annotations  # This runs on Python 3.9.

import inspect
import json
import os
import sys
import time
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from runtimes.python.channel import ERROR, FAILED, RESULT, STARTED, Channel, Failure, describe, flush, getpid, leave
    from runtimes.python.loading import load
    from runtimes.python.surroundings import prepare_imports
else:
    from kruntimes_channel import ERROR, FAILED, RESULT, STARTED, Channel, Failure, describe, flush, getpid, leave
    from kruntimes_loading import load
    from kruntimes_surroundings import prepare_imports

INFINITY = float("inf")


class Context:
    """What a handler with a second parameter gets: facts of this one invocation."""

    __slots__ = ("artifacts", "deadline", "invocation_id", "logger", "run", "traceparent")

    def __init__(self, meta: bytes, run: Mapping[str, Any], logger: Any, artifacts: Artifacts) -> None:
        self.invocation_id, self.traceparent, deadline = meta.decode().split("\n")
        self.deadline = float(deadline)
        self.run = run
        self.logger = logger
        self.artifacts = artifacts

    def remaining(self) -> float:
        """Seconds until the deadline, never below 0."""
        return max(0.0, self.deadline - time.time())


class Artifacts:
    """`context.artifacts`: files that are stored with the answer, and named in its artifactRefs."""

    __slots__ = ("folder",)

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def put(self, name: str, data: bytes | bytearray | memoryview | str) -> None:
        """Keep `data` (text as UTF-8) as `name`, a relative path; of one name the last counts. Raises ValueError,
        OSError."""
        parts = name.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise ValueError(f"{name!r} is no relative path")
        path = os.path.join(self.folder, *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    number = float(text)
    if number in (INFINITY, -INFINITY):
        raise ValueError(f"{text[:32]} is beyond the range of a number")
    return number


def run_function(channel: Channel, job: dict[str, Any], sequence: int) -> int:
    """Load, say STARTED, then answer one INVOKE after the other until the channel ends."""
    root = job["root"]
    decode = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite).decode
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    prepare_imports([root])
    sys.argv[:] = [""]
    owner = channel.owner
    try:
        function, takes_context = load(root, job["handler"])
    except Failure as failure:
        if getpid() != owner:
            leave(1)
        flush()
        channel.fail(FAILED, sequence, **failure.meta)
        return 1
    if getpid() != owner:
        leave(0)
    logger = _logger() if takes_context else None
    asynchronous = inspect.iscoroutinefunction(function)
    runner = _Runner()
    if asynchronous:
        runner.start()
    flush()
    channel.send(STARTED, sequence, json.dumps({"asynchronous": asynchronous}).encode())
    maximum = job["result_max_bytes"]
    run = types.MappingProxyType(job["run"])
    artifacts = Artifacts(job["artifacts"])
    while True:
        try:
            message = channel.receive()
        except OSError:
            return 0
        except BaseException:  # Raised by a signal handler that the user's code left behind.
            traceback.print_exc()
            continue
        if message is None:
            return 0
        _, sequence, meta, body = message
        try:
            answer = _invoke(
                function,
                Context(meta, run, logger, artifacts) if takes_context else None,
                body,
                decode,
                encode,
                runner,
                maximum,
            )
        except Failure as failure:
            if getpid() != owner:
                leave(1)
            flush()
            channel.fail(ERROR, sequence, **failure.meta)
        else:
            if getpid() != owner:
                leave(0)  # A process that the handler forked came back through its return.
            flush()
            channel.send(RESULT, sequence, b"", answer)


def _invoke(
    function: Callable[..., Any],
    context: Context | None,
    body: bytes,
    decode: Callable[[str], Any],
    encode: Callable[[Any], str],
    runner: _Runner,
    maximum: int,
) -> bytes:
    """The answer's JSON as bytes; raises Failure."""
    try:
        request = decode(body.decode("utf-8")) if body else {}
    except (ValueError, RecursionError) as error:
        raise Failure("InvalidRequest", f"the request body is not JSON: {error}") from None
    try:
        result = function(request) if context is None else function(request, context)
        if type(result) is not dict and hasattr(type(result), "__await__"):
            result = runner.run(result)
    except BaseException as error:
        described = describe(error)
        if isinstance(error, SystemExit):
            described["message"] = "the handler called exit: " + described["message"]
        raise Failure("HandlerFailed", **described) from None
    try:
        answer = encode(_answer(result)).encode("utf-8")
    except Failure:
        raise
    except RecursionError:
        raise Failure("HandlerResultInvalid", "the result is nested too deeply for JSON") from None
    except BaseException as error:
        raise Failure("HandlerResultInvalid", "the result is not JSON: " + describe(error)["message"]) from None
    if len(answer) > maximum:
        raise Failure("ResponseTooLarge", f"the result is {len(answer)} bytes of JSON; at most {maximum} are answered")
    return answer


_EXPECTED = 'expected an object {"outputs": {...}, "artifactRefs": [{"name": ..., "uri": ...}]} with no other keys'


def _answer(result: Any) -> dict[str, Any]:
    if not isinstance(result, dict):
        kind = type(result).__name__
        raise Failure(
            "HandlerResultInvalid",
            "the handler returned {}; {}".format("None" if result is None else "a " + kind, _EXPECTED),
        )
    for key in result:
        if key != "outputs" and key != "artifactRefs":
            raise Failure("HandlerResultInvalid", f"the result has the key {repr(key)[:100]}; {_EXPECTED}")
    if not isinstance(result.get("outputs", {}), dict):
        raise Failure("HandlerResultInvalid", "outputs is a {}; {}".format(type(result["outputs"]).__name__, _EXPECTED))
    references = result.get("artifactRefs")
    if references is not None:
        ok = isinstance(references, (list, tuple)) and all(
            isinstance(r, dict) and isinstance(r.get("name"), str) and isinstance(r.get("uri"), str) for r in references
        )
        if not ok:
            raise Failure("HandlerResultInvalid", "artifactRefs is no list of objects with name and uri; " + _EXPECTED)
    return result if "outputs" in result else dict(result, outputs={})


def _logger() -> Any:
    """The context's logger; it writes to stderr unless the user's module has set up logging its own way."""
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    return logging.getLogger("handler")


class _Runner:
    """Runs awaitables to their end on one event loop, which a worker keeps: what a module made on it stays usable."""

    def __init__(self) -> None:
        self.loop: Any = None

    def start(self) -> None:
        import asyncio

        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def run(self, awaitable: Any) -> Any:
        if self.loop is None or self.loop.is_closed():
            self.start()

        async def wait() -> Any:
            return await awaitable

        return self.loop.run_until_complete(wait())
