"""The certificate authority of one installation: files in a folder, keys ECDSA P-256.

The root lives ten years and is the only thing that is published, so that nothing has to be rewritten when what is below
it changes. The intermediate signs leaves and is replaced while old leaves are still good; both chains verify by the
root. Here are files and signatures; how a root is replaced stands in `roots`, who may have a leaf in `signer`.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from controlplane.kube.clock import Clock, SystemClock
from controlplane.pki.building import (
    Key,
    PkiError,
    build,
    certificate_pem,
    full_name,
    general_name,
    key_pem,
    leaf_extensions,
    new_key,
    read_key,
)
from controlplane.pki.names import Subject, server
from controlplane.pki.roots import Roots

LEAF_TTL: Final = timedelta(hours=24)  # holders renew at two thirds: a control plane may be away for eight hours
SERVER_TTL: Final = timedelta(days=365)  # of a server that makes its own certificate new at each start
CSR_MAX_BYTES: Final = 8 * 1024  # a P-256 request has 400 bytes

ROOT_FILE: Final = "root.crt"
ROOT_KEY_FILE: Final = "root.key"


def create_installation(folder: Path, *, clock: Clock | None = None) -> None:
    """Make a root and an intermediate in `folder` (mode 0700), unless they are there. Raises OSError, PkiError."""
    if not (folder / ROOT_FILE).exists():
        now = _now(clock or SystemClock())
        roots = Roots.new(now)
        _put(folder, roots, roots.trusted_pem, now)


def adopt_root(folder: Path, published: bytes, roots_pem: bytes, *, clock: Clock | None = None) -> None:
    """Make `folder` an installation under a root that is kept elsewhere, with an intermediate of its own.

    `published` is the text of `root.crt`. Raises OSError, or PkiError if the two do not belong together.
    """
    roots = Roots.read(roots_pem, f"{folder / ROOT_KEY_FILE}", beside=published)
    if _trusted(published, folder / ROOT_FILE) != roots.trusted_pem:
        raise PkiError(f"{folder}: the root's certificate and key are not a pair")
    _put(folder, roots, published, _now(clock or SystemClock()))


def replace_root(folder: Path, change: Callable[[Roots], Roots], note: str, *, clock: Clock | None = None) -> None:
    """Change the roots of an installation that keeps them in its folder, and publish them with `note`. All leaves come
    from a new intermediate from here on. Raises OSError, PkiError."""
    now = _now(clock or SystemClock())
    roots = change(_roots(folder))
    _put(folder, roots, published(roots, note), now)


def published(roots: Roots, note: str) -> bytes:
    """The text of `root.crt`. Whoever holds a certificate renews it when this text changes, `note` included."""
    return f"# {note}\n".encode() + roots.trusted_pem


def ensure_server_certificate(folder: Path, name: str, hosts: tuple[str, ...], *, clock: Clock | None = None) -> None:
    """Make `<name>.crt` (chain) and `<name>.key` in the installation's folder for a server under these hosts.

    What is there is kept while it names exactly these hosts, comes from this root and has a third of its life left.
    """
    the_clock = clock or SystemClock()
    authority = Authority.load(folder, clock=the_clock)
    subject = server(name, hosts)
    crt, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    if key_file.exists() and _still_good(crt, subject, authority.root, _now(the_clock)):
        return
    key = new_key()
    chain = authority.issue(key.public_key(), subject, SERVER_TTL)
    _write(key_file, key_pem(key), 0o600)
    _write(crt, chain, 0o644)


class Authority:
    """Signs leaves. It replaces the intermediate at two thirds of its life, and follows what changes in the folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._seen = (0, 0)
        self._load()

    @classmethod
    def load(cls, folder: Path, *, clock: Clock | None = None) -> Self:
        """The authority in `folder`. Without `root.key` there it signs until its intermediate ends. Raises PkiError."""
        return cls(folder, clock or SystemClock())

    @property
    def root(self) -> x509.Certificate:
        """The root that signs."""
        self._follow()
        return x509.load_pem_x509_certificate(self._trusted)

    @property
    def root_pem(self) -> bytes:
        """The roots to trust, the one that signs first: what `caBundle` and every trust file hold."""
        self._follow()
        return self._trusted

    @property
    def published(self) -> bytes:
        """The text of `root.crt`: the roots, and the note that makes holders renew."""
        self._follow()
        return self._published

    def sign(self, csr_pem: bytes, subject: Subject, ttl: timedelta = LEAF_TTL) -> bytes:
        """The chain (leaf, intermediate) for the key of a request. Only its key counts: names come from `subject`.

        Raises PkiError if the request is malformed, not signed by its own key, or not for a P-256 key.
        """
        return self.issue(_requested_key(csr_pem), subject, ttl)

    def issue(self, public_key: ec.EllipticCurvePublicKey, subject: Subject, ttl: timedelta = LEAF_TTL) -> bytes:
        """The chain for a key. It never outlives the intermediate."""
        self._follow()
        now = _now(self._clock)
        self._renew_intermediate(now)
        ttl = min(ttl, self._intermediate.not_valid_after_utc - now)
        if ttl <= timedelta(0):
            raise PkiError(
                f"{self._folder}: the intermediate certificate has ended and root.key is not here to renew it"
            )
        name, extensions = full_name(subject.common_name), leaf_extensions(subject)
        leaf = build(name, self._intermediate.subject, public_key, now, ttl, self._key, extensions)
        bridges = b"" if self._roots is None else self._roots.bridges_pem
        return certificate_pem(leaf) + certificate_pem(self._intermediate) + bridges

    def _follow(self) -> None:
        """Take what was replaced since: `root.crt` is written last."""
        if self._seen != _mark(self._folder / ROOT_FILE):
            self._load()

    def _load(self) -> None:
        file, key_file = self._folder / ROOT_FILE, self._folder / ROOT_KEY_FILE
        self._seen = _mark(file)
        self._published = _read(file)
        self._trusted = _trusted(self._published, file)
        self._roots = _roots(self._folder) if key_file.exists() else None
        if self._roots is not None and self._trusted != self._roots.trusted_pem:
            # Whoever replaced the roots ended before the last step.
            self._published = self._trusted = self._roots.trusted_pem
            _put(self._folder, self._roots, self._published, _now(self._clock))
            self._seen = _mark(file)
        self._intermediate, self._key = _read_pair(self._folder, "intermediate")

    def _renew_intermediate(self, now: datetime) -> None:
        life = self._intermediate.not_valid_after_utc - self._intermediate.not_valid_before_utc
        if self._roots is None or now < self._intermediate.not_valid_before_utc + life * 2 / 3:
            return
        _put_intermediate(self._folder, self._roots, now)
        self._intermediate, self._key = _read_pair(self._folder, "intermediate")


