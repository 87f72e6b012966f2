"""Pods of one Runtime as they are in earnest: real Runtime Servers, real TLS; only the API is in memory."""

import asyncio
import os
import random
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from controlplane.kube.clock import SystemClock
from controlplane.kube.records import RecordFiles
from controlplane.kube.resources import PODS, RUNS, RUNTIMES
from controlplane.pki import names
from dataplane.runtimed.artifactstore import StoreConfig
from dataplane.runtimed.daemon import Daemon
from dataplane.runtimed.port import Port, admission
from dataplane.runtimed.serving import Serving
from dataplane.runtimed.view import NoJournal
from dataplane.wire.dial import tls_dial
from dataplane.wire.listener import wire_server
from dataplane.wire.messages import METHOD_INVOKE, InvokeReply, InvokeRequest
from dataplane.wire.pool import Peer, Pool
from runtimes.contract.client import RuntimeClient
from runtimes.contract.endpoint import Server
from tests.kit.builders import assigned, function_run, runtime_object, runtime_pod, task_run
from tests.kit.fakekube import FakeKube
from tests.kit.waiting import eventually
from tests.runtimed.fakes import NAMESPACE, Emitted, config
from tests.wire.installation import Installation

ECHO = "def invoke(request):\n    return {'outputs': {'echo': str(request)}}\n"
SLOW = "import time\ndef invoke(request):\n    time.sleep(request['s'])\n    return {'outputs': {'slept': 'yes'}}\n"


class StackPod:
    """One Pod: its Runtime Server's process, its daemon, its port."""

    def __init__(self, stack: "Stack", number: int) -> None:
        self.stack = stack
        self.uid = f"pod-{number}"
        self.name = f"runtime-python-{number}"
        self.ip = f"127.0.0.{number + 1}"
        work = stack.folder / self.uid
        work.mkdir()
        self.config = msgspec.structs.replace(
            config(work, self.uid, self.name),
            pod_ip=self.ip,
            port=stack.port,
            socket=work / "s",
            artifacts=stack.artifacts,
        )
        self.events = Emitted()
        self.process: asyncio.subprocess.Process | None = None
        self.daemon: Daemon
        self.server: Server
        self.serving: Serving
        self._following: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        self.stack.kube.seed(PODS, runtime_pod(self.name, uid=self.uid, ip=self.ip))
        await self.start_server()
        await self.start_daemon()

    async def start_server(self) -> None:
        environ = os.environ | {
            "KRUNTIMES_SOCKET": str(self.config.socket),
            "KRUNTIMES_WORK_DIR": str(self.config.work_dir),
            "KRUNTIMES_LANGUAGE": "python",
            "KRUNTIMES_INTERPRETER": sys.executable,
        }
        with (self.config.work_dir / "server.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "runtimes.server", env=environ, stderr=log, stdout=log
            )

    async def kill_server(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def start_daemon(self) -> None:
        installation, subject = self.stack.installation, names.runtimed(NAMESPACE, "python", self.uid)
        loop = asyncio.get_running_loop()
        context = installation.client_context(subject)
        self.peers = Pool(tls_dial(lambda: context))

        async def connect() -> RuntimeClient:
            return await RuntimeClient.connect(self.config.socket)

        self.daemon = Daemon(
            self.config,
            kube=self.stack.kube,
            clock=SystemClock(),
            call_later=loop.call_later,
            connect=connect,
            journal=NoJournal(),
            recorder=self.events,
            ca_bundle=lambda: installation.root_pem,
            rng=random.Random(1),
        )
        self._following = loop.create_task(self.daemon.run())
        self.serving = Serving(self.daemon, self.daemon.link, self.peers, namespace=NAMESPACE, runtime="python")
        records = RecordFiles(logs=self.config.work_dir / "logs", journal=self.config.journal_dir)
        self.server = wire_server(Port(self.serving, records).handle, admit=admission(NAMESPACE, "python"))
        await self.server.listen_tcp(self.ip, self.config.port, tls=installation.server_context(subject))
        await asyncio.wait_for(self.daemon.begin(), 20)

    async def stop_daemon(self) -> None:
        if self._following is not None:
            self.server.close()
            await self.peers.close()
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            await self.daemon.stop()
            self._following = None

    async def stop(self) -> None:
        await self.stop_daemon()
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await self.process.wait()


class Stack:
    """The API, the installation's CA, and a gateway's pool."""

    def __init__(self, folder: Path, artifacts: StoreConfig | None = None) -> None:
        self.folder = folder
        self.artifacts = artifacts
        self.kube = FakeKube()
        self.installation = Installation(folder / "pki")
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", 0))
            self.port = probe.getsockname()[1]
        context = self.installation.client_context(names.gateway(("localhost",)))
        self.gateway = Pool(tls_dial(lambda: context))
        self.kube.seed(RUNTIMES, runtime_object("python", runs=4))
        self.pods: list[StackPod] = []

    async def add_pod(self) -> StackPod:
        pod = StackPod(self, len(self.pods) + 1)
        self.pods.append(pod)
        await pod.start()
        return pod

    def seed(self, name: str, pod: StackPod, *, inline: str = ECHO, **spec: Any) -> None:
        """A function that the scheduler has bound to this Pod."""
        status = assigned("Scheduled", pod=pod.name, pod_uid=pod.uid)
        source = {"inlinePath": "main.py", "inline": inline}
        self.kube.seed(RUNS, function_run(name, spec={"source": source} | spec, status=status))

    def seed_task(self, name: str, pod: StackPod, *, inline: str, **spec: Any) -> None:
        """A task that the scheduler has bound to this Pod."""
        status = assigned("Scheduled", pod=pod.name, pod_uid=pod.uid)
        self.kube.seed(RUNS, task_run(name, spec={"source": {"inline": inline}} | spec, status=status))

    def status(self, name: str) -> dict[str, Any]:
        """The status as the API holds it."""
        found: dict[str, Any] = self.kube.store.objects[(RUNS.plural, NAMESPACE, name)]["status"]
        return found

    def phase(self, name: str) -> str:
        obj = self.kube.store.objects.get((RUNS.plural, NAMESPACE, name))
        return "gone" if obj is None else obj["status"]["phase"]

    async def until(self, name: str, phase: str) -> None:
        await eventually(lambda: self.phase(name) == phase, within=20)

    async def invoke(
        self, pod: StackPod, name: str, body: bytes = b"{}", *, timeout_ms: int = 10_000, **head: Any
    ) -> tuple[InvokeReply, bytes]:
        """One call, as a gateway sends it to that Pod."""
        request = InvokeRequest(
            namespace=NAMESPACE,
            runtime="python",
            run_uid=f"uid-{name}",
            invocation_id="inv-1",
            deadline_ms=timeout_ms,
            user="jane",
            **head,
        )
        peer = Peer(pod.ip, self.port, pod.uid, NAMESPACE, "python")
        channel = await self.gateway.connection(peer)
        reply = await channel.call(METHOD_INVOKE, request, body, timeout=timeout_ms / 1000 + 5)
        return reply.decode(InvokeReply), reply.body

    async def close(self) -> None:
        await self.gateway.close()
        await asyncio.gather(*(pod.stop() for pod in self.pods))


@asynccontextmanager
async def running(folder: Path, pods: int = 1, *, artifacts: StoreConfig | None = None) -> AsyncIterator[Stack]:
    """A stack with that many Pods."""
    stack = Stack(folder, artifacts)
    try:
        for _ in range(pods):
            await stack.add_pod()
        yield stack
    finally:
        await stack.close()
