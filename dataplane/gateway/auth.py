"""Who calls, and whether that caller may get exactly that Run: asked of the Kubernetes API, remembered for seconds.

Here: TokenReview and SubjectAccessReview as questions, the two caches in front of them, the meaning of their answers.
Not here: lifetimes (`reviews`), reading credentials (`credentials`). A credential goes to the Kubernetes API only.
Next: `invoke` asks `Gatekeeper` before it looks at anything else of a request.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

from controlplane.kube.api import Kube
from controlplane.kube.clock import Clock
from controlplane.kube.errors import KubeError
from controlplane.kube.resources import RUNS, SUBJECTACCESSREVIEWS, TOKENREVIEWS
from controlplane.kube.types import (
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewSpec,
)
from dataplane.gateway.credentials import (
    AUDIENCE,
    BearerToken,
    ClientCertificate,
    Credential,
    User,
    token_claims,
)
from dataplane.gateway.reviews import ReviewFailed, Reviews, Verdict
from statemachine.ownership import RunFact
from statemachine.run import RunUID


class Gatekeeper:
    """Authentication and authorisation. `*_known` are synchronous and answer from the cache: the path of most calls."""

    def __init__(self, kube: Kube, clock: Clock, *, verb: str = "get", subresource: str = "") -> None:
        """`verb` on `runs/subresource` is what callers need: an installation may ask for create on invoke instead."""
        self._kube = kube
        self._clock = clock
        self._verb = verb
        self._subresource = subresource
        self._users: Reviews[bytes, User] = Reviews(clock)
        self._grants: Reviews[tuple[bytes, RunUID, User], None] = Reviews(clock)

    @property
    def reviews_asked(self) -> tuple[int, int]:
        """TokenReviews and SubjectAccessReviews put to the Kubernetes API so far."""
        return self._users.asked, self._grants.asked

    def user_known(self, credential: Credential, now_s: float | None = None) -> Verdict[User] | None:
        """The caller, if that was decided within the last seconds; None: await `authenticate`.

        `now_s` is Clock.monotonic, for who has just read it.
        """
        if isinstance(credential, ClientCertificate):
            return self._certificate_user(credential)
        return self._users.known(credential.digest, partial(self._review_token, credential), now_s)

    async def authenticate(self, credential: Credential) -> Verdict[User]:
        """The caller, or why not. Raises ReviewFailed when the Kubernetes API gives no answer."""
        if isinstance(credential, ClientCertificate):
            return self._certificate_user(credential)
        return await self._users.decide(credential.digest, partial(self._review_token, credential))

    def grant_known(
        self, credential: Credential, user: User, run: RunFact, now_s: float | None = None
    ) -> Verdict[None] | None:
        """Whether the caller may, if that was decided within the last seconds; None: await `authorize`."""
        return self._grants.known((credential.digest, run.uid, user), partial(self._review_access, user, run), now_s)

    async def authorize(self, credential: Credential, user: User, run: RunFact) -> Verdict[None]:
        """Whether the caller may get that very Run. Raises ReviewFailed when the Kubernetes API gives no answer."""
        return await self._grants.decide((credential.digest, run.uid, user), self._access_question(user, run))

    async def close(self) -> None:
        """End the questions in flight."""
        await self._users.close()
        await self._grants.close()

    def _certificate_user(self, credential: ClientCertificate) -> Verdict[User]:
        if self._clock.now_us() >= credential.expires_s * 1_000_000:
            return Verdict(False, message="the client certificate has expired")
        groups = (*credential.user.groups, "system:authenticated")
        return Verdict(True, User(credential.user.name, groups=groups))

    async def _review_token(self, credential: BearerToken) -> Verdict[User]:
        audiences, expires_s = token_claims(credential.token)
        wanted = (AUDIENCE,) if AUDIENCE in audiences else ()
        review = TokenReview(spec=TokenReviewSpec(token=credential.token, audiences=wanted))
        try:
            status = (await self._kube.create_review(TOKENREVIEWS, review)).status
        except KubeError as error:
            raise ReviewFailed("the Kubernetes API could not be asked about the credential") from error
        if not status.authenticated or not status.user.username:
            return Verdict(False, message="the cluster does not accept the credential")
        user = User(
            status.user.username,
            status.user.uid,
            tuple(status.user.groups),
            tuple(sorted((key, tuple(values)) for key, values in status.user.extra.items())),
        )
        return Verdict(True, user, until_s=self._monotonic_end(expires_s))

    def _monotonic_end(self, unix_s: float) -> float:
        if unix_s == inf:
            return inf
        return self._clock.monotonic() + unix_s - self._clock.now_us() / 1_000_000

    def _access_question(self, user: User, run: RunFact) -> Callable[[], Awaitable[Verdict[None]]]:
        return partial(self._review_access, user, run)

    async def _review_access(self, user: User, run: RunFact) -> Verdict[None]:
        review = SubjectAccessReview(
            spec=SubjectAccessReviewSpec(
                user=user.name,
                uid=user.uid,
                groups=user.groups,
                extra=dict(user.extra),
                resource_attributes=ResourceAttributes(
                    namespace=run.namespace,
                    verb=self._verb,
                    group=RUNS.group,
                    version=RUNS.version,
                    resource=RUNS.plural,
                    subresource=self._subresource,
                    name=run.name,
                ),
            )
        )
        try:
            status = (await self._kube.create_review(SUBJECTACCESSREVIEWS, review)).status
        except KubeError as error:
            raise ReviewFailed("the Kubernetes API could not be asked whether the caller may") from error
        if not status.allowed:
            what = f"{RUNS.plural}/{self._subresource}" if self._subresource else RUNS.plural
            return Verdict(False, message=f"{user.name} may not {self._verb} {what} of that name in {run.namespace}")
        return Verdict(True)
