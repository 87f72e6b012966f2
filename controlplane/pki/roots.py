"""The root of an installation, and how another takes its place without anybody noticing. Pure: bytes and times.

One root signs. While it replaces another both are trusted and published, and its key also has a certificate of the
older root's, the bridge, which every chain carries: whoever knows only the older root follows the bridge, whoever
knows the new one needs none. So signing changes at once and trust has all the time it needs; the older root goes last.
Its private key goes first: nothing needs it once the bridge is made.

`ca` signs with it, `installation` keeps it in a Secret, `rotation` decides when.
"""

from datetime import datetime, timedelta
from typing import Final, Self

import msgspec
from cryptography import x509

from controlplane.pki.building import (
    Key,
    PkiError,
    build,
    ca_extensions,
    certificate_pem,
    full_name,
    key_pem,
    new_key,
    read_key,
)

ROOT_TTL: Final = timedelta(days=3652)
ROOT_PATH_LENGTH: Final = 2  # a later root that it certifies, and that one's intermediate
INTERMEDIATE_TTL: Final = timedelta(days=90)
_CERTIFICATE: Final = b"BEGIN CERTIFICATE"
OLDER_MAX: Final = 1  # roots beside the one that signs: published bundles are bounded


class Roots(msgspec.Struct, frozen=True):
    """The root that signs, those before it that are still trusted, and a bridge from each of them."""

    key: Key
    certificate: x509.Certificate
    older: tuple[x509.Certificate, ...] = ()
    bridges: tuple[x509.Certificate, ...] = ()

    @classmethod
    def new(cls, now: datetime) -> Self:
        """A root of ten years with a name of its own."""
        key = new_key()
        name = full_name(f"kruntimes root {now:%Y-%m-%d} {x509.random_serial_number() % 2**32:08x}")
        extensions = ca_extensions(path_length=ROOT_PATH_LENGTH)
        return cls(key, build(name, name, key.public_key(), now, ROOT_TTL, key, extensions))

    @classmethod
    def read(cls, pem: bytes, where: str, *, beside: bytes = b"") -> Self:
        """What `pem` gave. `beside` is the published root, for a key that was written without it.

        Raises PkiError, which says `where` it comes from.
        """
        pem = pem if _CERTIFICATE in pem else pem + beside
        key, certificates = read_key(pem, where)
        roots = [each for each in certificates if each.issuer == each.subject]
        signing = [each for each in roots if each.public_key() == key.public_key()]
        if len(signing) != 1:
            raise PkiError(f"{where}: the root's certificate and key are not a pair")
        older = tuple(each for each in roots if each is not signing[0])
        return cls(key, signing[0], older, tuple(each for each in certificates if each.issuer != each.subject))

    @property
    def pem(self) -> bytes:
        """All of it, the key too: the content of `root.key`. One file, so that it is replaced in one step."""
        rest = (self.certificate, *self.older, *self.bridges)
        return key_pem(self.key) + b"".join(map(certificate_pem, rest))

    @property
    def trusted_pem(self) -> bytes:
        """What to trust, the root that signs first."""
        return b"".join(map(certificate_pem, (self.certificate, *self.older)))

    @property
    def bridges_pem(self) -> bytes:
        """What a chain ends with, so that it is good for who only knows an older root."""
        return b"".join(map(certificate_pem, self.bridges))

    def succeeded(self, now: datetime) -> "Roots":
        """A new root that signs from now on, and this one as the older. Raises PkiError while there is an older one."""
        if len(self.older) >= OLDER_MAX:
            raise PkiError("the root is being replaced already: finish that first")
        allowed = self.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length
        if allowed is not None and allowed < ROOT_PATH_LENGTH:
            raise PkiError("this root is of an early version and cannot certify a successor: install anew")
        new = Roots.new(now)
        ttl = min(ROOT_TTL, self.certificate.not_valid_after_utc - now)
        extensions = ca_extensions(path_length=ROOT_PATH_LENGTH - 1)
        name, issuer = new.certificate.subject, self.certificate.subject
        bridge = build(name, issuer, new.key.public_key(), now, ttl, self.key, extensions)
        return Roots(new.key, new.certificate, (self.certificate,), (bridge,))

    def alone(self) -> "Roots":
        """The root that signs without those before it: who trusts only them is not served any more."""
        return Roots(self.key, self.certificate)

    def intermediate(self, now: datetime) -> tuple[Key, x509.Certificate]:
        """A new key that may sign leaves."""
        key = new_key()
        ttl = min(INTERMEDIATE_TTL, self.certificate.not_valid_after_utc - now)
        name = full_name(f"kruntimes intermediate {now:%Y-%m-%d}")
        extensions = ca_extensions(path_length=0)
        return key, build(name, self.certificate.subject, key.public_key(), now, ttl, self.key, extensions)
