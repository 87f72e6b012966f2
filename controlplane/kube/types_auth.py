"""Questions about credentials: TokenReview, SubjectAccessReview, TokenRequest. None of them is ever stored.

Tokens stay out of every repr. `types.py` re-exports all of it.
"""

import msgspec

from controlplane.kube.meta import ApiStruct


class UserInfo(ApiStruct, frozen=True, kw_only=True):
    """Whom a credential stands for."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class TokenReviewSpec(ApiStruct, frozen=True, kw_only=True):
    """A token to judge, for one of these audiences (none = the API server's own)."""

    token: str = ""
    audiences: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"TokenReviewSpec(audiences={self.audiences!r})"


class TokenReviewStatus(ApiStruct, frozen=True, kw_only=True):
    """The judgement; `audiences` are those of the question that the token is good for."""

    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: tuple[str, ...] = ()
    error: str = ""


class TokenReview(ApiStruct, frozen=True, kw_only=True):
    """authentication.k8s.io/v1 TokenReview: never stored."""

    api_version: str = "authentication.k8s.io/v1"
    kind: str = "TokenReview"
    spec: TokenReviewSpec = TokenReviewSpec()
    status: TokenReviewStatus = TokenReviewStatus()


class ResourceAttributes(ApiStruct, frozen=True, kw_only=True):
    """One access to judge."""

    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class SubjectAccessReviewSpec(ApiStruct, frozen=True, kw_only=True):
    """Who wants what. `uid` has no meaning to RBAC but is part of the question for webhooks."""

    resource_attributes: ResourceAttributes | None = None
    user: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    uid: str = ""


class SubjectAccessReviewStatus(ApiStruct, frozen=True, kw_only=True):
    """The judgement. `denied` without `allowed` is final; neither means that nobody allowed it."""

    allowed: bool = False
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class SubjectAccessReview(ApiStruct, frozen=True, kw_only=True):
    """authorization.k8s.io/v1 SubjectAccessReview: never stored."""

    api_version: str = "authorization.k8s.io/v1"
    kind: str = "SubjectAccessReview"
    spec: SubjectAccessReviewSpec = SubjectAccessReviewSpec()
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class BoundObjectReference(ApiStruct, frozen=True, kw_only=True):
    """The object whose end also ends a token."""

    kind: str = "Pod"
    api_version: str = "v1"
    name: str = ""
    uid: str = ""


class TokenRequestSpec(ApiStruct, frozen=True, kw_only=True):
    """A token to issue for a ServiceAccount."""

    audiences: tuple[str, ...] = ()
    expiration_seconds: int | None = None
    bound_object_ref: BoundObjectReference | None = None


class TokenRequestStatus(ApiStruct, frozen=True, kw_only=True):
    """The issued token and its end."""

    token: str = ""
    expiration_timestamp: str | None = None

    def __repr__(self) -> str:
        return f"TokenRequestStatus(expiration_timestamp={self.expiration_timestamp!r})"


class TokenRequest(ApiStruct, frozen=True, kw_only=True):
    """authentication.k8s.io/v1 TokenRequest: the answer of `serviceaccounts/token`."""

    api_version: str = "authentication.k8s.io/v1"
    kind: str = "TokenRequest"
    spec: TokenRequestSpec = TokenRequestSpec()
    status: TokenRequestStatus = TokenRequestStatus()
