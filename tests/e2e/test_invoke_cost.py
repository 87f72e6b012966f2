"""What ten thousand invocations cost behind the gateway: no connection more than processes × Pods, and of the API
access reviews alone."""

import asyncio
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from controlplane.kube.resources import ENDPOINTSLICES, RUNS
from dataplane.gateway.limits import REVIEW_REFRESH_S
from tests.bench.load import Target, run
from tests.e2e.embedded import Embedded
from tests.e2e.stack import ECHO, function, names, settled
from tests.e2e.test_ready_and_writes import quiet

pytestmark = pytest.mark.embedded("reads the API's own log and the machine's sockets")

NAME = names()
CALLS = 10_000
CALLERS = 16
ESTABLISHED = "01"
STANDING = {
    ("get", "pods"),
    ("watch", "runs"),
    ("watch", "pods"),
    ("watch", "runtimes"),
    ("watch", "endpointslices"),
    ("watch", "configmaps"),
}
"""Leases of the API, which go on whether anyone calls or not: an owner reads its own Pod, watches are renewed."""


def spelled(address: str, port: int) -> str:
    """As /proc/net/tcp has it."""
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"


def connected(pods: set[str]) -> set[tuple[str, str]]:
    """The connections to these addresses, each by its two ends."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    found = (line.split()[1:4] for line in lines)
    return {(local, to) for local, to, state in found if state == ESTABLISHED and to in pods}


@pytest.mark.slow
async def test_ten_thousand_calls_open_no_connection_and_ask_the_api_for_reviews_alone(stack: Embedded) -> None:
    async with stack.client() as client:
        made = [next(NAME) for _ in range(3)]
        for name in made:
            await client.create(RUNS, client.namespace, function(name, ECHO, mode={"concurrency": CALLERS}))
        urls = []
        for name in made:
            ready = await settled(
                lambda name=name: client.get(RUNS, client.namespace, name), lambda found: found.status.phase == "Ready"
            )
            urls.append(ready.status.endpoint.url)
        slices = (await client.list(ENDPOINTSLICES, client.namespace)).items
        pods = {
            spelled(address, port.port)
            for one in slices
            for port in one.ports or ()
            for endpoint in one.endpoints or ()
            for address in endpoint.addresses
            if port.port
        }
        ca = str(stack.directory / "pki" / "root.crt")
        target = Target(urls[0], b"{}", {"Authorization": f"Bearer {stack.token()}"}, ca, tuple(urls[1:]))
        await asyncio.to_thread(run, target, callers=1, seconds=0.2)  # whatever is made at a first call is there
        await settled(lambda: quiet(stack), bool)  # nothing is written any more of what the creations have changed
        warm, before = connected(pods), len(stack.requests())
        assert 0 < len(warm) <= len(pods)  # of one gateway process
        seen, calls, seconds = set(warm), 0, 0.0
        while calls < CALLS:
            calling = asyncio.create_task(asyncio.to_thread(run, target, callers=CALLERS, seconds=3))
            while not calling.done():
                seen |= connected(pods)
                await asyncio.sleep(0.02)
            result = await calling
            assert result.failures == 0, result.first_failure
            calls, seconds = calls + result.calls, seconds + result.seconds
        assert seen == warm, "connections were opened by calls"
        asked = [one for one in stack.requests()[before:] if (one.verb, one.resource) not in STANDING]
        periods = 1 + int(seconds // REVIEW_REFRESH_S)
        # Of a Run's grant, and of the credential, one question in each period of use; no name stands in the log.
        reviews = Counter(one.resource for one in asked)
        assert set(reviews) <= {"tokenreviews", "subjectaccessreviews"}, asked
        assert reviews["tokenreviews"] <= periods
        assert reviews["subjectaccessreviews"] <= periods * len(made)
        await asyncio.gather(*(client.delete(RUNS, client.namespace, name) for name in made))
