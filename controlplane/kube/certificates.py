"""The certificate of this process: fetched with its token, renewed at two thirds of its life, reloaded without restart.

It is renewed early when the published roots change, which is how a rotation reaches everybody. The key never leaves
memory. TLS contexts that were handed out get each new certificate in place, so a listener or a pool keeps the one it
has and new handshakes use the new chain; a root that is trusted no more leaves them with the process. The data plane
and the signer's own server use it; what the signer decides is in `controlplane.pki.signer`.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, Self

import aiohttp
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from controlplane.kube.backoff import Backoff
from controlplane.kube.clock import Clock
from controlplane.kube.kubeconfig import ConfigError, read_text
from controlplane.kube.memfiles import memory_file

RETRY_FIRST_S: Final = 0.1  # at start, signer and holder come up together
RETRY_MAX_S: Final = 30.0
SIGNER_TIMEOUT_S: Final = 10.0
ANSWER_MAX_BYTES: Final = 64 * 1024  # two certificates and a root have 3 KiB
LOOK_S: Final = 5.0  # how often the published roots are looked at; the wall clock may jump, too
SPREAD_S: Final = 5.0  # holders that see a change together do not ask together
RENEW_AT: Final = 2 / 3

_log = logging.getLogger(__name__)


class Issued(msgspec.Struct, frozen=True):
    """A signer's answer: the chain for our key, and the roots to trust, all PEM."""

    certificate: str
    ca: str


Fetch = Callable[[bytes], Awaitable[Issued]]
"""Takes a certificate request (PEM), returns the answer; raises `CertificateRefused` or any OSError or TimeoutError."""


class CertificateRefused(Exception):
    """The signer does not know us, or will not sign this; it may be because something is not there yet."""


