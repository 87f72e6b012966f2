"""Every answer of runtimed's port that is no result: reasons into `InvokeReply` heads. Pure. Next: `serving.py`."""

from collections.abc import Sequence
from typing import Final

import msgspec

from dataplane.runtimed.artifacts import ArtifactsRefused, UploadFailed, UploadTimeout
from dataplane.wire.messages import Cause, Hop, InvokeReply
from runtimes.contract.calls import UNDECODABLE
from runtimes.contract.limits import INVOKE_RESULT_MAX_BYTES
from runtimes.contract.messages import FAILED_PRECONDITION, ArtifactRef, ErrorHead
from statemachine.reasons import Fault, Reason

RETRY_AFTER_S: Final = 1  # the shortest that HTTP can say
_ANSWERS: Final = {reason.value: reason for reason in Reason if reason.info.http_status}


def refusal(reason: Reason, message: str = "", *, hop: Hop = "runtimed", moving: bool = False) -> InvokeReply:
    """An answer by reason alone; the reason's sentence where there is no better message."""
    info = reason.info
    return InvokeReply(
        status=info.http_status,
        reason=reason.value,
        message=message or info.sentence,
        hop=hop,
        retryable=info.retryable,
        retry_after_s=RETRY_AFTER_S if info.retryable else None,
        moving=moving,
    )


def not_stored(error: ArtifactsRefused | UploadFailed) -> InvokeReply:
    """The call ran, its artifacts are not stored: by the code's fault, too late, or by the store's."""
    match error:
        case ArtifactsRefused():
            return refusal(Reason.HANDLER_RESULT_INVALID, str(error), hop="worker")
        case UploadTimeout():
            return refusal(Reason.INVOCATION_TIMEOUT, f"the call has ended; {error}")
        case _:
            cause = Cause(Reason.ARTIFACT_UPLOAD_FAILED.value, str(error))
            said = refusal(Reason.INTERNAL_ERROR, f"{Reason.ARTIFACT_UPLOAD_FAILED.value}: {error}")
            return msgspec.structs.replace(said, causes=(cause,))


class _Result(msgspec.Struct, rename="camel"):
    outputs: msgspec.Raw = msgspec.Raw(b"{}")
    artifact_refs: list[msgspec.Raw] = []


class ResultRefused(Exception):
    """A result that cannot be answered together with its artifacts, by the code's fault; `reason` says which."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def with_artifacts(body: bytes, refs: Sequence[ArtifactRef]) -> bytes:
    """The result with what was stored among its artifactRefs. Raises ResultRefused."""
    try:
        result = msgspec.json.decode(body, type=_Result)
    except RecursionError as error:
        raise ResultRefused(Reason.HANDLER_RESULT_INVALID, "the result is nested too deeply for JSON") from error
    except UNDECODABLE as error:
        raise ResultRefused(Reason.HANDLER_RESULT_INVALID, f"the result cannot be read: {error}") from error
    result.artifact_refs += [msgspec.Raw(msgspec.json.encode(ref)) for ref in refs]
    answer = msgspec.json.encode(result)
    if len(answer) > INVOKE_RESULT_MAX_BYTES:
        message = (
            f"the result is {len(answer)} bytes with its artifactRefs; at most {INVOKE_RESULT_MAX_BYTES} are answered"
        )
        raise ResultRefused(Reason.RESPONSE_TOO_LARGE, message)
    return answer


def of_server_error(error: ErrorHead) -> InvokeReply:
    """What the Runtime Server said of a call that it took. A registration that it does not hold is on its way out."""
    if error.reason == FAILED_PRECONDITION:
        return refusal(Reason.RUN_NOT_READY, "the registration is closed", moving=True)
    reason = _ANSWERS.get(error.reason, Reason.INTERNAL_ERROR)
    message = error.message if reason.value == error.reason else f"{error.reason}: {error.message}"
    info = reason.info
    retry_after_s = None if error.retry_after_ms is None else max(1, -(-error.retry_after_ms // 1000))
    return InvokeReply(
        status=info.http_status,
        reason=reason.value,
        message=message,
        hop="worker" if info.fault is Fault.FUNCTION else "runtime",
        retryable=info.retryable,
        retry_after_s=retry_after_s or (RETRY_AFTER_S if info.retryable else None),
        causes=tuple(Cause(name, text) for name, text in error.details.items()),
    )
