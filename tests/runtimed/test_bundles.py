"""When the installation's roots change, the endpoints of Ready functions say so: one write for each Run and change."""

import base64
from pathlib import Path

import pytest

from controlplane.kube.errors import unavailable
from tests.kit.waiting import eventually
from tests.runtimed.stack import Stack, running


def bundle(stack: Stack, name: str) -> str:
    return base64.b64decode(stack.status(name)["endpoint"]["caBundle"]).decode()


def writes(stack: Stack) -> int:
    return len(stack.kube.writes())


async def test_every_ready_function_publishes_the_roots_that_are_now(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        daemon, old = stack.pods[0].daemon, stack.installation.root_pem
        for name in ("one", "two"):
            stack.seed(name, stack.pods[0])
            await stack.until(name, "Ready")
        before = writes(stack)
        daemon.bundles.look()
        stack.installation.root_pem = f"another\n{old}"
        daemon.bundles.look()
        for name in ("one", "two"):
            await eventually(lambda name=name: bundle(stack, name) == f"another\n{old}")
        assert writes(stack) == before + 2
        status = stack.status("one")
        assert (status["phase"], status["attempt"], status["endpoint"]["protocol"]) == ("Ready", 1, "HTTPS")
        reply, _ = await stack.invoke(stack.pods[0], "one")
        assert reply.status == 200


async def test_an_api_that_is_away_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataplane.runtimed.bundles.RETRY_S", 0.01)
    async with running(tmp_path) as stack:
        stack.seed("one", stack.pods[0])
        await stack.until("one", "Ready")
        stack.installation.root_pem = f"another\n{stack.installation.root_pem}"
        stack.kube.fail_next("patch", unavailable("down", sent=False), plural="runs")
        stack.pods[0].daemon.bundles.look()
        await eventually(lambda: bundle(stack, "one").startswith("another\n"))


async def test_a_daemon_that_starts_finds_what_was_published_before(tmp_path: Path) -> None:
    async with running(tmp_path) as stack:
        pod = stack.pods[0]
        stack.seed("one", pod)
        await stack.until("one", "Ready")
        await pod.stop_daemon()
        stack.installation.root_pem = f"another\n{stack.installation.root_pem}"
        await pod.start_daemon()
        await eventually(lambda: bundle(stack, "one").startswith("another\n"))