class CertificateSource:
    """Holds one certificate and renews it. `start` first; the contexts work from then on."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        clock: Clock,
        trusted_pem: Callable[[], str] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`trusted_pem` gives the published roots: when its text changes, the certificate is renewed. `on_roots`,
        which may be set, is called when other roots are to be trusted than before."""
        self._fetch = fetch
        self._clock = clock
        self._trusted_pem = trusted_pem
        self.on_roots: Callable[[], None] = lambda: None
        self._published = ""
        self._rng = rng or random.Random()
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, self._rng)
        self._contexts: list[ssl.SSLContext] = []
        self._fronts: list[ssl.SSLContext] = []
        self._roots: dict[str, None] = {}
        self._pair: tuple[bytes, bytes] | None = None
        self._renew_us = 0
        self._expires_us = 0
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.renewals = 0

    @classmethod
    def from_signer(
        cls,
        *,
        signer_url: str,
        ca_file: str,
        token_file: str,
        hosts: Sequence[str] = (),
        clock: Clock,
        rng: random.Random | None = None,
    ) -> Self:
        """A source that asks the signer at `signer_url`, trusting the roots in `ca_file`, as whoever `token_file` says.

        Both files are read again for each request. `hosts` are what a gateway is reached by; others leave it empty.
        """

        async def fetch(csr: bytes) -> Issued:
            return await ask_signer(signer_url, read_text(ca_file), read_text(token_file).strip(), csr, hosts)

        return cls(fetch, clock=clock, trusted_pem=lambda: read_text(ca_file), rng=rng)

    @property
    def root_pem(self) -> str:
        """The installation's root certificates, as published."""
        return "".join(self._roots)

    @property
    def expires_us(self) -> int:
        """When the current certificate ends (Unix microseconds); 0 before the first."""
        return self._expires_us

    async def start(self) -> None:
        """Get the first certificate, trying until there is one (bound it with `asyncio.timeout`), and keep it fresh."""
        self._task = asyncio.create_task(self._keep(), name="certificate")
        first = asyncio.create_task(self._first.wait(), name="first certificate")
        try:
            await asyncio.wait({self._task, first}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Stop renewing. Contexts keep the certificate that they have."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def server_context(self, *, require_client: bool = True) -> ssl.SSLContext:
        """A context for a listener, kept fresh. With `require_client`, peers must show a certificate of this
        installation."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if require_client:
            context.verify_mode = ssl.CERT_REQUIRED
        return self._adopt(context)

    def front_context(self) -> ssl.SSLContext:
        """A context for a listener whose clients somebody else vouches for, kept fresh: it trusts nobody by itself, so
        that certificates of this installation are not taken for those of others."""
        self._require_pair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_chain(context)
        self._fronts.append(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """A context for dialling members of this installation, kept fresh: it checks their host name and shows our
        certificate."""
        return self._adopt(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _adopt(self, context: ssl.SSLContext) -> ssl.SSLContext:
        self._require_pair()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        self._contexts.append(context)
        return context

    def _require_pair(self) -> None:
        if self._pair is None:
            raise RuntimeError("there is no certificate before start() has returned")

    def _load(self, context: ssl.SSLContext) -> None:
        self._load_chain(context)
        context.load_verify_locations(cadata=self.root_pem)

    def _load_chain(self, context: ssl.SSLContext) -> None:
        assert self._pair is not None
        chain, key = self._pair
        with memory_file(chain) as chain_path, memory_file(key) as key_path:
            context.load_cert_chain(chain_path, key_path)

    async def _keep(self) -> None:
        while True:
            try:
                await self.renew()
            except (CertificateRefused, ConfigError, OSError, aiohttp.ClientError) as error:
                left_s = max(0, self._expires_us - self._clock.now_us()) // 1_000_000
                _log.warning(
                    "no new certificate yet: %s", error or type(error).__name__, extra={"validSeconds": left_s}
                )
                await self._backoff.pause()
                continue
            self._backoff.reset()
            self._first.set()
            await self._until_renewal()

    async def _until_renewal(self) -> None:
        while (wait_s := (self._renew_us - self._clock.now_us()) / 1_000_000) > 0:
            await asyncio.sleep(min(wait_s, LOOK_S))
            if self._published_now() != self._published:
                _log.info("the published roots have changed: renewing the certificate")
                await asyncio.sleep(self._rng.random() * SPREAD_S)
                return

    def _published_now(self) -> str:
        """The published roots; what was known of them while they cannot be read."""
        try:
            return self._published if self._trusted_pem is None else self._trusted_pem()
        except (ConfigError, OSError) as error:
            _log.warning("the published roots cannot be read: %s", error)
            return self._published

    async def renew(self) -> None:
        """Fetch a certificate for a new key and put it into every context. Unchanged on any error."""
        key = ec.generate_private_key(ec.SECP256R1())
        text = "" if self._trusted_pem is None else self._trusted_pem()
        issued = await self._fetch(_request(key))
        try:
            leaf = x509.load_pem_x509_certificate(issued.certificate.encode())
        except ValueError as error:
            raise CertificateRefused(f"the signer's answer holds no certificate: {error}") from error
        if leaf.public_key() != key.public_key():
            raise CertificateRefused("the signer's answer is for another key")
        roots = dict.fromkeys((*_certificates(text), *_certificates(issued.ca)))
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._pair = issued.certificate.encode(), pem
        others = roots.keys() != self._roots.keys()
        self._roots, self._published = roots, text
        for context in self._contexts:
            self._load(context)
        for context in self._fronts:
            self._load_chain(context)
        now_us, end_us = self._clock.now_us(), _us(leaf.not_valid_after_utc)
        early = 1 - self._rng.random() / 20  # up to a twentieth, so that Pods started together do not ask together
        self._renew_us = now_us + int((end_us - now_us) * RENEW_AT * early)
        self._expires_us = end_us
        self.renewals += 1
        _log.info("certificate in force", extra={"validSeconds": (end_us - now_us) // 1_000_000})
        if others:
            self.on_roots()


def _certificates(pem: str) -> list[str]:
    """The certificates of a bundle, each as PEM of the same form. Raises CertificateRefused."""
    if not pem:
        return []
    try:
        return [
            root.public_bytes(serialization.Encoding.PEM).decode()
            for root in x509.load_pem_x509_certificates(pem.encode())
        ]
    except ValueError as error:
        raise CertificateRefused(f"the trusted roots are no certificates: {error}") from error


async def ask_signer(signer_url: str, ca_pem: str, token: str, csr: bytes, hosts: Sequence[str]) -> Issued:
    """One request to the signer. Raises CertificateRefused with what it said, aiohttp.ClientError, OSError."""
    context = ssl.create_default_context(cadata=ca_pem)
    body = msgspec.json.encode({"csr": csr.decode(), "hosts": list(hosts)})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=SIGNER_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{signer_url.rstrip('/')}/v1/certificates", data=body, headers=headers, ssl=context) as answer,
    ):
        raw = await answer.content.read(ANSWER_MAX_BYTES)
        while len(raw) < ANSWER_MAX_BYTES and (more := await answer.content.read(ANSWER_MAX_BYTES - len(raw))):
            raw += more
    if answer.status != 200:
        raise CertificateRefused(f"the signer answered {answer.status}: {raw[:512].decode('utf-8', 'replace')}")
    try:
        return msgspec.json.decode(raw, type=Issued)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CertificateRefused(f"the signer's answer is malformed: {error}") from error


def _request(key: ec.EllipticCurvePrivateKey) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kruntimes")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000
