"""Every answer of runtimed's port that is no result: reasons into `InvokeReply` heads. Pure. Next: `serving.py`."""

from typing import Final

from dataplane.wire.messages import Cause, Hop, InvokeReply
from runtimes.contract.messages import FAILED_PRECONDITION, ErrorHead
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
