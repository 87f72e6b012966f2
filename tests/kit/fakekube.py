"""`FakeKube`: the `Kube` Protocol over objects in memory, with faults on demand.

It passes the same contract tests as the real client (`tests/kube/contract.py`). It counts requests, can fail the next
calls, cut watches and forget history. Schemas and RBAC are not checked here: parity tests do that against real servers.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from controlplane.kube.api import TokenAnswer, WatchEvent, WatchType
from controlplane.kube.errors import KubeError, unavailable
from controlplane.kube.meta import ObjectList
from controlplane.kube.resources import Kind
from controlplane.kube.types import (
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewStatus,
    UserInfo,
)
from tests.kit.clock import ManualClock
from tests.kit.fakestore import Entry, FakeStore, Obj, refuse
from tests.kit.jsonpatching import PatchFailed, json_patch, merge_patch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One call that was made."""

    verb: str
    plural: str
    namespace: str
    name: str
    subresource: str = ""


class FakeKube:
    """See the file's docstring.

    `tokens` maps a token to (user, audiences); `may` answers SubjectAccessReviews; `answers` and `lines` hold what
    `raw` and `stream` return by path.
    """

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.store = FakeStore(clock or ManualClock())
        self.requests: list[Request] = []
        self.tokens: dict[str, tuple[UserInfo, tuple[str, ...]]] = {}
        self.may: Callable[[SubjectAccessReviewSpec], bool] = lambda _: False
        self.answers: dict[str, bytes] = {}
        self.lines: dict[str, Sequence[bytes]] = {}
        self._failures: list[tuple[str, str, KubeError]] = []
        self._watches: set[asyncio.Queue[Entry | None]] = set()
        self._cut: KubeError | None = None

    # what tests do to it

    def seed(self, kind: Kind[T], obj: T) -> T:
        """Put an object there as it stands, status and finalizers included."""
        content = _content(obj)
        namespace = content.get("metadata", {}).get("namespace") if kind.namespaced else None
        return self._typed(kind, self.store.insert(kind, namespace, content))

    def fail_next(self, verb: str, error: KubeError, *, plural: str = "") -> None:
        """The next call of this verb (on that kind) raises `error` and does nothing. Calls queue up."""
        self._failures.append((verb, plural, error))

    def cut_watches(self, error: KubeError | None = None) -> None:
        """End every open watch: normally, or with `error`."""
        self._cut = error
        for queue in list(self._watches):
            queue.put_nowait(None)

    def forget_history(self) -> None:
        """Watches that start before now get 410."""
        self.store.forget_history()

    def writes(self) -> list[Request]:
        """The calls that would have changed something."""
        return [r for r in self.requests if r.verb not in ("get", "list", "watch")]

    # the Protocol

    async def get(self, kind: Kind[T], namespace: str | None, name: str) -> T:
        await self._begin("get", kind, namespace, name)
        return self._typed(kind, self.store.find(kind, namespace, name))

    async def list(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str | None = None,
    ) -> ObjectList[T]:
        await self._begin("list", kind, namespace, "")
        wanted = _selector(labels, fields)
        found = tuple(self._typed(kind, obj) for obj in self.store.of(kind, namespace) if wanted(obj))
        return ObjectList(found, str(self.store.revision))

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
        await self._begin("watch", kind, namespace, "")
        since, wanted = int(resource_version), _selector(labels, fields)
        if since < self.store.oldest:
            raise refuse(410, "Expired", f"too old resource version: {since} ({self.store.oldest})")
        queue: asyncio.Queue[Entry | None] = asyncio.Queue()
        for past in self.store.history:
            if past.revision > since:
                queue.put_nowait(past)
        self._watches.add(queue)
        self.store.subscribers.append(queue.put_nowait)
        try:
            if on_open is not None:
                on_open()
            while (entry := await queue.get()) is not None:
                event = _seen(entry, kind, namespace, wanted)
                if event is not None:
                    type_, obj = event
                    yield WatchEvent(type_, self._typed(kind, obj), str(entry.revision))
            if self._cut is not None:
                raise self._cut
        finally:
            self._watches.discard(queue)
            self.store.subscribers.remove(queue.put_nowait)

    async def create(self, kind: Kind[T], namespace: str | None, obj: T | Mapping[str, Any]) -> T:
        await self._begin("create", kind, namespace, "")
        if isinstance(obj, TokenReview):
            return self._review_token(obj)  # type: ignore[return-value]
        if isinstance(obj, SubjectAccessReview):
            status = msgspec.structs.replace(obj.status, allowed=self.may(obj.spec))
            return msgspec.structs.replace(obj, status=status)
        content = _content(obj)
        content.get("metadata", {}).pop("uid", None)
        if kind.plural in ("runs", "runtimes", "pods"):
            content.pop("status", None)
        return self._typed(kind, self.store.insert(kind, namespace, content))

    async def update(
        self, kind: Kind[T], namespace: str | None, obj: T | Mapping[str, Any], *, subresource: str = ""
    ) -> T:
        new = _content(obj)
        name = new["metadata"]["name"]
        await self._begin("update", kind, namespace, name, subresource)
        old = self.store.find(kind, namespace, name)
        version = new["metadata"].get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise refuse(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )
        return self._typed(kind, self.store.change(kind, namespace, name, new, subresource))

    async def json_patch(
        self,
        kind: Kind[T],
        namespace: str | None,
        name: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> T:
        await self._begin("patch", kind, namespace, name, subresource)
        try:
            new = json_patch(self.store.find(kind, namespace, name), msgspec.json.decode(msgspec.json.encode(ops)))
        except PatchFailed as error:
            raise refuse(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
            ) from error
        return self._typed(kind, self.store.change(kind, namespace, name, new, subresource))

    async def merge_patch(
        self, kind: Kind[T], namespace: str | None, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> T:
        await self._begin("patch", kind, namespace, name, subresource)
        new = merge_patch(self.store.find(kind, namespace, name), _content(patch))
        return self._typed(kind, self.store.change(kind, namespace, name, new, subresource))

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
        await self._begin("apply", kind, namespace, name)
        new = _content(obj)
        new.setdefault("metadata", {})["name"] = name
        try:
            old = self.store.find(kind, namespace, name)
        except KubeError:
            return self._typed(kind, self.store.insert(kind, namespace, new))
        return self._typed(kind, self.store.change(kind, namespace, name, merge_patch(old, new), ""))

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
        await self._begin("delete", kind, namespace, name)
        self.store.delete(kind, namespace, name, uid, grace_seconds)

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
        self.requests.append(Request("create", "serviceaccounts", namespace, service_account, "token"))
        extra: dict[str, tuple[str, ...]] = {}
        if pod_name is not None:
            extra = {
                "authentication.kubernetes.io/pod-name": (pod_name,),
                "authentication.kubernetes.io/pod-uid": (pod_uid or "",),
            }
        user = UserInfo(username=f"system:serviceaccount:{namespace}:{service_account}", extra=extra)
        token = f"token-{len(self.tokens) + 1}"
        self.tokens[token] = (user, tuple(audiences))
        return TokenAnswer(token, self.store.clock.now_us() + (expiration_seconds or 3600) * 1_000_000)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        self.requests.append(Request(method.lower(), path, "", ""))
        if path not in self.answers:
            raise refuse(404, "NotFound", "the server could not find the requested resource")
        return self.answers[path]

    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[bytes]:
        self.requests.append(Request("get", path, "", ""))
        if path not in self.lines:
            raise refuse(404, "NotFound", "the server could not find the requested resource")
        if on_open is not None:
            on_open()
        for line in self.lines[path]:
            yield line

    # inside

    async def _begin(self, verb: str, kind: Kind[Any], namespace: str | None, name: str, subresource: str = "") -> None:
        self.requests.append(Request(verb, kind.plural, namespace or "", name, subresource))
        await asyncio.sleep(0)
        for index, (wanted, plural, error) in enumerate(self._failures):
            if wanted == verb and plural in ("", kind.plural):
                del self._failures[index]
                raise error

    def _typed(self, kind: Kind[T], obj: Obj) -> T:
        return msgspec.convert(copy.deepcopy(obj), kind.type)

    def _review_token(self, review: TokenReview) -> TokenReview:
        found = self.tokens.get(review.spec.token)
        status = TokenReviewStatus(error="unknown token")
        if found is not None:
            user, audiences = found
            good = tuple(a for a in audiences if not review.spec.audiences or a in review.spec.audiences)
            if good or not review.spec.audiences:
                status = TokenReviewStatus(authenticated=True, user=user, audiences=good)
        return msgspec.structs.replace(review, status=status)


def lost(message: str = "connection lost") -> KubeError:
    """The error of a connection that broke after the request was sent."""
    return unavailable(message, sent=True)


def _content(obj: Any) -> Obj:
    """Plain JSON values, a copy: what would have come over the wire."""
    return msgspec.json.decode(msgspec.json.encode(obj), type=dict[str, Any])


def _selector(labels: str, fields: str) -> Callable[[Obj], bool]:
    """Equality selectors, and label existence."""
    wanted_labels = [part.partition("=") for part in labels.split(",") if part]
    wanted_fields = [part.partition("=") for part in fields.split(",") if part]

    def match(obj: Obj) -> bool:
        have = obj["metadata"].get("labels", {})
        for key, sign, value in wanted_labels:
            if (have.get(key) != value) if sign else (key not in have):
                return False
        return all(str(_field(obj, path)) == value for path, _, value in wanted_fields)

    return match


def _field(obj: Any, path: str) -> Any:
    for part in path.split("."):
        obj = obj.get(part, "") if isinstance(obj, Mapping) else ""
    return obj


def _seen(
    entry: Entry, kind: Kind[Any], namespace: str | None, wanted: Callable[[Obj], bool]
) -> tuple[WatchType, Obj] | None:
    """What a watch with this selector sees of a change: entering is ADDED, leaving DELETED."""
    some = entry.after or entry.before
    if entry.plural != kind.plural or some is None or namespace not in (None, some["metadata"].get("namespace")):
        return None
    before = entry.before is not None and wanted(entry.before)
    if entry.after is None or not wanted(entry.after):
        return (WatchType.DELETED, entry.after or some) if before else None
    return (WatchType.MODIFIED if before else WatchType.ADDED), entry.after
