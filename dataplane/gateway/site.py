"""Which path is what: invocations, the two health pages, and 404 for everything else.

Here: the first questions of the order of answers (malformed, path, method), the last resort for a defect of ours, the
count of what was answered. Not here: invocations themselves (`invoke`). Next: `front` asks `Site.answer` per request.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from dataplane.gateway.answer import Answer, Failure, error_answer
from dataplane.gateway.bodies import Malformed
from dataplane.gateway.exchange import ClientGone, Request
from dataplane.gateway.http1 import Head
from dataplane.gateway.invoke import Invoker, defect_answer
from dataplane.gateway.metrics import Metrics
from dataplane.gateway.request import Ask, new_invocation_id
from statemachine.reasons import Reason

LIVE: Final = "/livez"
READY: Final = "/readyz"
_TEXT: Final = "text/plain; charset=utf-8"


class Site:
    """The pages of the gateway. `ready` says whether new clients should be sent here."""

    def __init__(self, invoker: Invoker, metrics: Metrics, *, ready: Callable[[], bool]) -> None:
        self._invoker = invoker
        self._metrics = metrics
        self._ready = ready

    def answer(self, request: Request) -> Coroutine[Any, Any, Answer] | None:
        """Answer any request: at once or by `request.answer` (None), or by a coroutine that raises ClientGone only."""
        head = request.head
        if isinstance(head, Malformed):
            failure = Failure(reason=head.reason, message=head.message, close=True)
            request.answer(error_answer(failure, invocation_id=new_invocation_id()))
            return None
        ask = request.ask
        call_id = ask.invocation_id or new_invocation_id()
        try:
            if ask.target is not None and head.method == "POST":
                invoking = self._invoker.invoke(request, ask, ask.target, call_id)
                return None if invoking is None else _guarded(invoking, call_id)
            request.answer(self._page(head, ask, call_id))
        except Exception:
            request.answer(defect_answer(call_id))
        return None

    def _page(self, head: Head, ask: Ask, call_id: str) -> Answer:
        if ask.target is not None:
            failure = Failure(reason=Reason.METHOD_NOT_ALLOWED)
            return error_answer(failure, invocation_id=call_id, uid=ask.target.run_uid)
        if ask.path in (LIVE, READY):
            if head.method not in ("GET", "HEAD"):
                return error_answer(Failure(reason=Reason.METHOD_NOT_ALLOWED, allow="GET, HEAD"), invocation_id=call_id)
            good = ask.path == LIVE or self._ready()
            return Answer(status=200 if good else 503, body=b"ok\n" if good else b"not ready\n", content_type=_TEXT)
        return error_answer(Failure(reason=Reason.NOT_FOUND), invocation_id=call_id)

    def count(self, request: Request, answer: Answer) -> None:
        """An answer is being written."""
        self._metrics.answered(answer, request.since_s)


async def _guarded(invoking: Coroutine[Any, Any, Answer], call_id: str) -> Answer:
    try:
        return await invoking
    except ClientGone:
        raise
    except Exception:
        return defect_answer(call_id)
