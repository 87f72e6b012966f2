"""One API server and one gateway for all tests of this folder; each test finds no Run and no environment of ours."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.harness import run as a_run
from tests.cli.stage import Gateway, Krt, Kubernetes
from tests.wire.installation import Installation


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    kubernetes = Kubernetes(tmp_path_factory.mktemp("kubernetes") / "data").start()
    yield kubernetes
    kubernetes.stop()


@pytest.fixture(scope="session")
def running_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = Gateway(Installation(tmp_path_factory.mktemp("gateway"))).start()
    yield gateway
    gateway.stop()


@pytest.fixture(autouse=True, scope="session")
def frozen() -> Iterator[None]:
    """What is imported by now is no garbage: collections between commands then take no time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No kubeconfig but the test's own, no colours, a home that is empty; root loggers stay as they were."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTPS_PROXY", "https_proxy", "KRT_DEBUG", "_KRT_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KRUNTIMES_DATA_DIR", str(tmp_path / "nothing"))
    handlers = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = handlers


@pytest.fixture
def krt(capsys: pytest.CaptureFixture[str]) -> Krt:
    return Krt(capsys)


@pytest.fixture
def kubernetes(server: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """An API server without Runs; KUBECONFIG names it."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
    yield server
    server.clear()


@pytest.fixture
def gateway(running_gateway: Gateway) -> Gateway:
    running_gateway.calls.clear()
    running_gateway.answer = (200, b'{"outputs":{"a":1}}', {"X-Kruntime-Invocation-ID": "id-1"})
    return running_gateway


@pytest.fixture
def function(kubernetes: Kubernetes, gateway: Gateway) -> str:
    """The name of a Run that is Ready at the gateway."""
    made = kubernetes.put(a_run("hello"))
    ready = {"type": "Ready", "status": "True", "reason": "FunctionRegistered", "message": ""}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    endpoint = gateway.endpoint(made["metadata"]["uid"])
    kubernetes.set_status("hello", {"phase": "Ready", "conditions": [ready], "endpoint": endpoint})
    return "hello"
