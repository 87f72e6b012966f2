"""Certificates are replaced while 200 calls a second go on: the intermediate with every leaf, then the root itself.

Calls of a process that knows only the old root, `krt invoke` and curl go on through it; new callers find both roots.
"""

import asyncio
import base64
import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from controlplane.kube.resources import CONFIGMAPS, SECRETS
from controlplane.pki.ca import ROOT_FILE, ROOT_KEY_FILE
from controlplane.pki.installation import material
from controlplane.pki.rotation import ASKED, DONE, REFUSED
from controlplane.pki.steps import OVERLAP_MIN, rotated
from tests.cluster.arena import Arena, arena
from tests.cluster.kit import GATEWAY_HOST, KUBECONFIG, ROOT, SYSTEM, Cluster, settled

PER_SECOND = 200.0
RUNTIME = "kruntimes.io/runtime=python"
REACHED_S = 150.0  # kubelets renew what Pods have mounted within two minutes


async def asked(place: Arena, what: str) -> dict[str, str]:
    """Ask as an administrator does; the Secret's annotations once it was answered."""
    secret = ("annotate", "secret", "kruntimes-pki", "-n", SYSTEM, "--overwrite", f"{ASKED}={what}")
    await asyncio.to_thread(place.cluster.kubectl, *secret)
    found = await settled(
        lambda: place.client.get(SECRETS, SYSTEM, "kruntimes-pki"),
        lambda secret: ASKED not in secret.metadata.annotations,
        20,
    )
    annotations: dict[str, str] = found.metadata.annotations
    return annotations


def served_by(address: str, port: int, trusted: str) -> tuple[int, tuple[str, ...]]:
    """The serial number of the leaf at an address, and the subjects of its chain; it verifies by what is trusted."""
    command = ["openssl", "s_client", "-connect", f"{address}:{port}", "-servername", GATEWAY_HOST, "-showcerts"]
    command += ["-CAfile", trusted, "-verify_return_error", "-verify_hostname", GATEWAY_HOST]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=20, check=False)
    assert "Verify return code: 0 (ok)" in done.stdout, done.stdout[-500:] + done.stderr[-500:]
    chain = x509.load_pem_x509_certificates(done.stdout.encode())
    return chain[0].serial_number, tuple(one.subject.rfc4514_string() for one in chain)


def trust(folder: Path, name: str, run: Any) -> str:
    """A file with the caBundle of a Run."""
    path = folder / name
    path.write_bytes(base64.b64decode(run.status.endpoint.ca_bundle))
    return str(path)


def first_of(folder: Path, name: str, bundle: str) -> str:
    """A file with the first certificate of a bundle."""
    signing, end, _ = Path(bundle).read_bytes().partition(b"-----END CERTIFICATE-----\n")
    path = folder / name
    path.write_bytes(signing + end)
    return str(path)


def same(bundle: str, another: str) -> bool:
    return Path(bundle).read_text().strip() == Path(another).read_text().strip()


