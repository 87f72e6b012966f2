"""Unmodified kubectl of the oldest and the newest version at hand does its daily work against the server.

Other versions than the two are `-m soak`. Binaries are looked for beside the one that `kubectl` is, as `kubectl.1.NN`.
"""

import asyncio
import datetime
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from controlplane.embedded.apiserver.main import Running
from tests.apiserver.harness import DEADLINE_SECONDS, RUNS, Api

KUBECTL_SECONDS = 30.0
MANIFEST = """
apiVersion: kruntimes.io/v1alpha1
kind: Run
metadata:
  name: diagnose-service
spec:
  runtime: python
  source:
    inlinePath: main.py
    inline: |
      def invoke(request):
          return {"outputs": {"summary": "diagnosis complete"}}
  mode:
    function:
      handler: main.invoke
      idleTimeoutSeconds: 600
"""


def binaries() -> list[str]:
    """Paths, oldest version first."""
    found = shutil.which("kubectl")
    if found is None:
        return []
    versions = {int(path.suffix[1:]): path for path in Path(found).resolve().parent.glob("kubectl.1.*")}
    return [str(versions[minor]) for minor in sorted(versions)] or [found]


def chosen() -> Iterator[Any]:
    paths = binaries()
    for path in paths:
        slow = path not in {paths[0], paths[-1]}
        yield pytest.param(path, id=Path(path).name, marks=[pytest.mark.soak] if slow else [])


