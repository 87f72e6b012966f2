"""The certificate authority of one installation: files in a folder, keys ECDSA P-256.

The root lives ten years and is the only thing that is published, so that nothing has to be rewritten when what is below
it changes. The intermediate signs leaves and is replaced while old leaves are still good; both chains verify by the
root. Here are keys and certificates only; who may have one is decided in `signer.py`.
"""

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.kube.clock import Clock, SystemClock
from controlplane.pki.names import Subject, server

ROOT_TTL: Final = timedelta(days=3652)
INTERMEDIATE_TTL: Final = timedelta(days=90)
LEAF_TTL: Final = timedelta(hours=24)  # holders renew at two thirds: a control plane may be away for eight hours
SERVER_TTL: Final = timedelta(days=365)  # of a server that makes its own certificate new at each start
BACKDATED: Final = timedelta(minutes=5)  # clocks of nodes differ by less
CSR_MAX_BYTES: Final = 8 * 1024  # a P-256 request has 400 bytes

Key = ec.EllipticCurvePrivateKey


class PkiError(Exception):
    """A key, certificate or request cannot be used; the message says which and why."""


def create_installation(folder: Path, *, clock: Clock | None = None) -> None:
    """Make a root and an intermediate in `folder` (mode 0700), unless they are there. Raises OSError, PkiError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "root.crt").exists():
        return
    now = _now(clock or SystemClock())
    key = new_key()
    name = _name("kruntimes root")
    root = _build(name, name, key.public_key(), now, ROOT_TTL, key, None, _ca_extensions(path_length=1))
    _write(folder / "root.key", key_pem(key), 0o600)
    _new_intermediate(folder, root, key, now)
    _write(folder / "root.crt", certificate_pem(root), 0o644)  # last: its presence says that all is there


def adopt_root(folder: Path, certificate: bytes, key: bytes, *, clock: Clock | None = None) -> None:
    """Make `folder` an installation under a root that is kept elsewhere, with an intermediate of its own.

    Raises OSError, or PkiError if the two are not a pair.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / "root.key", key, 0o600)
    _write(folder / "root.crt", certificate, 0o644)
    root, root_key = _read_certificate(folder / "root.crt"), _read_key(folder / "root.key")
    if root.public_key() != root_key.public_key():
        raise PkiError("the root's certificate and key are not a pair")
    _new_intermediate(folder, root, root_key, _now(clock or SystemClock()))


def ensure_server_certificate(folder: Path, name: str, hosts: tuple[str, ...], *, clock: Clock | None = None) -> None:
    """Make `<name>.crt` (chain) and `<name>.key` in the installation's folder for a server under these hosts.

    What is there is kept while it names exactly these hosts, comes from this root and has a third of its life left.
    """
    the_clock = clock or SystemClock()
    authority = Authority.load(folder, clock=the_clock)
    subject = server(name, hosts)
    crt, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    if key_file.exists() and _still_good(crt, subject, authority.root_pem, _now(the_clock)):
        return
    key = new_key()
    chain = authority.issue(key.public_key(), subject, SERVER_TTL)
    _write(key_file, key_pem(key), 0o600)
    _write(crt, chain, 0o644)


class Authority:
    """Signs leaves. It reads the folder once, and replaces the intermediate at two thirds of its life."""

    def __init__(self, folder: Path, root: x509.Certificate, root_key: Key | None, clock: Clock) -> None:
        self._folder = folder
        self._root = root
        self._root_key = root_key
        self._clock = clock
        self._intermediate, self._key = _read_pair(folder, "intermediate")

    @classmethod
    def load(cls, folder: Path, *, clock: Clock | None = None) -> Self:
        """The authority in `folder`. Without `root.key` there it signs until its intermediate ends. Raises PkiError."""
        root = _read_certificate(folder / "root.crt")
        key_file = folder / "root.key"
        root_key = _read_key(key_file) if key_file.exists() else None
        return cls(folder, root, root_key, clock or SystemClock())

    @property
    def root_pem(self) -> bytes:
        """The root: what `caBundle` and every trust file hold."""
        return certificate_pem(self._root)

    def sign(self, csr_pem: bytes, subject: Subject, ttl: timedelta = LEAF_TTL) -> bytes:
        """The chain (leaf, intermediate) for the key of a request. Only its key counts: names come from `subject`.

        Raises PkiError if the request is malformed, not signed by its own key, or not for a P-256 key.
        """
        return self.issue(_requested_key(csr_pem), subject, ttl)

    def issue(self, public_key: ec.EllipticCurvePublicKey, subject: Subject, ttl: timedelta = LEAF_TTL) -> bytes:
        """The chain for a key. It never outlives the intermediate."""
        now = _now(self._clock)
        self._renew_intermediate(now)
        ttl = min(ttl, self._intermediate.not_valid_after_utc - now)
        if ttl <= timedelta(0):
            raise PkiError(
                f"{self._folder}: the intermediate certificate has ended and root.key is not here to renew it"
            )
        name, extensions = _name(subject.common_name), _leaf_extensions(subject)
        leaf = _build(name, self._intermediate.subject, public_key, now, ttl, self._key, self._intermediate, extensions)
        return certificate_pem(leaf) + certificate_pem(self._intermediate)

    def _renew_intermediate(self, now: datetime) -> None:
        life = self._intermediate.not_valid_after_utc - self._intermediate.not_valid_before_utc
        if self._root_key is None or now < self._intermediate.not_valid_before_utc + life * 2 / 3:
            return
        _new_intermediate(self._folder, self._root, self._root_key, now)
        self._intermediate, self._key = _read_pair(self._folder, "intermediate")


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


