"""The closed list of reasons: every word a machine may read in a status, an event or an error answer.

A reason says whose fault it is, whether trying again may help, and which HTTP status and exit code of `krt` go with it.
`docs/reasons.md` is generated from this file. The gateway, runtimed and `krt` look their answers up here.
"""

from enum import StrEnum
from typing import Final

import msgspec


class Fault(StrEnum):
    """Whose doing it is."""

    NONE = "nobody"
    CALLER = "caller"
    FUNCTION = "function"
    SYSTEM = "system"


class Info(msgspec.Struct, frozen=True):
    """What goes with a reason. `retryable` for an HTTP reason: the call did not run and may work later; for a failure
    reason: it is retried when `retryPolicy.retryableReasons` is empty. `http_status` 0: never an HTTP answer."""

    fault: Fault
    retryable: bool
    http_status: int
    exit_code: int
    sentence: str


class Reason(StrEnum):
    """Every reason. Grouped: conditions, failures of a Run, ends of a Run, answers to an invoke."""

    # conditions Scheduled and Ready, and what a waiting Run says
    BOUND = "Bound"
    NO_CAPACITY = "NoCapacity"
    RUNTIME_NOT_FOUND = "RuntimeNotFound"
    NEVER_FITS = "NeverFits"
    BACKING_OFF = "BackingOff"
    FUNCTION_REGISTERED = "FunctionRegistered"
    OWNER_UNREACHABLE = "OwnerUnreachable"
    NOT_READY = "NotReady"
    RELEASING = "Releasing"
    # why a Run went back to Pending without a failure
    BINDING_REFUSED = "BindingRefused"
    CLAIM_EXPIRED = "ClaimExpired"
    NO_SLOT_HERE = "NoSlotHere"
    POD_DRAINING = "PodDraining"
    REGISTRATION_LOST = "RegistrationLost"
    ASSIGNMENT_LOST = "AssignmentLost"
    # failures
    SOURCE_FETCH_FAILED = "SourceFetchFailed"
    SOURCE_INVALID = "SourceInvalid"
    IMPORT_FAILED = "ImportFailed"
    HANDLER_NOT_FOUND = "HandlerNotFound"
    REGISTRATION_TIMED_OUT = "RegistrationTimedOut"
    RUNTIME_SERVER_ERROR = "RuntimeServerError"
    TASK_FAILED = "TaskFailed"
    TASK_LOST = "TaskLost"
    OUTPUTS_INVALID = "OutputsInvalid"
    ARTIFACT_UPLOAD_FAILED = "ArtifactUploadFailed"
    # ends
    COMPLETED = "Completed"
    CANCELLED = "Cancelled"
    DELETED = "Deleted"
    IDLE_TIMEOUT = "IdleTimeout"
    LIFETIME_EXCEEDED = "LifetimeExceeded"
    # answers to an invoke
    INVALID_REQUEST = "InvalidRequest"
    UNAUTHENTICATED = "Unauthenticated"
    FORBIDDEN = "Forbidden"
    RUN_NOT_FOUND = "RunNotFound"
    NOT_FOUND = "NotFound"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    REQUEST_TIMEOUT = "RequestTimeout"
    REQUEST_TOO_LARGE = "RequestTooLarge"
    URI_TOO_LONG = "URITooLong"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    EXPECTATION_FAILED = "ExpectationFailed"
    HEADERS_TOO_LARGE = "HeadersTooLarge"
    NOT_IMPLEMENTED = "NotImplemented"
    HTTP_VERSION_NOT_SUPPORTED = "HTTPVersionNotSupported"
    NOT_A_FUNCTION = "NotAFunction"
    RUN_FINISHED = "RunFinished"
    TOO_MANY_INVOCATIONS = "TooManyInvocations"
    HANDLER_FAILED = "HandlerFailed"
    HANDLER_RESULT_INVALID = "HandlerResultInvalid"
    RESPONSE_TOO_LARGE = "ResponseTooLarge"
    WORKER_CRASHED = "WorkerCrashed"
    INTERNAL_ERROR = "InternalError"
    OUTCOME_UNKNOWN = "OutcomeUnknown"
    RUN_NOT_READY = "RunNotReady"
    STALE_OWNER = "StaleOwner"
    WORKER_STARTING = "WorkerStarting"
    DRAINING = "Draining"
    OVERLOADED = "Overloaded"
    AUTHORIZATION_UNAVAILABLE = "AuthorizationUnavailable"
    INVOCATION_TIMEOUT = "InvocationTimeout"

    @property
    def info(self) -> Info:
        """Fault, retryability, HTTP status, exit code and sentence."""
        return INFO[self]


