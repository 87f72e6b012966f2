"""The Kubernetes API as the rest of the program sees it: the `Kube` Protocol.

`client.KubeClient` speaks to a server, `tests.kit` has one in memory; both pass the same contract tests. Components
take a `Kube` in their constructor and never reach for a client of their own.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from controlplane.kube.meta import ObjectList
from controlplane.kube.resources import Kind

T = TypeVar("T")


class WatchType(StrEnum):
    """What a watch says has happened."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One line of a watch. `object` is None in a bookmark; `resource_version` is where a next watch may start."""

    type: WatchType
    object: T | None
    resource_version: str


class Kube(Protocol):
    """Typed calls to one Kubernetes API.

    Every method raises a subclass of `errors.KubeError` on refusal, and `errors.Unavailable` when no answer came within
    its bound; nothing else. Objects are structs of the `Kind`, or dicts when writing. `namespace` is None for
    cluster-scoped kinds, and in `list` and `watch` for all namespaces.
    """

    async def get(self, kind: Kind[T], namespace: str | None, name: str) -> T:
        """The object, read from the API's storage (no stale cache answers a GET without a resourceVersion)."""
        ...

    async def list(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str | None = None,
    ) -> ObjectList[T]:
        """All objects that match, pages joined. None reads what storage holds now; "0" would allow a stale cache."""
        ...

    def watch(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str = "",
        fields: str = "",
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after `resource_version`, until the server ends the stream (the normal end: watch again).

        `on_open` is called when the server has accepted the watch. Raises Gone when the revision is too old, and
        Unavailable when the stream broke, went silent or sent what is no event. Close it (`aclosing`) when leaving
        early.
        """
        ...

    async def create(self, kind: Kind[T], namespace: str | None, obj: T | Mapping[str, Any]) -> T:
        """The object as stored. AlreadyExists if the name is taken."""
        ...

    async def update(
        self, kind: Kind[T], namespace: str | None, obj: T | Mapping[str, Any], *, subresource: str = ""
    ) -> T:
        """PUT. Drops every field that `obj` does not carry: only for objects that we alone write, such as Leases."""
        ...

    async def json_patch(
        self,
        kind: Kind[T],
        namespace: str | None,
        name: str,
        ops: Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> T:
        """RFC 6902. Invalid (422) when a `test` fails; nothing is changed then."""
        ...

    async def merge_patch(
        self, kind: Kind[T], namespace: str | None, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> T:
        """RFC 7386. Unconditional: never for a deciding write."""
        ...

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
        """Create the object or take over exactly the fields that `obj` has."""
        ...

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
        """Ask for deletion. NotFound if absent, Conflict if the object of that name has another uid."""
        ...

    async def create_review(self, kind: Kind[T], obj: T) -> T:
        """Put a question (TokenReview, SubjectAccessReview) and return it answered."""
        ...

    async def create_token(
        self,
        namespace: str,
        service_account: str,
        *,
        audiences: Sequence[str] = (),
        expiration_seconds: int | None = None,
        pod_name: str | None = None,
        pod_uid: str | None = None,
    ) -> "TokenAnswer":
        """A token of a ServiceAccount, bound to a Pod if one is named."""
        ...

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The body of a 2xx answer. For what no other method says: discovery, Tables, logs."""
        ...

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[bytes]:
        """The lines of a GET as they come, without their newline; each bounded.

        Unavailable after `idle_seconds` without a byte. A Table watch is a stream of `{"type":…,"object":…}`."""
        ...


class TokenAnswer(msgspec.Struct, frozen=True):
    """An issued token and when it ends (Unix microseconds; None if the server did not say)."""

    token: str
    expires_us: int | None

    def __repr__(self) -> str:
        return f"TokenAnswer(expires_us={self.expires_us!r})"