def _roots(folder: Path) -> Roots:
    key_file = folder / ROOT_KEY_FILE
    return Roots.read(_read(key_file), str(key_file), beside=_read(folder / ROOT_FILE))


def _put(folder: Path, roots: Roots, text: bytes, now: datetime) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / ROOT_KEY_FILE, roots.pem, 0o600)
    _put_intermediate(folder, roots, now)
    _write(folder / ROOT_FILE, text, 0o644)  # last: its presence says that all is there


def _put_intermediate(folder: Path, roots: Roots, now: datetime) -> None:
    key, certificate = roots.intermediate(now)
    # One file holds the pair while it is replaced, so that a crash in between leaves the old pair or the new one.
    _write(folder / "intermediate.key", key_pem(key) + certificate_pem(certificate), 0o600)
    _write(folder / "intermediate.crt", certificate_pem(certificate), 0o644)


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


def _still_good(crt: Path, subject: Subject, root: x509.Certificate, now: datetime) -> bool:
    try:
        chain = x509.load_pem_x509_certificates(crt.read_bytes())
        chain[1].verify_directly_issued_by(root)
        names = chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, IndexError, InvalidSignature, x509.ExtensionNotFound):
        return False
    life = chain[0].not_valid_after_utc - chain[0].not_valid_before_utc
    wanted = {general_name(host) for host in subject.hosts}
    return set(names) == wanted and now < chain[0].not_valid_before_utc + life * 2 / 3


def _read_pair(folder: Path, name: str) -> tuple[x509.Certificate, Key]:
    """A key file that carries its certificate; the certificate beside it is for those who only want to look."""
    path = folder / f"{name}.key"
    key, certificates = read_key(_read(path), str(path))
    return certificates[0], key


def _trusted(text: bytes, path: Path) -> bytes:
    """The certificates in the text of a `root.crt`, without the notes."""
    try:
        return b"".join(map(certificate_pem, x509.load_pem_x509_certificates(text)))
    except ValueError as error:
        raise PkiError(f"{path} holds no certificate: {error}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PkiError(f"cannot read {path}: {error.strerror}") from error


def _mark(path: Path) -> tuple[int, int]:
    """What is another one once the file was replaced."""
    try:
        found = path.stat()
    except OSError as error:
        raise PkiError(f"cannot read {path}: {error.strerror}") from error
    return found.st_mtime_ns, found.st_ino


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
