"""What the Kubernetes API refused, as exceptions that speak to machines first.

`KubeError.status` is the API's own Status; the class says what a caller may do about it. Foreign exceptions (aiohttp,
ssl, OS) never leave the adapter: they become `Unavailable`, chained. Callers catch the narrowest class they can act on.
"""

from controlplane.kube.meta import Status, StatusDetails


class KubeError(Exception):
    """An answer of the Kubernetes API that is not a success. The request had no effect unless a subclass says so."""

    retryable = False

    def __init__(self, status: Status) -> None:
        super().__init__(status.message or status.reason or f"the Kubernetes API answered {status.code}")
        self.status = status
        self.retry_after_header = 0

    @property
    def retry_after_seconds(self) -> int:
        """What the server asked to wait before another try; 0 if it did not say."""
        in_body = self.status.details.retry_after_seconds if self.status.details else 0
        return in_body or self.retry_after_header


class BadRequest(KubeError):
    """400, 405, 406, 413, 415: the request itself is wrong; the same one will be refused again."""


class Unauthorized(KubeError):
    """401: the credential is missing, expired or unknown."""


class Forbidden(KubeError):
    """403: the credential is known and may not do this."""


class NotFound(KubeError):
    """404: no such object, or no such kind."""


class AlreadyExists(KubeError):
    """409 AlreadyExists: an object of that name is there."""


class Conflict(KubeError):
    """409: a resourceVersion or uid precondition failed, or another field manager owns the field."""


class Gone(KubeError):
    """410: the revision or continue token is older than what the server keeps; list again."""

    retryable = True


class Invalid(KubeError):
    """422: validation failed, or a `test` of a JSON Patch did; `status.details.causes` name fields, if any."""


class TooManyRequests(KubeError):
    """429: come again after `retry_after_seconds`."""

    retryable = True


class Unavailable(KubeError):
    """5xx, a connection that could not be made or broke, or no answer in time.

    `sent` tells whether the request may have reached the server: a write may then have happened."""

    retryable = True

    def __init__(self, status: Status, *, sent: bool = True) -> None:
        super().__init__(status)
        self.sent = sent


class Malformed(Unavailable):
    """A success whose body is not what was asked for: something other than the API answered, or an object of another
    version does not decode. Asking for the same again may give the same."""


_BY_CODE: dict[int, type[KubeError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: BadRequest,
    406: BadRequest,
    409: Conflict,
    410: Gone,
    413: BadRequest,
    415: BadRequest,
    422: Invalid,
    429: TooManyRequests,
}


def error_of(status: Status) -> KubeError:
    """The exception for a Status whose `code` is set."""
    if status.code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(status)
    kind = _BY_CODE.get(status.code)
    if kind is not None:
        return kind(status)
    return Unavailable(status) if status.code >= 500 else KubeError(status)


def unavailable(message: str, *, sent: bool, retry_after_seconds: int = 0) -> Unavailable:
    """An `Unavailable` of our own making: no Status came from a server."""
    details = StatusDetails(retry_after_seconds=retry_after_seconds) if retry_after_seconds else None
    return Unavailable(Status(message=message, reason="ServiceUnavailable", code=503, details=details), sent=sent)


def malformed(message: str) -> Malformed:
    """A `Malformed` that says what was expected."""
    return Malformed(Status(message=message, reason="InternalError", code=500))
