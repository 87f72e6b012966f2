"""What an HTTP request asks of the gateway: which Run, with which id and deadline, in which format.

Here: pure functions from a `Head` to values or a refusal with its reason. Not here: the grammar of HTTP (`http1`), who
calls (`auth`), where the Run lives (`routing`). Next: `connection` keeps the last `Ask` of its client; `site` and
`invoke` answer it in the order of the table.
"""

import re
import secrets
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from dataplane.gateway.bodies import Malformed
from dataplane.gateway.credentials import BearerToken, bearer_token
from dataplane.gateway.http1 import Head
from runtimes.contract.limits import (
    INVOCATION_ID_MAX_BYTES,
    INVOKE_TIMEOUT_DEFAULT_MS,
    INVOKE_TIMEOUT_MAX_MS,
    INVOKE_TIMEOUT_MIN_MS,
)
from statemachine.reasons import Reason
from statemachine.run import RunUID

NAMESPACE: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
RUNTIME: Final = r"[a-z](?:[-a-z0-9]{0,38}[a-z0-9])?"
UID: Final = r"[0-9A-Za-z-]{1,64}"
_INVOKE: Final = re.compile(rf"/v1/namespaces/({NAMESPACE})/runtimes/({RUNTIME})/runs/({UID}):invoke")
_ABSOLUTE: Final = re.compile(r"https?://[^/?#]+", re.IGNORECASE)
_INVOCATION_ID: Final = re.compile(rb"[\x21-\x7e]{1,%d}" % INVOCATION_ID_MAX_BYTES)
_TIMEOUT: Final = re.compile(rb"[0-9]{1,9}")
_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?")
TRACEPARENT_MAX_BYTES: Final = 128  # of a later version, whose end we do not know and do not pass on
_JSON: Final = re.compile(rb"application/json[ \t]*(?:;[ \t]*charset=\"?utf-?8\"?[ \t]*)?", re.IGNORECASE)
RANDOM_STOCK_BYTES: Final = 1024
_TRACEPARENT_BYTES: Final = 55  # of version 00, which every later one begins like
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16


class Target(Struct, frozen=True):
    """The Run that a URL names."""

    namespace: str
    runtime: str
    run_uid: RunUID


class Ask(Struct, frozen=True):
    """All that one head says, read once: a keep-alive client that repeats its head repeats this."""

    path: str
    target: Target | None
    """None: not an invoke path."""
    token: BearerToken | None
    invocation_id: str | None
    timeout_ms: int
    traceparent: str | None
    """Empty: it was bad, and a new trace begins."""
    media_type_taken: bool
    """False: `check_media_type` says why."""
    fields_taken: bool
    """False: `check_fields` says why."""


def ask_of(head: Head) -> Ask:
    """Read a head. What is wrong with it is told later, in the order of answers."""
    path = path_of(head.target)
    return Ask(
        path,
        invoke_target(path),
        bearer_token(head),
        invocation_id(head),
        timeout_ms(head) or INVOKE_TIMEOUT_DEFAULT_MS,
        traceparent(head),
        _passes(check_media_type, head),
        _passes(check_fields, head),
    )


def path_of(target: str) -> str:
    """The path of a request target: no query, no authority of the absolute form, nothing decoded."""
    if not target.startswith("/"):
        absolute = _ABSOLUTE.match(target)
        target = target[absolute.end() :] or "/" if absolute else target
    return target.partition("?")[0]


def invoke_target(path: str) -> Target | None:
    """The Run of an invoke path, or None for any other path."""
    match = _INVOKE.fullmatch(path)
    return Target(match[1], match[2], RunUID(match[3])) if match else None


def invocation_id(head: Head) -> str | None:
    """The caller's id, or None when absent or unusable; `check_fields` refuses an unusable one."""
    value = head.field(b"x-kruntime-invocation-id")
    return value.decode("ascii") if value is not None and _INVOCATION_ID.fullmatch(value) else None


class _Random:
    """Random hex, taken from the kernel in stocks: asking it for each call costs as much as parsing one."""

    __slots__ = ("_stock", "_used")

    def __init__(self) -> None:
        self._stock = ""
        self._used = 0

    def take(self, digits: int) -> str:
        """That many digits, never given before in this process."""
        if self._used + digits > len(self._stock):
            self._stock, self._used = secrets.token_hex(RANDOM_STOCK_BYTES), 0
        self._used += digits
        return self._stock[self._used - digits : self._used]


_random: Final = _Random()


def new_invocation_id() -> str:
    """An id for a call whose caller gave none: 128 random bits in hex."""
    return _random.take(32)


def timeout_ms(head: Head) -> int | None:
    """How long the caller waits; the default when absent; None when it is no whole number within the bounds."""
    value = head.field(b"x-kruntime-timeout-ms")
    if value is None:
        return INVOKE_TIMEOUT_DEFAULT_MS
    if _TIMEOUT.fullmatch(value) is None or not INVOKE_TIMEOUT_MIN_MS <= int(value) <= INVOKE_TIMEOUT_MAX_MS:
        return None
    return int(value)


def new_traceparent() -> str:
    """The first span of a new trace, not sampled."""
    return f"00-{_random.take(32)}-{_random.take(16)}-00"


def traceparent(head: Head) -> str | None:
    """The caller's trace context as version 00 writes it, None when it has none, empty when it is doubled or bad."""
    values = [value for name, value in head.fields if name == b"traceparent"]
    if not values:
        return None
    value = values[0]
    match = _TRACEPARENT.fullmatch(value) if len(values) == 1 and len(value) <= TRACEPARENT_MAX_BYTES else None
    if match is None or match[2] == _NO_TRACE or match[3] == _NO_SPAN:
        return ""
    version, tail = match[1], match[5]
    if version == b"ff" or (version == b"00" and tail is not None):
        return ""
    return (b"00" + value[2:_TRACEPARENT_BYTES]).decode("ascii")


def check_media_type(head: Head) -> None:
    """Raise Malformed (415) unless the body says JSON, or nothing, and is not encoded."""
    media_type = head.field(b"content-type")
    if media_type is not None and _JSON.fullmatch(media_type) is None:
        sent = media_type.decode("latin-1")[:128] or "an empty Content-Type"
        raise Malformed(Reason.UNSUPPORTED_MEDIA_TYPE, f"the body must be application/json in UTF-8, not {sent}")
    for name, value in head.fields:
        if name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise Malformed(Reason.UNSUPPORTED_MEDIA_TYPE, "the body must have no Content-Encoding")


def check_fields(head: Head) -> None:
    """Raise Malformed (400) when one of our own fields has a value that we do not take."""
    if head.field(b"x-kruntime-invocation-id") is not None and invocation_id(head) is None:
        raise Malformed(
            Reason.INVALID_REQUEST,
            f"X-Kruntime-Invocation-ID must be 1 to {INVOCATION_ID_MAX_BYTES} visible ASCII characters",
        )
    if timeout_ms(head) is None:
        raise Malformed(
            Reason.INVALID_REQUEST, f"X-Kruntime-Timeout-Ms must be a whole number from 1 to {INVOKE_TIMEOUT_MAX_MS}"
        )


def _passes(check: Callable[[Head], None], head: Head) -> bool:
    try:
        check(head)
    except Malformed:
        return False
    return True