def _new_intermediate(folder: Path, root: x509.Certificate, root_key: Key, now: datetime) -> None:
    key = new_key()
    ttl = min(INTERMEDIATE_TTL, root.not_valid_after_utc - now)
    name, extensions = _name(f"kruntimes intermediate {now:%Y-%m-%d}"), _ca_extensions(path_length=0)
    certificate = _build(name, root.subject, key.public_key(), now, ttl, root_key, root, extensions)
    # One file holds the pair while it is replaced, so that a crash in between leaves the old pair or the new one.
    _write(folder / "intermediate.key", key_pem(key) + certificate_pem(certificate), 0o600)
    _write(folder / "intermediate.crt", certificate_pem(certificate), 0o644)


def _build(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    ttl: timedelta,
    signing_key: Key,
    issuer_certificate: x509.Certificate | None,
    extensions: list[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    issuer_key = public_key if issuer_certificate is None else signing_key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + ttl)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signing_key, hashes.SHA256())


def _ca_extensions(*, path_length: int) -> list[tuple[x509.ExtensionType, bool]]:
    usage = _key_usage(digital_signature=False, key_cert_sign=True)
    return [(x509.BasicConstraints(ca=True, path_length=path_length), True), (usage, True)]


def _leaf_extensions(subject: Subject) -> list[tuple[x509.ExtensionType, bool]]:
    names: list[x509.GeneralName] = []
    if subject.uri is not None:
        names.append(x509.UniformResourceIdentifier(subject.uri))
    names += [_general_name(host) for host in subject.hosts]
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


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "kruntimes"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _requested_key(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    if len(csr_pem) > CSR_MAX_BYTES:
        raise PkiError(f"the certificate request is larger than {CSR_MAX_BYTES} bytes")
    try:
        request = x509.load_pem_x509_csr(csr_pem)
        if not request.is_signature_valid:
            raise PkiError("the certificate request is not signed by its own key")
        key = request.public_key()
    except (ValueError, InvalidSignature) as error:
        raise PkiError(f"the certificate request is malformed: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise PkiError("the certificate request is not for a P-256 key")
    return key


def _still_good(crt: Path, subject: Subject, root_pem: bytes, now: datetime) -> bool:
    try:
        chain = x509.load_pem_x509_certificates(crt.read_bytes())
        root = x509.load_pem_x509_certificate(root_pem)
        chain[-1].verify_directly_issued_by(root)
        names = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, IndexError, InvalidSignature, x509.ExtensionNotFound):
        return False
    life = chain[0].not_valid_after_utc - chain[0].not_valid_before_utc
    wanted = {_general_name(host) for host in subject.hosts}
    return set(names) == wanted and now < chain[0].not_valid_before_utc + life * 2 / 3


def _read_pair(folder: Path, name: str) -> tuple[x509.Certificate, Key]:
    """A key file that carries its certificate; the certificate beside it is for those who only want to look."""
    path = folder / f"{name}.key"
    return _read_certificate(path), _read_key(path)


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise PkiError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise PkiError(f"{path} holds no certificate: {error}") from error


def _read_key(path: Path) -> Key:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise PkiError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise PkiError(f"{path} holds no usable key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{path} holds no elliptic curve key")
    return key


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file in one step."""
    beside = path.with_name(f".{path.name}.new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.now_us() // 1_000_000, UTC)
