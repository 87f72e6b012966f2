"""Another root, another intermediate: asked for by annotation, signed from at once, believed by everybody."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from controlplane.kube.certificates import CertificateSource
from controlplane.kube.errors import unavailable
from controlplane.kube.resources import SECRETS
from controlplane.kube.types import ObjectMeta, Secret
from controlplane.pki import names
from controlplane.pki.building import PkiError
from controlplane.pki.ca import Authority, create_installation, replace_root
from controlplane.pki.installation import material, open_installation
from controlplane.pki.roots import Roots
from controlplane.pki.rotation import ASKED, DONE, REFUSED, Rotation
from controlplane.pki.steps import OVERLAP_MIN, finish_in, rotated
from dataplane.wire.identity import server_hostname
from tests.kit.clock import ManualClock
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually
from tests.pki.test_ca import request
from tests.pki.test_certificates import Installation, started

NAMESPACE, NAME = "kruntimes-system", "kruntimes-pki"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def verifies(chain: bytes, trusted: bytes, folder: Path) -> bool:
    """Whether openssl follows the chain to what is trusted."""
    leaf, *between = x509.load_pem_x509_certificates(chain)
    (folder / "leaf.pem").write_bytes(pem(leaf))
    (folder / "between.pem").write_bytes(b"".join(map(pem, between)))
    (folder / "trusted.pem").write_bytes(trusted)
    command = ["openssl", "verify", "-x509_strict", "-CAfile", "trusted.pem", "-untrusted", "between.pem", "leaf.pem"]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=20, check=False).returncode == 0


def test_under_a_new_root_a_chain_is_good_for_who_knows_the_old_the_new_or_both(tmp_path: Path) -> None:
    create_installation(tmp_path / "pki")
    authority = Authority.load(tmp_path / "pki")
    old, before = authority.root_pem, authority.sign(request(), names.gateway(()))
    replace_root(tmp_path / "pki", lambda roots: roots.succeeded(datetime.now(UTC)), "root")
    both, after = authority.root_pem, authority.sign(request(), names.gateway(()))
    new = pem(authority.root)
    assert both == new + old
    assert [verifies(after, trusted, tmp_path) for trusted in (old, new, both)] == [True, True, True]
    assert [verifies(before, trusted, tmp_path) for trusted in (old, new, both)] == [True, False, True]
    replace_root(tmp_path / "pki", Roots.alone, "finish")
    last = authority.sign(request(), names.gateway(()))
    assert authority.root_pem == new
    assert [verifies(last, trusted, tmp_path) for trusted in (old, new)] == [False, True]
    assert len(x509.load_pem_x509_certificates(last)) == 2


def test_what_is_kept_is_read_back_and_the_old_roots_key_is_not_in_it() -> None:
    first = Roots.new(NOW)
    second = first.succeeded(NOW)
    again = Roots.read(second.pem, "here")
    assert (again.certificate, again.older, again.bridges) == (second.certificate, second.older, second.bridges)
    assert again.pem == second.pem
    assert second.pem.count(b"PRIVATE KEY") == 2  # the two lines of one
    assert again.key.public_key() != first.key.public_key()


def test_one_root_is_replaced_at_a_time() -> None:
    with pytest.raises(PkiError, match="finish that first"):
        Roots.new(NOW).succeeded(NOW).succeeded(NOW)


def test_who_ended_before_the_published_file_was_written_is_finished_for(tmp_path: Path) -> None:
    create_installation(tmp_path)
    second = Roots.read((tmp_path / "root.key").read_bytes(), "here").succeeded(datetime.now(UTC))
    (tmp_path / "root.key").write_bytes(second.pem)
    authority = Authority.load(tmp_path)
    assert authority.root_pem == second.trusted_pem == (tmp_path / "root.crt").read_bytes()
    _, intermediate, _ = x509.load_pem_x509_certificates(authority.sign(request(), names.gateway(())))
    intermediate.verify_directly_issued_by(second.certificate)


def test_a_rotation_that_may_not_be_finished_yet_says_from_when_on() -> None:
    roots = Roots.new(NOW)
    first = rotated((roots.trusted_pem, roots.pem), "root", NOW)
    with pytest.raises(PkiError, match="2026-01-01T00:10:00Z"):
        rotated(first, "finish", NOW + OVERLAP_MIN - timedelta(seconds=1))
    published, kept = rotated(first, "finish", NOW + OVERLAP_MIN)
    assert len(x509.load_pem_x509_certificates(published)) == 1
    with pytest.raises(PkiError, match="no root is being replaced"):
        rotated((published, kept), "finish", NOW + 2 * OVERLAP_MIN)
    with pytest.raises(PkiError, match="it must be"):
        rotated((published, kept), "leaf", NOW)


class Plane:
    """What a control plane does for the certificates, without the rest of it."""

    def __init__(self, kube: FakeKube, clock: ManualClock, folder: Path) -> None:
        self.rotation = Rotation(kube, clock, namespace=NAMESPACE, name=NAME, folder=folder)
        self.folder = folder
        self.clock = clock

    @property
    def authority(self) -> Authority:
        return Authority.load(self.folder, clock=self.clock)


@contextlib.asynccontextmanager
async def planes(tmp_path: Path, count: int = 2) -> AsyncIterator[tuple[FakeKube, list[Plane]]]:
    """Control planes over one Secret; the first leads."""
    clock = ManualClock(int(datetime.now(UTC).timestamp()) * 1_000_000)
    kube = FakeKube(clock)
    kube.seed(SECRETS, Secret(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE)))
    folders = [tmp_path / str(number) for number in range(count)]
    for folder in folders:
        await open_installation(kube, NAMESPACE, NAME, folder, clock=clock)
    made = [Plane(kube, clock, folder) for folder in folders]
    made[0].rotation.lead()
    tasks = [asyncio.create_task(plane.rotation.run()) for plane in made]
    try:
        yield kube, made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ask(kube: FakeKube, what: str) -> dict[str, str]:
    """Ask for a rotation as an administrator does; the annotations once it is answered."""
    await kube.merge_patch(SECRETS, NAMESPACE, NAME, {"metadata": {"annotations": {ASKED: what}}})

    async def annotations() -> dict[str, str]:
        return (await kube.get(SECRETS, NAMESPACE, NAME)).metadata.annotations

    async with asyncio.timeout(5):
        while ASKED in (found := await annotations()):  # noqa: ASYNC110 - the fake's own watch is under test
            await asyncio.sleep(0.005)
    return found


async def test_an_annotation_replaces_the_root_for_every_control_plane(tmp_path: Path) -> None:
    async with planes(tmp_path) as (kube, (first, second)):
        old = first.authority.root_pem
        found = await ask(kube, "root")
        assert found[DONE].startswith("root 20")
        await eventually(lambda: len(x509.load_pem_x509_certificates(second.authority.root_pem)) == 2)
        await eventually(lambda: first.authority.root_pem == second.authority.root_pem)
        assert first.authority.root_pem.endswith(old)
        assert first.authority.published == material(await kube.get(SECRETS, NAMESPACE, NAME))[0]
        for plane in (first, second):
            assert verifies(plane.authority.sign(request(), names.gateway(())), old, tmp_path)
        assert REFUSED in await ask(kube, "finish")
        first.clock.advance(OVERLAP_MIN.total_seconds() + 1)
        assert DONE in await ask(kube, "finish")
        await eventually(lambda: len(x509.load_pem_x509_certificates(second.authority.root_pem)) == 1)


async def test_an_annotation_replaces_every_intermediate_and_makes_holders_renew(tmp_path: Path) -> None:
    async with planes(tmp_path) as (kube, made):
        before = [(plane.folder / "intermediate.crt").read_bytes() for plane in made]
        texts = [plane.authority.published for plane in made]
        await ask(kube, "intermediate")
        for plane, intermediate, text in zip(made, before, texts, strict=True):
            await eventually(lambda plane=plane, text=text: plane.authority.published != text)
            assert (plane.folder / "intermediate.crt").read_bytes() != intermediate


def test_a_root_key_without_its_certificate_is_one_of_an_earlier_version(tmp_path: Path) -> None:
    create_installation(tmp_path)
    key = (tmp_path / "root.key").read_bytes()
    (tmp_path / "root.key").write_bytes(key[: key.index(b"-----BEGIN CERTIFICATE")])
    replace_root(tmp_path, lambda roots: roots.succeeded(datetime.now(UTC)), "root")
    assert Authority.load(tmp_path).root_pem.count(b"BEGIN") == 2


async def test_who_does_not_lead_acts_on_nothing_and_who_comes_to_lead_does(tmp_path: Path) -> None:
    async with planes(tmp_path, count=1) as (kube, _):
        pass
    clock = ManualClock(int(datetime.now(UTC).timestamp()) * 1_000_000)
    rotation = Rotation(kube, clock, namespace=NAMESPACE, name=NAME, folder=tmp_path / "0")
    task = asyncio.create_task(rotation.run())
    asked = asyncio.create_task(ask(kube, "root"))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asked.done()
    kube.fail_next("patch", unavailable("down", sent=False))
    rotation.lead()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controlplane.pki.rotation.RETRY_S", 0.01)
        assert DONE in await asked
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_on_one_machine_the_folder_is_rotated_and_the_next_start_finishes(tmp_path: Path) -> None:
    """The Secret is empty there: it takes the request and holds nothing."""
    clock = ManualClock(int(datetime.now(UTC).timestamp()) * 1_000_000)
    kube, folder = FakeKube(clock), tmp_path / "pki"
    kube.seed(SECRETS, Secret(metadata=ObjectMeta(name=NAME, namespace=NAMESPACE)))
    create_installation(folder, clock=clock)
    rotation = Rotation(kube, clock, namespace=NAMESPACE, name=NAME, folder=folder)
    rotation.lead()
    task = asyncio.create_task(rotation.run())
    assert DONE in await ask(kube, "root")
    assert Authority.load(folder, clock=clock).root_pem.count(b"BEGIN") == 2
    assert "start it again" in (await ask(kube, "finish"))[REFUSED]
    assert not (await kube.get(SECRETS, NAMESPACE, NAME)).data
    finish_in(folder, clock=clock)
    assert Authority.load(folder, clock=clock).root_pem.count(b"BEGIN") == 2
    clock.advance(OVERLAP_MIN.total_seconds() + 1)
    for _ in range(2):
        finish_in(folder, clock=clock)
        assert Authority.load(folder, clock=clock).root_pem.count(b"BEGIN") == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_request_that_makes_no_sense_is_answered(tmp_path: Path) -> None:
    async with planes(tmp_path, count=1) as (kube, _):
        found = await ask(kube, "everything")
        assert found[REFUSED] == "everything: it must be intermediate, root or finish"
        assert DONE in await ask(kube, "intermediate")
        assert REFUSED not in (await kube.get(SECRETS, NAMESPACE, NAME)).metadata.annotations


@pytest.fixture
async def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Installation]:
    monkeypatch.setattr("controlplane.kube.certificates.LOOK_S", 0.01)
    monkeypatch.setattr("controlplane.kube.certificates.SPREAD_S", 0.02)
    made = Installation(tmp_path)
    port = await made.signer.start("127.0.0.1", 0, ("localhost", "127.0.0.1"))
    made.url = f"https://127.0.0.1:{port}"
    yield made
    await made.signer.close()


async def test_under_load_the_root_is_replaced_and_no_handshake_fails(installation: Installation) -> None:
    """Both ends dial all the time, and a caller from before who knows only the old root dials, too."""
    gateway, runtimed = installation.source("gateway", "localhost"), installation.source("pod")
    old = installation.ca_file.read_text()
    told: list[str] = []
    async with started(gateway, runtimed):
        gateway.on_roots = lambda: told.append(gateway.root_pem)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                writer.write(await reader.readexactly(4))
                await writer.drain()
            writer.close()

        members = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=runtimed.server_context())
        front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=gateway.server_context(require_client=False))
        over, calls, mine = asyncio.Event(), [0, 0], gateway.client_context()

        async def keep_dialling(number: int, server: asyncio.Server, context: ssl.SSLContext, name: str) -> None:
            port = server.sockets[0].getsockname()[1]
            while not over.is_set():
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
                writer.write(b"ping")
                assert await asyncio.wait_for(reader.readexactly(4), 5) == b"ping"
                writer.close()
                calls[number] += 1

        caller = ssl.create_default_context(cadata=old)
        load = [
            asyncio.create_task(keep_dialling(0, members, mine, server_hostname("pod-1"))),
            asyncio.create_task(keep_dialling(1, front, caller, "localhost")),
        ]
        folder, clock = installation.folder / "pki", installation.clock
        replace_root(folder, lambda roots: roots.succeeded(datetime.now(UTC)), "root", clock=clock)
        await eventually(lambda: gateway.renewals == 2 and runtimed.renewals == 2)
        seen = list(calls)
        await eventually(lambda: all(now > then + 10 for now, then in zip(calls, seen, strict=True)))
        over.set()
        await asyncio.gather(*load)
        assert told == [installation.authority.root_pem.decode()]
        assert told[0].count("BEGIN") == 2
        for server in (members, front):
            server.close()
            await server.wait_closed()


async def test_a_root_that_is_no_more_is_published_no_more(installation: Installation) -> None:
    source: CertificateSource = installation.source("pod")
    folder, clock = installation.folder / "pki", installation.clock
    async with started(source):
        replace_root(folder, lambda roots: roots.succeeded(datetime.now(UTC)), "root", clock=clock)
        await eventually(lambda: source.root_pem.count("BEGIN") == 2)
        replace_root(folder, Roots.alone, "finish", clock=clock)
        await eventually(lambda: source.root_pem == installation.authority.root_pem.decode())
        assert source.root_pem.count("BEGIN") == 1
