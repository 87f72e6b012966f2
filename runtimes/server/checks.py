"""What may not be asked for, in a head or in the body of a call, each with a sentence. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from runtimes.contract import messages as m
from runtimes.contract.calls import UNDECODABLE
from runtimes.contract.limits import (
    ARGS_MAX_BYTES,
    ARGS_MAX_COUNT,
    CONCURRENCY_MAX,
    ENTRYPOINT_MAX_BYTES,
    ENV_MAX_BYTES,
    ENV_MAX_COUNT,
    HANDLER_MAX_BYTES,
    INVOCATION_ID_MAX_BYTES,
)
from runtimes.contract.messages import ErrorHead
from runtimes.contract.mux import CallError

_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode


def printable(text: str) -> bool:
    return 0 < len(text) <= INVOCATION_ID_MAX_BYTES and text.isascii() and text.isprintable() and " " not in text


def check_request(body: bytes) -> None:
    """The body of a call is JSON for handlers of every language in the same way: UTF-8, no half of a surrogate pair, no
    NaN, nested no deeper than this process reads. Empty is `{}`.

    Nothing is made of it, so it takes 2 ms at most: others share the server, and a MiB of empty lists would take 100.
    """
    if body:
        try:
            body.decode()
            _skip(body)
        except UNDECODABLE as error:
            raise _not_json(error) from error


def check_numbers(body: bytes) -> None:
    """No number of a body that is JSON is infinite (`1e400`): for a language whose worker reads no JSON itself."""
    if body:
        try:
            msgspec.json.decode(body)
        except UNDECODABLE as error:
            raise _not_json(error) from error


def _not_json(error: Exception) -> CallError:
    return CallError(ErrorHead(reason="InvalidRequest", message=f"the request body is not JSON: {error}"))


def check_register(head: m.RegisterRequest) -> None:
    _check_epoch(head.epoch)
    if not 0 < len(head.handler.encode()) <= HANDLER_MAX_BYTES or "." not in head.handler:
        raise _invalid(f"handler is file.function of at most {HANDLER_MAX_BYTES} bytes")
    if not 1 <= head.concurrency <= CONCURRENCY_MAX:
        raise _invalid(f"concurrency is 1 to {CONCURRENCY_MAX}")
    if head.idle_timeout_ms is not None and head.idle_timeout_ms < 1:
        raise _invalid("idleTimeoutMs is at least 1")
    _check_env(head.env)
    expected = m.register_digest(
        epoch=head.epoch,
        handler=head.handler,
        env=head.env,
        idle_timeout_ms=head.idle_timeout_ms,
        concurrency=head.concurrency,
    )
    _check_digest(head.digest, expected)


def check_execute(head: m.ExecuteTaskRequest) -> None:
    _check_epoch(head.epoch)
    if len(head.entrypoint.encode()) > ENTRYPOINT_MAX_BYTES:
        raise _invalid(f"entrypoint has at most {ENTRYPOINT_MAX_BYTES} bytes")
    if len(head.args) > ARGS_MAX_COUNT or sum(len(arg.encode()) for arg in head.args) > ARGS_MAX_BYTES:
        raise _invalid(f"at most {ARGS_MAX_COUNT} args of {ARGS_MAX_BYTES} bytes in all")
    if any("\0" in arg for arg in head.args):
        raise _invalid("an argument holds a zero byte")
    _check_env(head.env)
    expected = m.task_digest(epoch=head.epoch, entrypoint=head.entrypoint, args=head.args, env=head.env)
    _check_digest(head.digest, expected)


def _check_epoch(epoch: m.Epoch) -> None:
    names = (epoch.run_uid, epoch.pod_uid)
    if epoch.attempt < 1 or not all(printable(name) and "/" not in name and name[0] != "." for name in names):
        raise _invalid("an epoch is a Run UID, an attempt from 1, and a Pod UID")


def _check_env(env: dict[str, str]) -> None:
    size = 0
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise _invalid(f"environment variable {name[:64]!r} cannot be set")
        size += len(name.encode()) + len(value.encode())
    if len(env) > ENV_MAX_COUNT or size > ENV_MAX_BYTES:
        raise _invalid(f"at most {ENV_MAX_COUNT} variables of {ENV_MAX_BYTES} bytes in all")


def _check_digest(given: str, expected: str) -> None:
    if given != expected:
        raise _invalid(f"the digest is {given[:64]!r}; of this head it is {expected}")


def _invalid(message: str) -> CallError:
    return CallError(ErrorHead(reason=m.INVALID_ARGUMENT, message=message))
