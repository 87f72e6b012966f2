"""How a command fails: one line `REASON: message; next step` on stderr (or the Status object with `-o json`, without
the next step) and an exit code.

Every module of the CLI raises `Failure` or lets a `KubeError` pass; `main` turns them into the line and the code.
"""

import errno
import os
from typing import Final

import msgspec

from controlplane.kube.errors import KubeError, Malformed, Unauthorized, Unavailable
from controlplane.kube.kubeconfig import ConfigError
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

NOT_ACCEPTED: Final = "the API server does not accept the kubeconfig's credential"  # its own word is Unauthorized
LINE_MAX_CHARS: Final = 8192  # a message is at most 1 KiB, a traceback in it a few; more is not read by anyone

_BY_HTTP_STATUS: Final = {
    401: NOT_ALLOWED,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    408: TIMED_OUT,
    409: NOT_READY,
    429: TOO_MANY,
    502: CANNOT_CONNECT,
    503: NOT_READY,
    504: TIMED_OUT,
}


_WRITING: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO, errno.EBADF)


class Failure(Exception):
    """A command that cannot do what was asked, for a reason that the user can act on."""

    def __init__(
        self, reason: str, message: str, code: int = OTHER, *, status: bytes | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.code = code
        self.status = status
        self.hint = hint
        """What the user may do next, for whoever reads the line."""

    def line(self) -> str:
        """The one line for stderr."""
        text = printable(f"{self.reason}: {' '.join(self.message.split())}")[:LINE_MAX_CHARS]
        return f"{text}; {printable(self.hint)}" if self.hint else text

    def as_status(self) -> bytes:
        """The Status object for `-o json`, on one line."""
        if self.status is not None:
            return self.status
        return encode_status(Status(reason=self.reason, message=_sound(self.message)))


def printable(text: str) -> str:
    """Text without what would steer a terminal: user code writes messages, and not all of it means well."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def code_of(http_status: int) -> int:
    """The exit code for an answer that is no success."""
    return _BY_HTTP_STATUS.get(http_status, OTHER)


def encode_status(status: Status) -> bytes:
    """A Status with the fields that say what it is, which our structs leave out as defaults."""
    head = {"kind": status.kind, "apiVersion": status.api_version, "metadata": {}, "status": status.status}
    return msgspec.json.encode(head | msgspec.to_builtins(status))


def failure_of(error: Exception) -> Failure:
    """Any exception as a failure of the command. What nobody expected is a defect of ours and says so."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, KubeError):
        return from_kube(error)
    if isinstance(error, ConfigError):
        return Failure("ConfigInvalid", str(error))
    if isinstance(error, OSError):
        if error.filename is None and error.errno in _WRITING:
            return Failure("CannotWrite", f"cannot write the result: {error.strerror}")
        what = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return Failure("SystemError", f"{what}{error.strerror or error}")
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure("InternalError", f"{what} (a defect of krt; KRT_DEBUG=1 shows where)")


def from_kube(error: KubeError) -> Failure:
    """An answer of the Kubernetes API as a failure of the command, or the lack of one."""
    status = error.status
    reason, code = status.reason or type(error).__name__, code_of(status.code)
    if (
        isinstance(error, Unavailable)
        and not isinstance(error, Malformed)
        and (not error.sent or error.__cause__ is not None)
    ):
        # no answer: nothing connected, or the connection was lost before one came
        reason, code = ("OutcomeUnknown" if error.sent else "CannotConnect"), CANNOT_CONNECT
        status = msgspec.structs.replace(status, reason=reason, code=0, message=_why(error))
    if isinstance(error, Unauthorized) and status.message in ("", "Unauthorized"):
        status = msgspec.structs.replace(status, message=NOT_ACCEPTED)
    return Failure(reason, status.message or str(error), code, status=encode_status(status))


def _why(error: KubeError) -> str:
    """Why a connection was not made, without the transport's own way of saying it."""
    cause = error.__cause__
    host, port = getattr(cause, "host", None), getattr(cause, "port", None)
    if host is None:
        return str(error)
    found = getattr(cause, "certificate_error", None) or getattr(cause, "os_error", None)
    said = getattr(found, "verify_message", None) or getattr(found, "strerror", None) or str(cause)
    if isinstance(found, ConnectionError | TimeoutError) and found.errno:
        said = os.strerror(found.errno)
    return f"cannot connect to {host}:{port}: {said}"


def _sound(text: str) -> str:
    """Text that can be encoded: an argument that is not UTF-8 holds lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
