"""Which path is what: invocations, the two health pages, and 404 for everything else.

Here: the first questions of the order of answers (malformed, path, method), the last resort for a defect of ours, the
count of what was answered. Not here: invocations themselves (`invoke`). Next: `front` asks `Site.answer` per request.
"""

import logging
from collections.abc import Callable
from typing import Final

from dataplane.gateway.answer import Answer, Failure, error_answer
from dataplane.gateway.bodies import Malformed
from dataplane.gateway.exchange import ClientGone, Request
from dataplane.gateway.http1 import Head
from dataplane.gateway.invoke import Invoker
from dataplane.gateway.metrics import Metrics
from dataplane.gateway.request import new_invocation_id
from statemachine.reasons import Reason

LIVE: Final = "/livez"
READY: Final = "/readyz"
_TEXT: Final = "text/plain; charset=utf-8"

log = logging.getLogger(__name__)


class Site:
    """The pages of the gateway. `ready` says whether new clients should be sent here."""

    def __init__(self, invoker: Invoker, metrics: Metrics, *, ready: Callable[[], bool]) -> None:
        self._invoker = invoker
        self._metrics = metrics
        self._ready = ready

    async def answer(self, request: Request) -> Answer:
        """The answer to any request. Raises ClientGone only."""
        head = request.head
        if isinstance(head, Malformed):
            failure = Failure(reason=head.reason, message=head.message, close=True)
            return self._count(request, error_answer(failure, invocation_id=new_invocation_id()))
        call_id = request.ask.invocation_id or new_invocation_id()
        try:
            return self._count(request, await self._page(request, head, call_id))
        except ClientGone:
            raise
        except Exception:
            log.exception("an invocation met a defect", extra={"invocation": call_id})
            failure = Failure(reason=Reason.INTERNAL_ERROR, close=True)
            return self._count(request, error_answer(failure, invocation_id=call_id))

    async def _page(self, request: Request, head: Head, call_id: str) -> Answer:
        path, target = request.ask.path, request.ask.target
        if target is not None:
            if head.method == "POST":
                return await self._invoker.invoke(request, target, call_id)
            failure = Failure(reason=Reason.METHOD_NOT_ALLOWED)
            return error_answer(failure, invocation_id=call_id, uid=target.run_uid)
        if path in (LIVE, READY) and head.method in ("GET", "HEAD"):
            good = path == LIVE or self._ready()
            return Answer(status=200 if good else 503, body=b"ok\n" if good else b"not ready\n", content_type=_TEXT)
        return error_answer(Failure(reason=Reason.NOT_FOUND), invocation_id=call_id)

    def _count(self, request: Request, answer: Answer) -> Answer:
        self._metrics.answered(answer, request.since_s)
        return answer
