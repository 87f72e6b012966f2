"""The installation CA: chains that verify, identities that cannot be asked for, renewal before the end."""

import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from controlplane.pki import names
from controlplane.pki.building import PkiError, new_key
from controlplane.pki.ca import (
    CSR_MAX_BYTES,
    Authority,
    create_installation,
    ensure_server_certificate,
)
from dataplane.wire.identity import (
    ControlPlaneIdentity,
    GatewayIdentity,
    RuntimedIdentity,
    parse_identity,
    server_hostname,
)
from tests.kit.clock import ManualClock

DAY = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(datetime.now(UTC).timestamp()) * 1_000_000)


@pytest.fixture
def folder(tmp_path: Path, clock: ManualClock) -> Path:
    create_installation(tmp_path / "pki", clock=clock)
    return tmp_path / "pki"


def request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    asked = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("kruntimes://gateway")])
    signed = builder.add_extension(asked, critical=False).sign(key or new_key(), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def parts(chain: bytes) -> tuple[x509.Certificate, x509.Certificate]:
    leaf, intermediate = x509.load_pem_x509_certificates(chain)
    return leaf, intermediate


def sans(certificate: x509.Certificate) -> list[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


def test_keys_are_private_and_a_second_creation_changes_nothing(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("root.key", "intermediate.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    create_installation(folder)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == ["intermediate.crt", "intermediate.key", "root.crt", "root.key"]


def test_the_root_lives_ten_years_and_signs_chains_below_its_successor_and_an_intermediate(folder: Path) -> None:
    root = x509.load_pem_x509_certificate((folder / "root.crt").read_bytes())
    assert timedelta(days=3650) < root.not_valid_after_utc - root.not_valid_before_utc < timedelta(days=3660)
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 2


def test_a_chain_verifies_with_openssl_by_the_root_alone(folder: Path, clock: ManualClock, tmp_path: Path) -> None:
    authority = Authority.load(folder, clock=clock)
    chain = authority.sign(request(), names.runtimed("default", "python", "pod-1"))
    leaf, intermediate = parts(chain)
    (tmp_path / "leaf.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "between.pem").write_bytes(intermediate.public_bytes(serialization.Encoding.PEM))
    checked = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", folder / "root.crt", "-untrusted", "between.pem", "leaf.pem"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_names_come_from_the_decision_and_never_from_the_request(folder: Path, clock: ManualClock) -> None:
    leaf, _ = parts(Authority.load(folder, clock=clock).sign(request(), names.runtimed("ns", "python", "Pod-1")))
    assert sans(leaf) == ["kruntimes://runtimed/ns/python/Pod-1", "pod-1.runtimed.kruntimes.internal"]
    assert leaf.not_valid_after_utc - datetime.fromtimestamp(clock.now_us() / 1e6, UTC) <= timedelta(hours=24)


def test_the_data_plane_reads_the_identities_that_are_signed() -> None:
    assert parse_identity(str(names.gateway(()).uri)) == GatewayIdentity()
    assert parse_identity(str(names.control_plane(()).uri)) == ControlPlaneIdentity()
    signed = names.runtimed("ns", "python", "0b1c")
    assert parse_identity(str(signed.uri)) == RuntimedIdentity("ns", "python", "0b1c")
    assert signed.hosts == (server_hostname("0b1c"),)


@pytest.mark.parametrize("part", ["", "a/b", "..", "a b", "ä", "a\x00", "-a", "a" * 254])
def test_a_part_that_would_change_an_identity_is_refused(part: str) -> None:
    for identity in ((part, "python", "uid"), ("ns", part, "uid"), ("ns", "python", part)):
        with pytest.raises(ValueError, match="identity"):
            names.runtimed(*identity)


@pytest.mark.parametrize(
    "host",
    ["", "a b", "a/b", "x" * 254, "-a", "ä.de", "a..b", "pod-1.runtimed.kruntimes.internal", "kruntimes.internal."],
)
def test_a_gateway_cannot_have_such_a_host(host: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        names.gateway((host,))


def test_hosts_are_names_or_addresses_and_come_once() -> None:
    hosts = names.gateway(("Gateway.Example.COM.", "127.0.0.1", "::1", "0:0::1", "*.example.com")).hosts
    assert hosts == ("gateway.example.com", "127.0.0.1", "::1", "*.example.com")
    with pytest.raises(ValueError, match="at most"):
        names.gateway(tuple(f"h{n}" for n in range(33)))


@pytest.mark.parametrize(
    "csr", [b"", b"garbage", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"]
)
def test_a_malformed_request_is_refused(folder: Path, clock: ManualClock, csr: bytes) -> None:
    with pytest.raises(PkiError, match="malformed"):
        Authority.load(folder, clock=clock).sign(csr, names.gateway(()))


def test_a_request_that_is_too_large_or_for_another_sort_of_key_is_refused(folder: Path, clock: ManualClock) -> None:
    authority = Authority.load(folder, clock=clock)
    with pytest.raises(PkiError, match="larger"):
        authority.sign(b"x" * (CSR_MAX_BYTES + 1), names.gateway(()))
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        with pytest.raises(PkiError, match="P-256"):
            authority.sign(request(key), names.gateway(()))


def test_a_request_signed_by_another_key_is_refused(folder: Path, clock: ManualClock) -> None:
    pem = request()
    raw = bytearray(x509.load_pem_x509_csr(pem).public_bytes(serialization.Encoding.DER))
    raw[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(raw)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(PkiError, match=r"own key|malformed"):
        Authority.load(folder, clock=clock).sign(forged, names.gateway(()))


def test_the_intermediate_is_replaced_at_two_thirds_and_old_leaves_still_verify(
    folder: Path, clock: ManualClock
) -> None:
    authority = Authority.load(folder, clock=clock)
    _, first = parts(authority.sign(request(), names.gateway(())))
    clock.advance(59 * DAY)
    assert parts(authority.sign(request(), names.gateway(())))[1] == first
    clock.advance(2 * DAY)
    leaf, second = parts(authority.sign(request(), names.gateway(())))
    assert second != first
    root = x509.load_pem_x509_certificate(authority.root_pem)
    for intermediate in (first, second):
        intermediate.verify_directly_issued_by(root)
    leaf.verify_directly_issued_by(second)
    assert parts(Authority.load(folder, clock=clock).sign(request(), names.gateway(())))[1] == second


def test_without_the_root_key_it_signs_until_the_intermediate_ends(folder: Path, clock: ManualClock) -> None:
    (folder / "root.key").unlink()
    authority = Authority.load(folder, clock=clock)
    clock.advance(89.9 * DAY)
    leaf, intermediate = parts(authority.sign(request(), names.gateway(())))
    assert leaf.not_valid_after_utc <= intermediate.not_valid_after_utc
    clock.advance(1 * DAY)
    with pytest.raises(PkiError, match="ended"):
        authority.sign(request(), names.gateway(()))


@pytest.mark.parametrize("name", ["root.crt", "root.key", "intermediate.key"])
def test_a_damaged_file_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"garbage")
    with pytest.raises(PkiError, match=name):
        Authority.load(folder)


def test_an_absent_installation_is_named(tmp_path: Path) -> None:
    with pytest.raises(PkiError, match=r"root\.crt"):
        Authority.load(tmp_path)


def test_a_servers_certificate_is_kept_until_something_about_it_changes(folder: Path, clock: ManualClock) -> None:
    def made(*hosts: str) -> bytes:
        ensure_server_certificate(folder, "apiserver", hosts, clock=clock)
        return (folder / "apiserver.crt").read_bytes()

    first = made("127.0.0.1", "localhost")
    assert made("localhost", "127.0.0.1") == first
    assert made("127.0.0.1") != first
    kept = made("127.0.0.1")
    clock.advance(61 * DAY)  # it cannot outlive its intermediate
    assert made("127.0.0.1") != kept
    (folder / "apiserver.crt").write_bytes(b"garbage")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made("127.0.0.1")
    context.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
