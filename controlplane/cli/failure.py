"""How a command fails: one line `REASON: message` on stderr (or the Status object with `-o json`) and an exit code.

Every module of the CLI raises `Failure` or lets a `KubeError` pass; `main` turns them into the line and the code.
"""

from typing import Final

import msgspec

from controlplane.kube.errors import (
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from controlplane.kube.meta import Status

OTHER: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_ALLOWED: Final = 4
NOT_READY: Final = 5
TOO_MANY: Final = 6
FUNCTION_FAILED: Final = 7
TIMED_OUT: Final = 8
CANNOT_CONNECT: Final = 9

BY_HTTP_STATUS: Final = {
    401: NOT_ALLOWED,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    408: TIMED_OUT,
    409: NOT_READY,
    429: TOO_MANY,
    500: FUNCTION_FAILED,
    502: CANNOT_CONNECT,
    503: NOT_READY,
    504: TIMED_OUT,
}


class Failure(Exception):
    """A command that cannot do what was asked, for a reason that the user can act on."""

    def __init__(self, reason: str, message: str, code: int = OTHER, *, status: bytes | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.code = code
        self.status = status

    def line(self) -> str:
        """The one line for stderr."""
        return f"{self.reason}: {' '.join(self.message.split())}"

    def as_status(self) -> bytes:
        """The Status object for `-o json`."""
        if self.status is not None:
            return self.status
        return encode_status(Status(reason=self.reason, message=self.message))


def encode_status(status: Status) -> bytes:
    """A Status with the fields that say what it is, which our structs leave out as defaults."""
    head = {"kind": status.kind, "apiVersion": status.api_version, "metadata": {}, "status": status.status}
    return msgspec.json.encode(head | msgspec.to_builtins(status))


def from_kube(error: KubeError) -> Failure:
    """An answer of the Kubernetes API as a failure of the command."""
    match error:
        case NotFound():
            code = NOT_FOUND
        case Unauthorized() | Forbidden():
            code = NOT_ALLOWED
        case TooManyRequests():
            code = TOO_MANY
        case Unavailable():
            code = NOT_READY if error.sent and error.status.code != 0 and error.retry_after_seconds else CANNOT_CONNECT
        case Conflict():
            code = NOT_READY
        case _:
            code = OTHER
    return Failure(error.status.reason or type(error).__name__, str(error), code, status=encode_status(error.status))