class Kubectl:
    """Runs one binary with a kubeconfig of its own."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self._folder = folder

    async def _start(self, arguments: tuple[str, ...], **environ: str) -> asyncio.subprocess.Process:
        known = {"KUBECONFIG": str(self._folder / "kubeconfig"), "HOME": str(self._folder), "PATH": os.environ["PATH"]}
        return await asyncio.create_subprocess_exec(
            self._binary,
            *arguments,
            env={**known, **environ},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str, stdin: str = "", code: int = 0, **environ: str) -> str:
        """What it printed, both streams."""
        child = await self._start(arguments, **environ)
        async with asyncio.timeout(KUBECTL_SECONDS):
            out, err = await child.communicate(stdin.encode())
        assert child.returncode == code, (arguments, out.decode(), err.decode())
        return out.decode() + err.decode()

    async def object(self, *arguments: str) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(await self.run("get", *arguments, "-o", "json"))
        return decoded

    @asynccontextmanager
    async def following(self, *arguments: str) -> AsyncIterator[asyncio.StreamReader]:
        """The output of one that does not end by itself."""
        child = await self._start(arguments)
        assert child.stdout is not None
        try:
            yield child.stdout
        finally:
            if child.returncode is None:
                child.terminate()
            await child.communicate()


@pytest.fixture(params=chosen() if binaries() else [pytest.param("", marks=pytest.mark.skip(reason="no kubectl here"))])
def kubectl(request: pytest.FixtureRequest, running: Running, data: Path, tmp_path: Path) -> Kubectl:
    server = {"server": f"https://127.0.0.1:{running.port}", "certificate-authority": str(data / "pki" / "root.crt")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": server}],
        "users": [{"name": "admin", "user": {"token": running.admin_token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin", "namespace": "default"}}],
        "current-context": "here",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    (tmp_path / "run.yaml").write_text(MANIFEST)
    return Kubectl(request.param, tmp_path)


async def line_with(stream: asyncio.StreamReader, text: str) -> str:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while line := (await stream.readline()).decode():
            if text in line:
                return line
    raise AssertionError(f"the output ended without {text!r}")


async def test_kubectl_creates_reads_and_deletes(kubectl: Kubectl, tmp_path: Path) -> None:
    manifest = str(tmp_path / "run.yaml")
    assert "created" in await kubectl.run("create", "-f", manifest)
    assert "AlreadyExists" in await kubectl.run("create", "-f", manifest, code=1)
    table = (await kubectl.run("get", "runs")).splitlines()
    assert table[0].split() == ["NAME", "PHASE", "READY", "REASON", "RUNTIME", "POD", "ATTEMPT", "AGE"]
    assert table[1].split()[:2] == ["diagnose-service", "Pending"]
    assert "URL" in await kubectl.run("get", "run", "diagnose-service", "-o", "wide")
    assert "idleTimeoutSeconds: 600" in await kubectl.run("get", "run", "diagnose-service", "-o", "yaml")
    path = "jsonpath={.items[*].status.phase}"
    assert await kubectl.run("get", "runs", "--field-selector=status.phase=Pending", "-o", path) == "Pending"
    assert "No resources found" in await kubectl.run("get", "runs", "--field-selector=status.phase=Ready")
    assert await kubectl.run("get", "runs,cm", "-A", "-o", "name") == (
        "run.kruntimes.io/diagnose-service\n" + "configmap/kube-root-ca.crt\n" * 4
    )
    assert "deleted" in await kubectl.run("delete", "run", "diagnose-service", "--wait")
    assert "NotFound" in await kubectl.run("get", "run", "diagnose-service", code=1)


async def test_kubectl_applies_from_either_side(kubectl: Kubectl, tmp_path: Path) -> None:
    manifest = str(tmp_path / "run.yaml")
    assert "created" in await kubectl.run("apply", "-f", manifest)
    assert "unchanged" in await kubectl.run("apply", "-f", manifest)
    changed = MANIFEST.replace("name: diagnose-service", "name: diagnose-service\n  labels: {tier: one}")
    assert "configured" in await kubectl.run("apply", "-f", "-", stdin=changed)
    assert "serverside-applied" in await kubectl.run("apply", "--server-side", "-f", "-", stdin=changed)
    assert "serverside-applied" in await kubectl.run("apply", "--server-side", "-f", manifest)
    assert "labels" not in (await kubectl.object("run", "diagnose-service"))["metadata"]
    assert "labeled" in await kubectl.run("label", "run", "diagnose-service", "tier=two")
    conflict = await kubectl.run("apply", "--server-side", "-f", "-", stdin=changed, code=1)
    assert "conflict with" in conflict
    assert ".metadata.labels.tier" in conflict
    assert "serverside-applied" in await kubectl.run(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=changed
    )
    assert "never changes" in await kubectl.run(
        "apply", "-f", "-", stdin=MANIFEST.replace("runtime: python", "runtime: bash"), code=1
    )
    unknown = MANIFEST.replace("runtime: python", "runtime: python\n  handler: main.invoke")
    assert 'unknown field "spec.handler"' in await kubectl.run("apply", "-f", "-", stdin=unknown, code=1)
    ignored = await kubectl.run("apply", "--validate=warn", "-f", "-", stdin=unknown)
    assert 'Warning: unknown field "spec.handler"' in ignored
    assert "dry run" in await kubectl.run(
        "apply", "--dry-run=server", "-f", "-", stdin=MANIFEST.replace("diagnose", "other")
    )
    assert "NotFound" in await kubectl.run("get", "run", "other-service", code=1)
    deployment = await kubectl.run("create", "deployment", "d", "--image=kruntimes/python-runtime")
    assert "created" in deployment
    scaled = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 2}\n"
    assert "serverside-applied" in await kubectl.run(
        "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-", stdin=scaled
    )


async def test_kubectl_changes_what_is_there(kubectl: Kubectl, api: Api, tmp_path: Path) -> None:
    await kubectl.run("create", "-f", str(tmp_path / "run.yaml"))
    run = ("run", "diagnose-service")
    assert "patched" in await kubectl.run("patch", *run, "--type=merge", "-p", '{"spec":{"ttlSecondsAfterFinished":5}}')
    test = {"op": "test", "path": "/spec/ttlSecondsAfterFinished", "value": 5}
    operations = json.dumps([test, {"op": "remove", "path": "/spec/ttlSecondsAfterFinished"}])
    assert "patched" in await kubectl.run("patch", *run, "--type=json", "-p", operations)
    assert "testing" in await kubectl.run("patch", *run, "--type=json", "-p", operations, code=1)
    await kubectl.run("patch", *run, "-p", "{}", code=1)
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/runtime: python/runtime: python\\n  ttlSecondsAfterFinished: 9/" "$1"\n')
    editor.chmod(0o755)
    assert "edited" in await kubectl.run("edit", *run, EDITOR=str(editor))
    assert (await kubectl.object(*run))["spec"]["ttlSecondsAfterFinished"] == 9
    assert "labeled" in await kubectl.run("label", *run, "a=b")
    assert "annotate" in await kubectl.run("annotate", *run, "a=b")
    assert "unlabeled" in await kubectl.run("label", *run, "a-")
    await kubectl.run("create", "deployment", "d", "--image=kruntimes/python-runtime")
    assert "scaled" in await kubectl.run("scale", "deployment", "d", "--replicas=3")
    assert "updated" in await kubectl.run("set", "image", "deployment/d", "*=kruntimes/bash-runtime")
    assert "restarted" in await kubectl.run("rollout", "restart", "deployment", "d")
    item = await kubectl.object("deployment", "d")
    assert (item["spec"]["replicas"], item["spec"]["template"]["spec"]["containers"][0]["image"]) == (
        3,
        "kruntimes/bash-runtime",
    )


async def test_kubectl_waits_and_watches(kubectl: Kubectl, api: Api, tmp_path: Path) -> None:
    await kubectl.run("create", "-f", str(tmp_path / "run.yaml"))
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "FunctionRegistered",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00.000000Z",
    }
    path = f"{RUNS}/diagnose-service"
    async with kubectl.following("get", "runs", "-w") as table:
        await line_with(table, "Pending")
        waiting = asyncio.create_task(
            kubectl.run("wait", "--for=condition=Ready", "run/diagnose-service", "--timeout=20s")
        )
        (await api.patch(f"{path}/status", {"status": {"phase": "Ready", "conditions": [ready]}})).ok()
        await line_with(table, "Ready")
        assert "condition met" in await waiting
    await kubectl.run("wait", "--for=jsonpath={.status.phase}=Ready", "run/diagnose-service", "--timeout=20s")
    (await api.patch(path, {"metadata": {"finalizers": ["kruntimes.io/cleanup"]}})).ok()
    async with api.watch(RUNS) as watch:
        await watch.next()
        deleting = asyncio.create_task(kubectl.run("delete", "run", "diagnose-service", "--wait"))
        assert (await watch.next())["object"]["metadata"]["deletionTimestamp"]
        (await api.patch(path, {"metadata": {"finalizers": None}})).ok()
        assert "deleted" in await deleting
    await kubectl.run("wait", "--for=delete", "run/diagnose-service", "--timeout=20s")


async def test_kubectl_describes_with_events_and_shows_logs(
    kubectl: Kubectl, api: Api, data: Path, tmp_path: Path
) -> None:
    await kubectl.run("create", "-f", str(tmp_path / "run.yaml"))
    uid = (await kubectl.object("run", "diagnose-service"))["metadata"]["uid"]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    involved = {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "name": "diagnose-service",
        "namespace": "default",
    }
    event = {
        "metadata": {"name": "diagnose-service.1"},
        "involvedObject": {**involved, "uid": uid},
        "reason": "Bound",
        "message": "bound to a Pod",
        "type": "Normal",
        "source": {"component": "scheduler"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    (await api.post("/api/v1/namespaces/default/events", event)).ok()
    described = await kubectl.run("describe", "run", "diagnose-service")
    assert "bound to a Pod" in described
    assert "scheduler" in described
    assert "bound to a Pod" in await kubectl.run("get", "events")
    assert "bound to a Pod" in await kubectl.run("events", "--for=run/diagnose-service")
    await kubectl.run("run", "p", "--image=kruntimes/python-runtime")
    pod = await kubectl.object("pod", "p")
    folder = data / "pods" / pod["metadata"]["uid"] / "logs"
    folder.mkdir(parents=True)
    (folder / "p.log").write_text("one\ntwo\n")
    assert await kubectl.run("logs", "p") == "one\ntwo\n"
    assert await kubectl.run("logs", "p", "--tail=1") == "two\n"
    async with kubectl.following("logs", "-f", "p") as lines:
        await line_with(lines, "two")
        with (folder / "p.log").open("a") as file:
            file.write("three\n")
        await line_with(lines, "three")
    assert "kruntimes/python-runtime" in await kubectl.run("describe", "pod", "p")


async def test_kubectl_finds_its_way(kubectl: Kubectl) -> None:
    resources = await kubectl.run("api-resources")
    for name in ("runs", "runtimes", "pods", "customresourcedefinitions"):
        assert f"\n{name} " in resources
    explained = await kubectl.run("explain", "run.spec.mode.function")
    assert "handler" in explained
    assert "<string>" in explained
    assert "kruntimes.io/v1alpha1" in await kubectl.run("api-versions")
    assert "Server Version" in await kubectl.run("version")
    assert "diagnose" not in await kubectl.run("get", "all", "-A")
    await kubectl.run("get", "--raw", "/readyz")


async def test_kubectl_creates_built_in_kinds_and_asks_what_is_allowed(kubectl: Kubectl) -> None:
    await kubectl.run("create", "namespace", "n")
    await kubectl.run("create", "serviceaccount", "a", "-n", "n")
    await kubectl.run("create", "configmap", "c", "--from-literal=key=value", "-n", "n")
    await kubectl.run("create", "secret", "generic", "s", "--from-literal=key=value", "-n", "n")
    await kubectl.run("create", "role", "r", "--verb=get", "--resource=runs.kruntimes.io", "-n", "n")
    await kubectl.run("create", "rolebinding", "b", "--role=r", "--serviceaccount=n:a", "-n", "n")
    caller = ("--as=system:serviceaccount:n:a", "-n", "n")
    assert await kubectl.run("auth", "can-i", "get", "runs.kruntimes.io", *caller) == "yes\n"
    assert (await kubectl.run("auth", "can-i", "delete", "runs.kruntimes.io", *caller, code=1)).startswith("no")
    assert "runs.kruntimes.io" in await kubectl.run("auth", "can-i", "--list", *caller)
    token = (await kubectl.run("create", "token", "a", "-n", "n")).strip()
    assert "Forbidden" in await kubectl.run("get", "cm", "-n", "n", "--token", token, code=1) or token.count(".") == 2
    assert await kubectl.run("get", "cm", "c", "-n", "n", "-o", "jsonpath={.data.key}") == "value"
    assert "deleted" in await kubectl.run("delete", "namespace", "n", "--wait")