def curled(place: Arena, trusted: str, url: str) -> str:
    """The status of a call by curl."""
    curl = shutil.which("curl")
    assert curl is not None
    command = [curl, "-sS", "--cacert", trusted, "--resolve", f"{GATEWAY_HOST}:443:{place.address}"]
    command += ["-H", f"Authorization: Bearer {place.token}", "-H", "Content-Type: application/json"]
    command += ["-d", '{"n": 1}', "-o", "/dev/null", "-w", "%{http_code}", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout or done.stderr


def invoked(place: Arena) -> str:
    """What `krt invoke` says."""
    command = [sys.executable, "-m", "controlplane.cli", "invoke", place.name, "-n", place.namespace, "-d", '{"n": 7}']
    env = {**os.environ, "KUBECONFIG": str(KUBECONFIG)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


async def gateways(place: Arena) -> list[str]:
    path = "jsonpath={.items[*].status.podIP}"
    labels = "app.kubernetes.io/component=gateway"
    found = await asyncio.to_thread(place.cluster.kubectl, "get", "pods", "-n", SYSTEM, "-l", labels, "-o", path)
    return found.split()


async def leaves(place: Arena, trusted: str) -> set[int]:
    """The serial numbers of all gateways' leaves."""
    addresses = await gateways(place)
    return {(await asyncio.to_thread(served_by, address, 8443, trusted))[0] for address in addresses}


async def hurry(place: Arena) -> None:
    """Once the namespace is told, let the kubelet renew what Pods have mounted: a change of a Pod makes it look."""
    secret = await place.client.get(SECRETS, SYSTEM, "kruntimes-pki")
    text = base64.b64decode(secret.data["root.crt"]).decode()
    told = functools.partial(place.client.get, CONFIGMAPS, place.namespace, "kruntimes-ca")
    await settled(told, lambda found: found.data["ca.crt"] == text, 30)
    stamp = f"looked={time.time_ns()}"
    for namespace, labels in ((SYSTEM, "app.kubernetes.io/component=gateway"), (place.namespace, RUNTIME)):
        change = ("annotate", "pods", "-n", namespace, "-l", labels, "--overwrite", stamp)
        await asyncio.to_thread(place.cluster.kubectl, *change)


async def reached(look: Callable[[], Any], wanted: Callable[[Any], bool]) -> float:
    """How long it took until what was published had reached somebody."""
    began = time.monotonic()
    await settled(look, wanted, REACHED_S)
    return time.monotonic() - began


async def test_every_intermediate_and_leaf_is_replaced_and_no_call_fails(cluster: Cluster, tmp_path: Path) -> None:
    async with arena(cluster) as place:
        run = await place.run()
        root = trust(tmp_path, "root.pem", run)
        before = await leaves(place, root)
        async with place.calls(PER_SECOND) as caller:
            answered = await asked(place, "intermediate")
            assert answered[DONE].startswith("intermediate ")
            await hurry(place)
            took = await reached(lambda: leaves(place, root), lambda now: len(now) == len(before) and not now & before)
            runtimeds = await reached(lambda: renewals(place), lambda counts: min(counts) >= 2)
            await caller.until_steady()
            calls = await caller.end()
        print(  # noqa: T201 - a measurement
            f"leaves: gateways after {took:.0f} s, runtimeds after {runtimeds:.0f} s more; "
            f"{calls.rate:.0f}/s, {dict(calls.outcomes)}"
        )
        calls.judge()
        assert (await place.run()).status.endpoint == run.status.endpoint, "no Run is rewritten for it"


async def renewals(place: Arena) -> list[int]:
    """How many certificates each runtimed has had."""
    pods = (await asyncio.to_thread(place.kubectl, "get", "pods", "-o", "name")).split()
    logs = [await asyncio.to_thread(place.kubectl, "logs", pod, "-c", "runtimed") for pod in pods]
    return [log.count("certificate in force") for log in logs]


async def test_the_root_is_replaced_under_load_and_no_call_fails(cluster: Cluster, tmp_path: Path) -> None:
    async with arena(cluster) as place:
        run = await place.run()
        url = run.status.endpoint.url
        old = trust(tmp_path, "old.pem", run)
        if _roots(run) == 2:  # an earlier rotation that nobody has finished
            await finished_as_if_time_had_passed(place)
            await hurry(place)
            await reached(place.run, lambda run: _roots(run) == 1)
            run = await place.run()
            old = trust(tmp_path, "old.pem", run)
        before = await leaves(place, old)
        async with place.calls(PER_SECOND) as caller:
            answered = await asked(place, "root")
            assert DONE in answered, answered
            await hurry(place)
            during = asyncio.create_task(asyncio.to_thread(lambda: (curled(place, old, url), invoked(place))))
            took = await reached(lambda: leaves(place, old), lambda now: len(now) == len(before) and not now & before)
            runs = await reached(place.run, lambda run: _roots(run) == 2)
            both = trust(tmp_path, "both.pem", await place.run())
            new = first_of(tmp_path, "new.pem", both)
            for trusted in (old, both, new):
                assert await asyncio.to_thread(curled, place, trusted, url) == "200"
                for address in await gateways(place):
                    await asyncio.to_thread(served_by, address, 8443, trusted)
            code, said = await during
            assert code == "200"
            assert '"n":7' in said.replace(" ", ""), said
            assert '"n":7' in (await asyncio.to_thread(invoked, place)).replace(" ", "")
            assert "not before" in (await asked(place, "finish"))[REFUSED]
            assert "finish that first" in (await asked(place, "root"))[REFUSED]
            await caller.until_steady()
            calls = await caller.end()
        print(  # noqa: T201 - a measurement
            f"root: gateways after {took:.0f} s, the Run's caBundle after {runs:.0f} s more; "
            f"{calls.rate:.0f}/s, {dict(calls.outcomes)}"
        )
        calls.judge()
        assert (await place.run()).status.attempt == run.status.attempt
        await finished_as_if_time_had_passed(place)
        await hurry(place)
        await reached(place.run, lambda run: _roots(run) == 1)
        assert same(trust(tmp_path, "last.pem", await place.run()), new)
        await reached(lambda: asyncio.to_thread(curled, place, old, url), lambda code: code != "200")
        assert await asyncio.to_thread(curled, place, new, url) == "200"
    # Ten minutes have not passed, so Pods elsewhere may know the old root alone. New ones begin with the new.
    cluster.kubectl("rollout", "restart", "-n", "default", "deploy/runtime-python", "deploy/runtime-bash")
    cluster.settle()


async def finished_as_if_time_had_passed(place: Arena) -> None:
    """What the leader writes when it is asked to finish ten minutes later; every control plane adopts it."""
    secret = await place.client.get(SECRETS, SYSTEM, "kruntimes-pki")
    published, kept = rotated(material(secret), "finish", datetime.now(UTC) + OVERLAP_MIN)
    data = {name: base64.b64encode(text).decode() for name, text in ((ROOT_FILE, published), (ROOT_KEY_FILE, kept))}
    await place.client.merge_patch(SECRETS, SYSTEM, "kruntimes-pki", {"data": data})


def _roots(run: Any) -> int:
    return base64.b64decode(run.status.endpoint.ca_bundle).count(b"BEGIN CERTIFICATE")
