"""The root of one machine is replaced while calls go on, and a new start of `krt up` serves under the new one.

On a cluster: tests/cluster/test_certificates.py.
"""

import asyncio
import base64
import ssl
from typing import Any

import aiohttp
import pytest

from controlplane.kube.resources import RUNS, SECRETS
from controlplane.pki.rotation import ASKED, DONE, REFUSED
from tests.e2e.embedded import Embedded
from tests.e2e.stack import COUNTER, function, names, settled
from tests.e2e.test_edges import load, make, reach

pytestmark = pytest.mark.embedded("tests/cluster/test_certificates.py has the cluster's")
NAME = names()
PKI = ("kruntimes-system", "kruntimes-pki")
REACHED_S = 20.0  # the gateway looks at the published roots every few seconds


def asked(stack: Embedded, what: str) -> None:
    done = stack.kubectl("annotate", "secret", PKI[1], "-n", PKI[0], "--overwrite", f"{ASKED}={what}")
    assert done.code == 0, done.err


def bundle(run: Any) -> bytes:
    """What a Run publishes; nothing while it moves."""
    return base64.b64decode(run.status.endpoint.ca_bundle) if run.status.endpoint is not None else b""


def served(stack: Embedded) -> int:
    """How many certificates the gateway has had."""
    return (stack.directory / "logs" / "gateway.log").read_text().count("certificate in force")


@pytest.mark.slow
async def test_the_root_of_one_machine_is_replaced_under_load_and_stays_so_after_a_new_start(
    one_machine: Embedded,
) -> None:
    one_machine.start()
    root = one_machine.directory / "pki" / "root.crt"
    async with one_machine.client() as client, one_machine.https() as https:
        name = await make(client, function(next(NAME), COUNTER))
        run = await reach(client, name, "Ready")
        old = bundle(run)
        async with load(https, [run.status.endpoint.url]) as answers:
            await settled(lambda: asyncio.sleep(0, answers["200"]), lambda count: count > 10)
            count = served(one_machine)
            asked(one_machine, "root")
            await settled(
                lambda: client.get(SECRETS, *PKI), lambda secret: DONE in secret.metadata.annotations, REACHED_S
            )
            await settled(lambda: asyncio.sleep(0.1, served(one_machine)), lambda now: now > count, REACHED_S)
            seen = answers["200"]
            await settled(lambda: asyncio.sleep(0, answers["200"]), lambda now: now > seen + 10)
        assert set(answers) == {"200"}, answers
        assert root.read_bytes().count(b"BEGIN") == 2
        assert old.strip() in root.read_bytes()
        assert one_machine.krt("invoke", name).code == 0
        asked(one_machine, "finish")
        await settled(lambda: client.get(SECRETS, *PKI), lambda secret: REFUSED in secret.metadata.annotations)
    assert one_machine.stop() == 0
    one_machine.start()
    async with one_machine.client() as client:
        run = await settled(
            lambda: client.get(RUNS, "default", name), lambda run: bundle(run).count(b"BEGIN") == 2, REACHED_S
        )
        assert (run.status.phase, old.strip() in bundle(run)) == ("Ready", True)
    assert one_machine.krt("invoke", name).code == 0
    async with aiohttp.ClientSession() as session:
        known = ssl.create_default_context(cadata=old.decode())
        for port in (one_machine.state()["apiPort"], one_machine.state()["gatewayPort"]):
            async with session.get(f"https://127.0.0.1:{port}/readyz", ssl=known) as answer:
                assert answer.status == 200
