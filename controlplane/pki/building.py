"""How a certificate of ours is made: P-256 keys, names, extensions, PEM. Nothing is kept and nothing is decided here.

Who may have one is decided in `signer`, what signs it in `ca` and `roots`.
"""

import ipaddress
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.pki.names import Subject

BACKDATED: Final = timedelta(minutes=5)  # clocks of nodes differ by less

Key = ec.EllipticCurvePrivateKey


class PkiError(Exception):
    """A key, certificate or request cannot be used; the message says which and why."""


def new_key() -> Key:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """A key as PEM (PKCS 8, not encrypted)."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """A certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def read_key(pem: bytes, where: str) -> tuple[Key, list[x509.Certificate]]:
    """A key and the certificates beside it, one at least. Raises PkiError, which says `where` it comes from."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
        certificates = x509.load_pem_x509_certificates(pem)
    except (ValueError, TypeError) as error:
        raise PkiError(f"{where} holds no usable key with its certificate: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{where} holds no elliptic curve key")
    return key, certificates


def build(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    ttl: timedelta,
    signing_key: Key,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    """A certificate for `public_key`, signed by the issuer's key, good from a moment ago until `now + ttl`."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + ttl)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signing_key, hashes.SHA256())


def ca_extensions(*, path_length: int) -> list[tuple[x509.ExtensionType, bool]]:
    """What makes a certificate one that signs others, with at most `path_length` of such below it."""
    usage = _key_usage(digital_signature=False, key_cert_sign=True)
    return [(x509.BasicConstraints(ca=True, path_length=path_length), True), (usage, True)]


def leaf_extensions(subject: Subject) -> list[tuple[x509.ExtensionType, bool]]:
    """What makes a certificate that of a member: its names, and what it may do in TLS."""
    names: list[x509.GeneralName] = []
    if subject.uri is not None:
        names.append(x509.UniformResourceIdentifier(subject.uri))
    names += [general_name(host) for host in subject.hosts]
    usages = [ExtendedKeyUsageOID.SERVER_AUTH] + ([ExtendedKeyUsageOID.CLIENT_AUTH] if subject.client else [])
    return [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage(digital_signature=True, key_cert_sign=False), True),
        (x509.ExtendedKeyUsage(usages), False),
        (x509.SubjectAlternativeName(names), False),
    ]


def _key_usage(*, digital_signature: bool, key_cert_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def general_name(host: str) -> x509.GeneralName:
    """A host as it stands in a certificate."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def full_name(common_name: str) -> x509.Name:
    """A name that people read."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kruntimes"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )
