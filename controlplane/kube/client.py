"""`KubeClient`: the `Kube` Protocol against a real server, over kubernetes_asyncio's transport.

No model classes: bytes go straight into structs (`wire.py`). Calls that fail are not repeated: a caller that wants to
try again decides from what the API says then. Importing this module does not import kubernetes_asyncio; `connect` loads
the four modules that it needs.
"""

import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Self, TypeVar

import msgspec

from controlplane.kube import wire
from controlplane.kube.api import Kube, TokenAnswer, WatchEvent, WatchType
from controlplane.kube.clock import Clock, SystemClock
from controlplane.kube.codec import parse_time_us_or_none
from controlplane.kube.errors import Gone
from controlplane.kube.exchange import Exchange
from controlplane.kube.kubeconfig import load_access
from controlplane.kube.meta import ObjectList
from controlplane.kube.resources import SERVICEACCOUNTS, Kind
from controlplane.kube.transport import Transport
from controlplane.kube.types import BoundObjectReference, TokenRequest, TokenRequestSpec

__all__ = ["Kube", "KubeClient", "TokenAnswer", "WatchEvent", "WatchType"]

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 30.0  # of one call or one page, answer read
WATCH_TIMEOUT_S: Final = 60  # asked of the server, ± a tenth: an idle watch is renewed each minute
WATCH_SILENCE_MARGIN_S: Final = 10.0  # beyond it: half-open is noticed in 76 s, below the 120 s of a recovery
LIST_PAGE_ITEMS: Final = 500  # kubectl's and client-go's page


