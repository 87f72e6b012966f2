"""`ready` and what is said until then."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controlplane.embedded import readiness
from controlplane.embedded.readiness import NotReady, Readiness, why_not_ready
from controlplane.kube.resources import PODS
from controlplane.kube.types import Pod
from controlplane.pki.ca import create_installation
from tests.kit.builders import runtime_pod
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually


def pod(*statuses: dict[str, Any]) -> Pod:
    return msgspec.convert({"status": {"phase": "Running", "containerStatuses": statuses}}, Pod)


def test_the_reason_is_the_first_container_that_is_not_well() -> None:
    waiting = {"name": "a", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no such image"}}}
    assert why_not_ready(pod({"name": "x", "ready": True}, waiting)) == "a: no such image"
    assert why_not_ready(pod({"name": "a", "restartCount": 3, "ready": True})) == "a was restarted 3 times"
    assert why_not_ready(pod({"name": "a"})) == "a is not ready"
    assert why_not_ready(pod()) == "Running"


async def test_it_says_what_is_missing_and_gives_up_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "TELL_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(readiness, "READY_MAX_SECONDS", 0.3)
    create_installation(tmp_path)
    kube = FakeKube()
    kube.seed(PODS, runtime_pod(runtime="bash"))
    wanted = Readiness(
        kube, namespace="default", runtimes=("python", "bash"), url="https://127.0.0.1:9", ca=tmp_path / "root.crt"
    )
    told: list[str] = []
    waiting = asyncio.ensure_future(wanted.wait(told.append))
    await eventually(lambda: told and "Runtime bash" not in told[-1])
    assert "Runtime python: it has no Pod" in told[-1]
    kube.seed(PODS, runtime_pod("p2", uid="u2", ready=False))
    await eventually(lambda: "Pod p2 is not ready" in told[-1])
    kube.seed(PODS, runtime_pod("p3", uid="u3"))
    await eventually(lambda: told[-1].startswith("waiting for gateway: "))
    with pytest.raises(ExceptionGroup) as caught:
        await waiting
    assert caught.group_contains(NotReady, match="not ready after .* s: gateway: Cannot connect")
