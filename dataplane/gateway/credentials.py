"""What a caller shows to prove who it is, in a form that cannot leak.

Here: bearer tokens and client certificates, read from a head and a TLS connection; their digests and their own ends.
Pure. Not here: whether they are good (`auth`). Nothing here prints a secret.
Next: `auth.Gatekeeper` judges them.
"""

import base64
import hashlib
import re
import ssl
from math import inf
from typing import Any, Final

import msgspec
from msgspec import Struct

from dataplane.gateway.http1 import Head
from runtimes.contract.calls import UNDECODABLE

AUDIENCE: Final = "kruntimes"
_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE)
_NO_EXTRA: Final[tuple[tuple[str, tuple[str, ...]], ...]] = ()


class User(Struct, frozen=True, cache_hash=True):
    """Whom a credential stands for, as the Kubernetes API names it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = _NO_EXTRA


class BearerToken(Struct, frozen=True):
    """A token. `audiences` and `expires_s` (Unix seconds) are what it says of itself: they choose the question and
    shorten the answer's life, and are never a reason to trust it."""

    token: str
    digest: bytes

    def __repr__(self) -> str:
        return "BearerToken(…)"


class ClientCertificate(Struct, frozen=True):
    """A certificate that TLS has verified against the cluster's client CA: the common name and the organisations."""

    user: User
    digest: bytes
    expires_s: float


Credential = BearerToken | ClientCertificate


class _Claims(Struct):
    aud: str | tuple[str, ...] = ()
    exp: float | None = None


def bearer_token(head: Head) -> BearerToken | None:
    """The token of the Authorization field, or None when there is none that could be one."""
    value = head.field(b"authorization")
    match = _BEARER.fullmatch(value) if value is not None else None
    if match is None:
        return None
    return BearerToken(match[1].decode("ascii"), hashlib.sha256(match[1]).digest())


def client_certificate(tls: Any) -> ClientCertificate | None:
    """The verified client certificate of a TLS connection as a user; None without one, or without a common name.

    A certificate of this installation names a machine of ours, and no user of the cluster. One that cannot be read is
    nobody's.
    """
    try:
        return _certificate_user(tls) if tls is not None else None
    except (KeyError, *UNDECODABLE):
        return None


def _certificate_user(tls: Any) -> ClientCertificate | None:
    facts = tls.getpeercert()
    if not facts or any(
        kind == "URI" and name.startswith("kruntimes:") for kind, name in facts.get("subjectAltName", ())
    ):
        return None
    names = [pair for relative in facts.get("subject", ()) for pair in relative]
    common = [value for key, value in names if key == "commonName"]
    if len(common) != 1 or not common[0]:
        return None
    groups = tuple(value for key, value in names if key == "organizationName")
    digest = hashlib.sha256(tls.getpeercert(True)).digest()
    return ClientCertificate(User(common[0], groups=groups), digest, float(ssl.cert_time_to_seconds(facts["notAfter"])))


def token_claims(token: str) -> tuple[tuple[str, ...], float]:
    """Audiences and end (Unix seconds) that a JWT claims; empty and infinite for an opaque or odd one."""
    parts = token.split(".")
    if len(parts) != 3:
        return (), inf
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(payload, type=_Claims)
    except UNDECODABLE:
        return (), inf
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    return audiences, inf if claims.exp is None else claims.exp