class KubeClient:
    """One API server, one credential, one loop. Make it with `connect`, end it with `close`."""

    def __init__(
        self,
        transport: Transport,
        *,
        user_agent: str,
        request_timeout: float = REQUEST_TIMEOUT_S,
        watch_timeout: float = WATCH_TIMEOUT_S,
        watch_silence_margin: float = WATCH_SILENCE_MARGIN_S,
        rng: random.Random | None = None,
    ) -> None:
        self._transport = transport
        self._exchange = Exchange(transport, user_agent=user_agent, request_timeout=request_timeout)
        self._watch_timeout = watch_timeout
        self._watch_margin = watch_silence_margin
        self._rng = rng or random.Random()

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        context: str | None = None,
        service_account_dir: str | None = None,
        environ: Mapping[str, str] | None = None,
        user_agent: str,
        clock: Clock | None = None,
        **limits: Any,
    ) -> Self:
        """Read the configuration as kubectl does (without a kubeconfig: the Pod's ServiceAccount); no request is made.

        Raises `kubeconfig.ConfigError` when it cannot be used.
        """
        env = os.environ if environ is None else environ

        def load() -> Any:
            return load_access(kubeconfig, context=context, service_account_dir=service_account_dir, environ=env)

        transport = Transport(load, clock or SystemClock())
        await transport.open()
        return cls(transport, user_agent=user_agent, **limits)

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, or the Pod's."""
        return self._transport.access.namespace

    @property
    def server(self) -> str:
        """The API server's base URL."""
        return self._transport.access.server

    async def close(self) -> None:
        """Close every connection; calls in flight and watches fail with Unavailable."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # reads

    async def get(self, kind: Kind[T], namespace: str | None, name: str) -> T:
        return wire.decode(kind.type, await self._exchange.call("GET", kind.path(namespace, name)))

    async def list(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str | None = None,
    ) -> ObjectList[T]:
        path, query = kind.path(namespace), _selectors(labels, fields)
        if resource_version is not None:
            query["resourceVersion"] = resource_version
        items: list[T] = []
        page_query = query | {"limit": str(LIST_PAGE_ITEMS)}
        while True:
            try:
                page = wire.decode_page(kind, await self._exchange.call("GET", path, page_query))
            except Gone:
                if "continue" not in page_query:
                    raise
                items.clear()  # the snapshot went while we paged through it: once more, in one piece
                page_query = query
                continue
            items.extend(page.items or ())
            if not page.metadata.continue_:
                return ObjectList(tuple(items), page.metadata.resource_version)
            page_query = _selectors(labels, fields) | {
                "limit": str(LIST_PAGE_ITEMS),
                "continue": page.metadata.continue_,
            }

    async def watch(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        seconds = self._watch_timeout * (0.9 + self._rng.random() / 5)
        query = _selectors(labels, fields) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        idle = seconds + self._watch_margin
        async with aclosing(self._exchange.lines(kind.path(namespace), query, None, idle, on_open)) as batches:
            async for batch in batches:
                for line in batch:
                    yield wire.decode_event(kind, line)

    # writes

    async def create(self, kind: Kind[T], namespace: str | None, obj: T | Mapping[str, Any]) -> T:
        body = wire.encode(kind, obj)
        return wire.decode(kind.type, await self._exchange.call("POST", kind.path(namespace), body=body))

    async def update(
        self, kind: Kind[T], namespace: str | None, obj: T | Mapping[str, Any], *, subresource: str = ""
    ) -> T:
        body = wire.encode(kind, obj)
        name = obj["metadata"]["name"] if isinstance(obj, Mapping) else obj.metadata.name  # type: ignore[attr-defined]
        return wire.decode(
            kind.type, await self._exchange.call("PUT", kind.path(namespace, name, subresource), body=body)
        )

    async def json_patch(
        self,
        kind: Kind[T],
        namespace: str | None,
        name: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> T:
        return await self._patch(kind, kind.path(namespace, name, subresource), ops, "application/json-patch+json")

    async def merge_patch(
        self, kind: Kind[T], namespace: str | None, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> T:
        return await self._patch(kind, kind.path(namespace, name, subresource), patch, "application/merge-patch+json")

    async def server_side_apply(
        self,
        kind: Kind[T],
        namespace: str | None,
        name: str,
        obj: T | Mapping[str, Any],
        *,
        manager: str,
        force: bool = True,
    ) -> T:
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        raw = await self._exchange.call(
            "PATCH", kind.path(namespace, name), query, wire.encode(kind, obj), "application/apply-patch+yaml"
        )
        return wire.decode(kind.type, raw)

    async def delete(
        self,
        kind: Kind[Any],
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        propagation: str | None = None,
    ) -> None:
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        await self._exchange.call("DELETE", kind.path(namespace, name), body=msgspec.json.encode(options))

    async def create_review(self, kind: Kind[T], obj: T) -> T:
        return await self.create(kind, None, obj)

    async def create_token(
        self,
        namespace: str,
        service_account: str,
        *,
        audiences: Sequence[str] = (),
        expiration_seconds: int | None = None,
        pod_name: str | None = None,
        pod_uid: str | None = None,
    ) -> TokenAnswer:
        bound = BoundObjectReference(name=pod_name, uid=pod_uid or "") if pod_name else None
        spec = TokenRequestSpec(
            audiences=tuple(audiences), expiration_seconds=expiration_seconds, bound_object_ref=bound
        )
        request = TokenRequest(spec=spec)
        body = {**msgspec.to_builtins(request), "apiVersion": request.api_version, "kind": request.kind}
        if bound is not None:
            body["spec"]["boundObjectRef"] |= {"kind": bound.kind, "apiVersion": bound.api_version}
        path = SERVICEACCOUNTS.path(namespace, service_account, "token")
        answer = wire.decode(TokenRequest, await self._exchange.call("POST", path, body=msgspec.json.encode(body)))
        return TokenAnswer(answer.status.token, parse_time_us_or_none(answer.status.expiration_timestamp))

    # anything else

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        return await self._exchange.call(method, path, query or {}, body, headers=headers)

    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[bytes]:
        async with aclosing(self._exchange.lines(path, query or {}, headers, idle_seconds, on_open)) as batches:
            async for batch in batches:
                for line in batch:
                    yield line

    async def _patch(self, kind: Kind[T], path: str, patch: Any, content_type: str) -> T:
        raw = await self._exchange.call("PATCH", path, body=msgspec.json.encode(patch), content_type=content_type)
        return wire.decode(kind.type, raw)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    query = {}
    if labels:
        query["labelSelector"] = labels
    if fields:
        query["fieldSelector"] = fields
    return query
