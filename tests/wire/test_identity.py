"""Identities: what the installation's authority signs is read back, and nothing else is."""

import pytest

from controlplane.pki import names
from dataplane.wire.identity import (
    ControlPlaneIdentity,
    GatewayIdentity,
    RuntimedIdentity,
    parse_identity,
    peer_identity,
    server_hostname,
)

POD = "7d4f0f2a-6a4e-4c53-9b4b-3f1f7f1b2c3d"


def test_every_identity_that_the_authority_signs_is_read_back() -> None:
    assert parse_identity(names.gateway(()).uri or "") == GatewayIdentity()
    assert parse_identity(names.control_plane(()).uri or "") == ControlPlaneIdentity()
    assert parse_identity(names.runtimed("default", "python", POD).uri or "") == RuntimedIdentity(
        "default", "python", POD
    )


def test_the_name_dialled_is_the_name_signed() -> None:
    for uid in (POD, POD.upper()):
        assert names.runtimed("default", "python", uid).hosts == (server_hostname(uid),)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "https://gateway",
        "kruntimes://",
        "kruntimes://gateway/x",
        "kruntimes://gateway/",
        "kruntimes://gateway?x=1",
        "kruntimes://gateway#x",
        "kruntimes://other",
        "kruntimes://runtimed/default/python",
        "kruntimes://runtimed/default/python/",
        f"kruntimes://runtimed//python/{POD}",
        f"kruntimes://runtimed/default/python/{POD}/more",
        "kruntimes://[",
    ],
)
def test_any_other_name_is_nobody(uri: str) -> None:
    assert parse_identity(uri) is None


class Handshake:
    def __init__(self, *names: tuple[str, str]) -> None:
        self.names = names

    def getpeercert(self) -> dict[str, object] | None:
        return {"subjectAltName": self.names}


def test_a_certificate_with_two_roles_has_none() -> None:
    one = ("URI", "kruntimes://gateway")
    assert peer_identity(Handshake(("DNS", "gateway"), one)) == GatewayIdentity()
    assert peer_identity(Handshake(one, ("URI", f"kruntimes://runtimed/default/python/{POD}"))) is None
    assert peer_identity(Handshake(("DNS", "gateway"))) is None
    assert peer_identity(None) is None
