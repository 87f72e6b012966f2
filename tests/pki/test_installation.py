"""The root as a Secret: made once, taken by every control plane, each with an intermediate of its own."""

import asyncio
import base64
from pathlib import Path

import pytest
from cryptography import x509

from controlplane.kube.errors import NotFound
from controlplane.kube.resources import SECRETS
from controlplane.kube.types import ObjectMeta, Secret
from controlplane.pki import names
from controlplane.pki.building import PkiError, new_key
from controlplane.pki.ca import Authority
from controlplane.pki.installation import open_installation
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube

NAMESPACE, NAME = "kruntimes-system", "kruntimes-pki"


def with_empty_secret() -> FakeKube:
    kube = FakeKube()
    kube.seed(SECRETS, Secret(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE)))
    return kube


async def opened(kube: FakeKube, folder: Path) -> Authority:
    await open_installation(kube, NAMESPACE, NAME, folder, clock=ManualClock())
    return Authority.load(folder, clock=ManualClock())


async def test_the_first_control_plane_makes_the_root_and_the_next_takes_it(tmp_path: Path) -> None:
    kube = with_empty_secret()
    first = await opened(kube, tmp_path / "a")
    writes = len(kube.writes())
    second = await opened(kube, tmp_path / "b")
    assert first.root_pem == second.root_pem
    assert len(kube.writes()) == writes
    secret = await kube.get(SECRETS, NAMESPACE, NAME)
    assert base64.b64decode(secret.data["root.crt"]) == first.root_pem


async def test_two_that_start_together_agree(tmp_path: Path) -> None:
    kube = with_empty_secret()
    first, second = await asyncio.gather(opened(kube, tmp_path / "a"), opened(kube, tmp_path / "b"))
    assert first.root_pem == second.root_pem
    root = x509.load_pem_x509_certificate(first.root_pem)
    for authority in (first, second):
        leaf, intermediate = x509.load_pem_x509_certificates(
            authority.issue(new_key().public_key(), names.control_plane(("localhost",)))
        )
        leaf.verify_directly_issued_by(intermediate)
        intermediate.verify_directly_issued_by(root)


async def test_each_has_an_intermediate_of_its_own(tmp_path: Path) -> None:
    kube = with_empty_secret()
    await opened(kube, tmp_path / "a")
    await opened(kube, tmp_path / "b")
    assert (tmp_path / "a/intermediate.crt").read_bytes() != (tmp_path / "b/intermediate.crt").read_bytes()


async def test_without_its_secret_there_is_no_installation(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await opened(FakeKube(), tmp_path)


async def test_a_secret_with_something_else_is_named(tmp_path: Path) -> None:
    kube = FakeKube()
    kube.seed(SECRETS, Secret(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE), data={"root.crt": "!"}))
    with pytest.raises(PkiError, match="kruntimes-pki"):
        await opened(kube, tmp_path)


async def test_a_certificate_and_the_key_of_another_are_no_pair(tmp_path: Path) -> None:
    kube, other = with_empty_secret(), with_empty_secret()
    await opened(kube, tmp_path / "a")
    await opened(other, tmp_path / "b")
    key = (await other.get(SECRETS, NAMESPACE, NAME)).data["root.key"]
    await kube.merge_patch(SECRETS, NAMESPACE, NAME, {"data": {"root.key": key}})
    with pytest.raises(PkiError, match="pair"):
        await opened(kube, tmp_path / "c")
