"""Unmodified kubectl, oldest to newest, does to a Run what it does to anything in Kubernetes."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import ROOT, Done, Stack, command, kubectls, until

ALL = list(kubectls())
QUICK = {ALL[0], ALL[-1]} if ALL else set()
MANIFEST = (ROOT / "examples" / "diagnose-service.yaml").read_text()


@pytest.fixture(params=[pytest.param(v, marks=() if v in QUICK else pytest.mark.soak) for v in ALL])
def kubectl(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    """A kubectl of one version, in a namespace of its own with a Runtime of its own."""
    version = str(request.param)
    namespace = f"kubectl-{version.replace('.', '-')}"

    def run(*args: str, ok: bool = True, **options: Any) -> Done:
        done = stack.kubectl(*args, "-n", namespace, version=version, **options)
        assert not ok or done.code == 0, f"kubectl {' '.join(args)}: {done.err}"
        return done

    run("create", "namespace", namespace)
    runtime = stack.runtime("python")
    run("apply", "-f", "-", stdin=json.dumps(runtime))
    run.namespace, run.binary = namespace, kubectls()[version]  # type: ignore[attr-defined]
    yield run
    run("delete", "namespace", namespace, "--wait=true", "--timeout=60s", timeout=70)


def test_kubectl_handles_a_run_from_apply_to_delete(kubectl: Any, stack: Stack, tmp_path: Path) -> None:
    with subprocess.Popen(
        [kubectl.binary, "get", "runs", "-w", "-n", kubectl.namespace],
        env=os.environ | {"KUBECONFIG": str(stack.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        try:
            kubectl("apply", "-f", "-", stdin=MANIFEST)
            kubectl("wait", "--for=condition=Ready", "run/diagnose-service", "--timeout=20s")
            assert watching.stdout is not None
            seen = ""
            while "Ready" not in seen:
                seen = watching.stdout.readline()
        finally:
            watching.terminate()
    wide = kubectl("get", "run", "diagnose-service", "-o", "wide").out
    assert [
        word for word in ("PHASE", "READY", "REASON", "RUNTIME", "POD", "ATTEMPT", "UID", "URL") if word not in wide
    ] == []
    assert "phase: Ready" in kubectl("get", "run", "diagnose-service", "-o", "yaml").out
    run = kubectl("get", "run", "diagnose-service", "-o", "json").json
    assert run["status"]["conditions"][-1]["reason"] == "FunctionRegistered"
    path = "jsonpath={.status.assignedPod}"
    pod = kubectl("get", "run", "diagnose-service", "-o", path).out
    assert pod.startswith("runtime-python-")
    assert (
        kubectl("get", "runs", "--field-selector", "status.phase=Ready", "-o", "name")
        .out.strip()
        .endswith("/diagnose-service")
    )

    def described() -> bool:
        text = kubectl("describe", "run", "diagnose-service").out
        return "FunctionRegistered" in text and "Normal" in text

    until("describe shows the Events", described)
    kubectl("apply", "-f", "-", stdin=MANIFEST)
    kubectl("label", "run", "diagnose-service", "tier=test")
    assert kubectl("get", "runs", "-l", "tier=test", "-o", "name").out
    kubectl("patch", "run", "diagnose-service", "--type=merge", "-p", '{"spec": {"ttlSecondsAfterFinished": 60}}')
    kubectl(
        "patch",
        "run",
        "diagnose-service",
        "--type=json",
        "-p",
        '[{"op": "replace", "path": "/spec/ttlSecondsAfterFinished", "value": 61}]',
    )
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/ttlSecondsAfterFinished: 61/ttlSecondsAfterFinished: 62/" "$1"\n')
    editor.chmod(0o755)
    environ = os.environ | {"KUBECONFIG": str(stack.kubeconfig), "EDITOR": str(editor)}
    edited = subprocess.run(
        [kubectl.binary, "edit", "run", "diagnose-service", "-n", kubectl.namespace],
        env=environ,
        capture_output=True,
        check=False,
    )
    assert edited.returncode == 0, edited.stderr
    assert kubectl("get", "run", "diagnose-service", "-o", "jsonpath={.spec.ttlSecondsAfterFinished}").out == "62"
    refused = kubectl(
        "patch", "run", "diagnose-service", "--type=merge", "-p", '{"spec": {"runtime": "bash"}}', ok=False
    )
    assert refused.code == 1
    assert "spec.runtime" in refused.err
    assert "never changes" in refused.err
    until("the Runtime Pod has logged", lambda: kubectl("logs", pod, "-c", "runtimed").out)
    kubectl("delete", "run", "diagnose-service", "--wait=true", "--timeout=20s")
    assert kubectl("get", "run", "diagnose-service", ok=False).code == 1


def test_kubectl_applies_server_side_creates_and_explains(kubectl: Any) -> None:
    kubectl("apply", "--server-side", "-f", "-", stdin=MANIFEST)
    kubectl("apply", "--server-side", "-f", "-", stdin=MANIFEST)
    kubectl("wait", "--for=condition=Ready", "run/diagnose-service", "--timeout=20s")
    kubectl("delete", "run", "diagnose-service", "--wait=true", "--timeout=20s")
    kubectl("create", "-f", "-", stdin=MANIFEST)
    kubectl("delete", "-f", "-", "--wait=true", "--timeout=20s", stdin=MANIFEST)
    explained = kubectl("explain", "run.spec.mode.function").out
    assert "handler" in explained
    assert "idleTimeoutSeconds" in explained
    resources = kubectl("api-resources", "--api-group=kruntimes.io").out
    assert "runs" in resources
    assert "runtimes" in resources


def test_an_unknown_field_is_refused_by_its_name(kubectl: Any) -> None:
    wrong = MANIFEST.replace("  runtime: python\n", "  runtime: python\n  handler: main.invoke\n")
    done = kubectl("create", "-f", "-", ok=False, stdin=wrong)
    assert done.code == 1
    assert "spec.handler" in done.err


def test_the_suite_knows_how_kubectl_is_found() -> None:
    if not ALL:
        pytest.skip("no kubectl on this machine")
    assert command(kubectls()[ALL[-1]], "version", "--client").code == 0