def _state(sentence: str, fault: Fault = Fault.NONE) -> Info:
    return Info(fault, True, 0, 5, sentence)


def _failure(fault: Fault, retryable: bool, sentence: str) -> Info:
    return Info(fault, retryable, 0, 7, sentence)


def _end(exit_code: int, sentence: str) -> Info:
    return Info(Fault.NONE, False, 0, exit_code, sentence)


def _http(status: int, exit_code: int, fault: Fault, retryable: bool, sentence: str) -> Info:
    return Info(fault, retryable, status, exit_code, sentence)


_CALLER, _FUNCTION, _SYSTEM = Fault.CALLER, Fault.FUNCTION, Fault.SYSTEM

INFO: Final[dict[Reason, Info]] = {
    Reason.BOUND: _state("The Run is assigned to a Pod."),
    Reason.NO_CAPACITY: _state(
        "Every ready Pod of the Runtime is full, or none is ready; it goes on when a slot frees."
    ),
    Reason.RUNTIME_NOT_FOUND: _state("The namespace has no Runtime of that name; create it.", _CALLER),
    Reason.NEVER_FITS: _state("The requests exceed what one Pod of the Runtime declares; lower them.", _CALLER),
    Reason.BACKING_OFF: _state("The last attempt failed; the next one waits for its backoff."),
    Reason.FUNCTION_REGISTERED: _state("The function is registered with its Runtime Server and takes calls."),
    Reason.OWNER_UNREACHABLE: _http(
        503, 5, _SYSTEM, True, "The Pod that owns the Run does not answer; nothing was dispatched."
    ),
    Reason.NOT_READY: _state("The function is not registered now."),
    Reason.RELEASING: _state("The Run is being released."),
    Reason.BINDING_REFUSED: _state("The Pod had no free slot or was draining; the Run is scheduled again."),
    Reason.CLAIM_EXPIRED: _state("The Pod did not claim the Run in time; it is scheduled again."),
    Reason.NO_SLOT_HERE: _state("The claim came too late for this Pod; the Run is scheduled again."),
    Reason.POD_DRAINING: _state("The Pod is going away; the Run moves to another one."),
    Reason.REGISTRATION_LOST: _state("The Runtime Server lost the registration; the Run is registered anew."),
    Reason.ASSIGNMENT_LOST: _state("The Pod is gone and its fence has passed; the Run is scheduled again."),
    Reason.SOURCE_FETCH_FAILED: _failure(_SYSTEM, True, "The source could not be fetched."),
    Reason.SOURCE_INVALID: _failure(_FUNCTION, False, "The source has no file that the handler or entrypoint names."),
    Reason.IMPORT_FAILED: _failure(_FUNCTION, True, "The source raised an exception while it was loaded."),
    Reason.HANDLER_NOT_FOUND: _failure(_FUNCTION, False, "The file has no callable of the handler's name."),
    Reason.REGISTRATION_TIMED_OUT: _failure(_FUNCTION, True, "Source and import took more than 60 s."),
    Reason.RUNTIME_SERVER_ERROR: _failure(_SYSTEM, True, "The Runtime Server failed or died during registration."),
    Reason.TASK_FAILED: _failure(_FUNCTION, True, "The task ended with a status other than 0."),
    Reason.TASK_LOST: _failure(_SYSTEM, True, "The Pod or Runtime Server went away while the task ran."),
    Reason.OUTPUTS_INVALID: _failure(_FUNCTION, False, "The task wrote outputs that break their format or a bound."),
    Reason.ARTIFACT_UPLOAD_FAILED: _failure(_SYSTEM, True, "An artifact could not be stored."),
    Reason.COMPLETED: _end(0, "The task ended with status 0."),
    Reason.CANCELLED: _end(1, "Somebody set spec.cancelRequested."),
    Reason.DELETED: _end(3, "Somebody deleted the Run."),
    Reason.IDLE_TIMEOUT: _end(8, "No call came for mode.function.idleTimeoutSeconds."),
    Reason.LIFETIME_EXCEEDED: _end(8, "The attempt lasted longer than spec.timeout."),
    Reason.INVALID_REQUEST: _http(400, 1, _CALLER, False, "The request is malformed; the message names the part."),
    Reason.UNAUTHENTICATED: _http(401, 4, _CALLER, False, "No credential, or one that the cluster does not accept."),
    Reason.FORBIDDEN: _http(403, 4, _CALLER, False, "The caller may not get that Run."),
    Reason.RUN_NOT_FOUND: _http(404, 3, _CALLER, False, "No Run of that UID in that namespace and Runtime."),
    Reason.NOT_FOUND: _http(404, 3, _CALLER, False, "The gateway serves nothing at that path."),
    Reason.METHOD_NOT_ALLOWED: _http(405, 1, _CALLER, False, "Invocations are sent with POST."),
    Reason.REQUEST_TIMEOUT: _http(408, 8, _CALLER, True, "The request did not arrive in time."),
    Reason.REQUEST_TOO_LARGE: _http(413, 1, _CALLER, False, "The body is larger than 1 MiB."),
    Reason.URI_TOO_LONG: _http(414, 1, _CALLER, False, "The request target is longer than 8 KiB."),
    Reason.UNSUPPORTED_MEDIA_TYPE: _http(
        415, 1, _CALLER, False, "The body must be application/json without Content-Encoding."
    ),
    Reason.EXPECTATION_FAILED: _http(417, 1, _CALLER, False, "Only Expect: 100-continue is understood."),
    Reason.HEADERS_TOO_LARGE: _http(431, 1, _CALLER, False, "The head is larger than its limits."),
    Reason.NOT_IMPLEMENTED: _http(501, 1, _CALLER, False, "Only Transfer-Encoding: chunked is understood."),
    Reason.HTTP_VERSION_NOT_SUPPORTED: _http(505, 1, _CALLER, False, "HTTP/1.0 and HTTP/1.1 are served."),
    Reason.NOT_A_FUNCTION: _http(409, 5, _CALLER, False, "The Run is a task; only functions are invoked."),
    Reason.RUN_FINISHED: _http(
        409, 5, _CALLER, False, "The Run is terminal or being released and will not be Ready again."
    ),
    Reason.TOO_MANY_INVOCATIONS: _http(429, 6, _CALLER, True, "mode.function.concurrency calls are in flight."),
    Reason.HANDLER_FAILED: _http(
        500, 7, _FUNCTION, False, "The handler raised an exception or exited with a status other than 0."
    ),
    Reason.HANDLER_RESULT_INVALID: _http(
        500, 7, _FUNCTION, False, "The handler's result is no object of outputs and artifactRefs."
    ),
    Reason.RESPONSE_TOO_LARGE: _http(500, 7, _FUNCTION, False, "The handler's result is larger than 1 MiB."),
    Reason.WORKER_CRASHED: _http(500, 7, _FUNCTION, False, "The worker process died during the call."),
    Reason.INTERNAL_ERROR: _http(500, 1, _SYSTEM, False, "A defect of kruntimes; please report it."),
    Reason.OUTCOME_UNKNOWN: _http(
        502, 9, _SYSTEM, False, "The connection was lost after dispatch: the call may have run."
    ),
    Reason.RUN_NOT_READY: _http(
        503, 5, _SYSTEM, True, "The Run is not Ready yet, or is moving; nothing was dispatched."
    ),
    Reason.STALE_OWNER: _http(
        503, 5, _SYSTEM, True, "The Pod no longer is, or cannot prove to be, the owner; nothing was dispatched."
    ),
    Reason.WORKER_STARTING: _http(503, 5, _FUNCTION, True, "The worker is being replaced; nothing was dispatched."),
    Reason.DRAINING: _http(503, 5, _SYSTEM, True, "The process is shutting down; nothing was dispatched."),
    Reason.OVERLOADED: _http(503, 5, _SYSTEM, True, "A limit of the process is reached; nothing was dispatched."),
    Reason.AUTHORIZATION_UNAVAILABLE: _http(
        503, 5, _SYSTEM, True, "The Kubernetes API could not be asked whether the caller may."
    ),
    Reason.INVOCATION_TIMEOUT: _http(504, 8, _FUNCTION, False, "The call exceeded its deadline."),
}

REGISTRATION_FAILURES: Final = frozenset(
    {
        Reason.SOURCE_FETCH_FAILED,
        Reason.SOURCE_INVALID,
        Reason.IMPORT_FAILED,
        Reason.HANDLER_NOT_FOUND,
        Reason.REGISTRATION_TIMED_OUT,
        Reason.RUNTIME_SERVER_ERROR,
    }
)
TASK_FAILURES: Final = REGISTRATION_FAILURES - {Reason.REGISTRATION_TIMED_OUT} | {
    Reason.TASK_FAILED,
    Reason.TASK_LOST,
    Reason.OUTPUTS_INVALID,
    Reason.ARTIFACT_UPLOAD_FAILED,
}
WAITING_REASONS: Final = frozenset(
    {Reason.NO_CAPACITY, Reason.RUNTIME_NOT_FOUND, Reason.NEVER_FITS, Reason.BACKING_OFF}
)
