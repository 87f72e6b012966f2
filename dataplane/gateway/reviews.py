"""A cache of yes and no: how often the Kubernetes API is asked about one caller.

Here: lifetimes, single flight, refresh ahead, bounds. Not here: what is asked (`auth`). A failure is never kept: it
is no answer. Next: `auth.Gatekeeper` has one cache for credentials and one for (credential, Run).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from math import inf
from typing import Generic, TypeVar

from msgspec import Struct

from controlplane.kube.clock import Clock
from dataplane.gateway.limits import (
    REVIEW_AGAIN_S,
    REVIEW_DENIED_TTL_S,
    REVIEW_REFRESH_S,
    REVIEW_TIMEOUT_S,
    REVIEW_TTL_S,
    REVIEWS_DENIED_MAX,
    REVIEWS_IN_FLIGHT_MAX,
    REVIEWS_MAX,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ReviewFailed(Exception):
    """The Kubernetes API gave no answer: AuthorizationUnavailable."""


class Verdict(Struct, Generic[V], frozen=True):
    """A decision. `value` belongs to an allowed one, `message` says why not; `until_s` is the credential's own end."""

    allowed: bool
    value: V | None = None
    message: str = ""
    until_s: float = inf
    """Clock.monotonic second after which it must not be used, whatever its age."""


class _Entry(Struct, Generic[V]):
    verdict: Verdict[V]
    expires_s: float
    refresh_s: float


class Reviews(Generic[K, V]):
    """Verdicts by key. Allowed ones live REVIEW_TTL_S, denied ones REVIEW_DENIED_TTL_S, none beyond its own end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._granted: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._denied: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._asking: dict[K, asyncio.Task[Verdict[V]]] = {}
        self.asked = 0
        """Questions put to the Kubernetes API so far."""

    def known(self, key: K, ask: Callable[[], Awaitable[Verdict[V]]], now_s: float | None = None) -> Verdict[V] | None:
        """The verdict in force, or None. One that ages is asked again in the background: no call waits for that.

        `now_s` is Clock.monotonic, for who has just read it.
        """
        entry = self._granted.get(key) or self._denied.get(key)
        if entry is None:
            return None
        now = self._clock.monotonic() if now_s is None else now_s
        if now >= entry.expires_s:
            self.forget(key)
            return None
        if now >= entry.refresh_s and key not in self._asking:
            entry.refresh_s = now + REVIEW_AGAIN_S  # an API that gives no answer is not asked at each call
            self._start(key, ask)
        return entry.verdict

    async def decide(self, key: K, ask: Callable[[], Awaitable[Verdict[V]]]) -> Verdict[V]:
        """The verdict in force, or the API's answer; callers of one key share one question.

        Raises ReviewFailed. A caller that gives up does not end the question for the others.
        """
        known = self.known(key, ask)
        if known is not None:
            return known
        asking = self._asking.get(key)
        if asking is None:
            if len(self._asking) >= REVIEWS_IN_FLIGHT_MAX:
                raise ReviewFailed(f"{REVIEWS_IN_FLIGHT_MAX} callers are being reviewed already")
            asking = self._start(key, ask)
        return await asyncio.shield(asking)

    def forget(self, key: K) -> None:
        """Drop the verdict: the next call asks."""
        self._granted.pop(key, None)
        self._denied.pop(key, None)

    async def close(self) -> None:
        """End the questions in flight."""
        for asking in list(self._asking.values()):
            asking.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _start(self, key: K, ask: Callable[[], Awaitable[Verdict[V]]]) -> asyncio.Task[Verdict[V]]:
        self.asked += 1
        asking = asyncio.get_running_loop().create_task(self._ask(key, ask))
        self._asking[key] = asking
        asking.add_done_callback(lambda task: self._asked(key, task))
        return asking

    async def _ask(self, key: K, ask: Callable[[], Awaitable[Verdict[V]]]) -> Verdict[V]:
        asked_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT_S):
                verdict = await ask()
        except TimeoutError as error:
            raise ReviewFailed(f"no answer within {REVIEW_TIMEOUT_S:g} s") from error
        self.forget(key)
        if verdict.allowed:
            expires_s = min(asked_s + REVIEW_TTL_S, verdict.until_s)
            self._granted[key] = _Entry(verdict, expires_s, asked_s + REVIEW_REFRESH_S)
        else:
            self._denied[key] = _Entry(verdict, min(asked_s + REVIEW_DENIED_TTL_S, verdict.until_s), inf)
        for kept, most in ((self._granted, REVIEWS_MAX), (self._denied, REVIEWS_DENIED_MAX)):
            if len(kept) > most:
                kept.popitem(last=False)
        return verdict

    def _asked(self, key: K, task: asyncio.Task[Verdict[V]]) -> None:
        if self._asking.get(key) is task:
            del self._asking[key]
        if not task.cancelled():
            task.exception()  # retrieved: the callers that wait have it, and a refresh has none
