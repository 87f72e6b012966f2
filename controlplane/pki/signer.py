"""The signer: who shows a ServiceAccount token gets the certificate that this account stands for.

`POST /v1/certificates` with `{"csr": PEM, "hosts": [...]}` and a bearer token for audience `kruntimes`. The gateway's
account gets the gateway's identity; a token bound to a Pod of `runtime-<name>` gets that Pod's runtimed, after the API
has shown the Pod. It runs in the control plane; every replica may sign.
"""

import asyncio
import logging
import re
from typing import Final

import msgspec
from aiohttp import web

from controlplane.kube.api import Kube
from controlplane.kube.certificates import CertificateSource, Issued
from controlplane.kube.clock import Clock
from controlplane.kube.errors import KubeError, NotFound
from controlplane.kube.meta import Status
from controlplane.kube.resources import PODS, TOKENREVIEWS
from controlplane.kube.types import Pod, TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo
from controlplane.pki import names
from controlplane.pki.building import PkiError
from controlplane.pki.ca import CSR_MAX_BYTES, Authority
from controlplane.pki.names import Subject

AUDIENCE: Final = "kruntimes"
GATEWAY_USER: Final = "system:serviceaccount:kruntimes-system:kruntimes-gateway"
RUNTIME_LABEL: Final = "kruntimes.io/runtime"
BODY_MAX_BYTES: Final = 2 * CSR_MAX_BYTES  # a request, JSON escapes and some hosts
TOKEN_MAX_BYTES: Final = 32 * 1024  # tokens with many groups; ours have 1 KiB
REVIEWS_MAX: Final = 64  # at once; a cluster that starts 1,000 Pods together is served in turn
REVIEW_WAIT_S: Final = 5.0

_RUNTIME_USER: Final = re.compile(r"system:serviceaccount:([^:]+):runtime-([^:]+)")
_POD_NAME: Final = "authentication.kubernetes.io/pod-name"
_POD_UID: Final = "authentication.kubernetes.io/pod-uid"

_log = logging.getLogger(__name__)


class SigningRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request."""

    csr: str
    hosts: tuple[str, ...] = ()


class SignerRefusal(Exception):
    """An answer other than 200: `status` is its code, the text its sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Signer:
    """The HTTP server and the decisions behind it."""

    def __init__(self, kube: Kube, authority: Authority, clock: Clock, *, gateway_user: str = GATEWAY_USER) -> None:
        self._kube = kube
        self._authority = authority
        self._clock = clock
        self._gateway_user = gateway_user
        self._turns = asyncio.Semaphore(REVIEWS_MAX)
        self._runner: web.AppRunner | None = None
        self._source: CertificateSource | None = None
        self.signed = 0
        self.refused = 0

    @property
    def certificate(self) -> CertificateSource:
        """The control plane's own certificate, once `start` has returned; other listeners here use it, too."""
        assert self._source is not None, "asked before start"
        return self._source

    async def start(self, host: str, port: int, hosts: tuple[str, ...]) -> int:
        """Serve on `host:port` (0 = any) under a certificate for `hosts`; returns the port. Raises OSError."""

        async def fetch(csr: bytes) -> Issued:
            chain = self._authority.sign(csr, names.control_plane(hosts))
            return Issued(chain.decode(), self._authority.root_pem.decode())

        self._source = CertificateSource(
            fetch, clock=self._clock, trusted_pem=lambda: self._authority.published.decode()
        )
        await self._source.start()
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.router.add_post("/v1/certificates", self._post)
        app.router.add_get("/healthz", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
        await self._runner.setup()
        context = self._source.server_context(require_client=False)
        site = web.TCPSite(self._runner, host, port, ssl_context=context, reuse_address=True)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop taking requests; those in progress have five seconds."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self._source is not None:
            await self._source.close()

    async def sign(self, token: str, request: SigningRequest) -> Issued:
        """Decide and sign. Raises SignerRefusal."""
        try:
            async with asyncio.timeout(REVIEW_WAIT_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise SignerRefusal(503, "Overloaded", "too many requests at once") from error
        try:
            subject = await self._subject(token, request.hosts)
        except KubeError as error:
            raise SignerRefusal(503, "ServiceUnavailable", f"the Kubernetes API gave no answer: {error}") from error
        finally:
            self._turns.release()
        try:
            chain = self._authority.sign(request.csr.encode(), subject)
        except PkiError as error:
            raise SignerRefusal(400, "BadRequest", str(error)) from error
        self.signed += 1
        _log.info("signed a certificate", extra={"identity": subject.uri})
        return Issued(chain.decode(), self._authority.root_pem.decode())

    async def _subject(self, token: str, hosts: tuple[str, ...]) -> Subject:
        question = TokenReview(spec=TokenReviewSpec(token=token, audiences=(AUDIENCE,)))
        user = reviewed_user((await self._kube.create_review(TOKENREVIEWS, question)).status)
        if user.username == self._gateway_user:
            try:
                return names.gateway(hosts)
            except ValueError as error:
                raise SignerRefusal(400, "BadRequest", str(error)) from error
        namespace, runtime, pod_name, pod_uid = claimed_pod(user)
        try:
            pod = await self._kube.get(PODS, namespace, pod_name)
        except NotFound as error:
            raise SignerRefusal(403, "Forbidden", f"there is no Pod {namespace}/{pod_name}") from error
        return runtimed_subject(pod, namespace, runtime, pod_uid)

    async def _post(self, request: web.Request) -> web.Response:
        try:
            token = _bearer(request.headers.get("Authorization", ""))
            try:
                body = msgspec.json.decode(await request.read(), type=SigningRequest)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise SignerRefusal(400, "BadRequest", f"the body is no signing request: {error}") from error
            issued = await self.sign(token, body)
        except SignerRefusal as refusal:
            self.refused += 1
            _log.warning("refused a certificate: %s", refusal, extra={"code": refusal.status})
            status = Status(message=str(refusal), reason=refusal.reason, code=refusal.status)
            return _json(refusal.status, {"kind": status.kind, "apiVersion": "v1", **msgspec.to_builtins(status)})
        return _json(200, issued)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")


def reviewed_user(status: TokenReviewStatus) -> UserInfo:
    """The user of a review that says yes for our audience. Raises SignerRefusal (401)."""
    if not status.authenticated:
        raise SignerRefusal(401, "Unauthorized", "the token is not valid for audience kruntimes")
    if AUDIENCE not in status.audiences:
        # An authenticator that does not know audiences says yes to any token of the API's own.
        raise SignerRefusal(401, "Unauthorized", "the token was not issued for audience kruntimes")
    return status.user


def claimed_pod(user: UserInfo) -> tuple[str, str, str, str]:
    """Namespace, Runtime, Pod name and Pod UID of a token bound to a Runtime's Pod. Raises SignerRefusal (403)."""
    found = _RUNTIME_USER.fullmatch(user.username)
    if found is None:
        raise SignerRefusal(403, "Forbidden", f"{user.username} is neither the gateway nor a Runtime's account")
    pod_names, pod_uids = user.extra.get(_POD_NAME, ()), user.extra.get(_POD_UID, ())
    if len(pod_names) != 1 or len(pod_uids) != 1:
        raise SignerRefusal(403, "Forbidden", "the token is not bound to a Pod")
    return found[1], found[2], pod_names[0], pod_uids[0]


def runtimed_subject(pod: Pod, namespace: str, runtime: str, pod_uid: str) -> Subject:
    """The identity of that Pod's runtimed, if the Pod is what the token says. Raises SignerRefusal (403)."""
    if pod.metadata.uid != pod_uid:
        raise SignerRefusal(403, "Forbidden", f"Pod {namespace}/{pod.metadata.name} has another UID than the token")
    if pod.metadata.labels.get(RUNTIME_LABEL) != runtime or pod.spec.service_account_name != f"runtime-{runtime}":
        raise SignerRefusal(403, "Forbidden", f"Pod {namespace}/{pod.metadata.name} is none of Runtime {runtime}")
    if pod.status.phase in ("Succeeded", "Failed"):
        raise SignerRefusal(403, "Forbidden", f"Pod {namespace}/{pod.metadata.name} has ended")
    try:
        return names.runtimed(namespace, runtime, pod_uid)
    except ValueError as error:
        raise SignerRefusal(403, "Forbidden", str(error)) from error


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > TOKEN_MAX_BYTES:
        raise SignerRefusal(401, "Unauthorized", "a bearer token is required")
    return token


def _json(status: int, body: object) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)
