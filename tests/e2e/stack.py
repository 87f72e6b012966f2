"""What the end-to-end tests know of a running system, whichever it is, and the words that they speak to it in.

`Stack` is the seam: `embedded.Embedded` is a `krt up` of a directory of its own, `oncluster.OnCluster` a namespace of a
real Kubernetes. Tests take either by the fixtures of `conftest`. Nothing here starts, stops or finds a process.
"""

import asyncio
import base64
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver

from controlplane.kube.client import KubeClient
from controlplane.kube.resources import RUNS
from controlplane.kube.types import RunObject
from tests.kit.waiting import last_turns

ROOT: Final = Path(__file__).parents[2]
KUBECTL_DIR: Final = Path("/usr/lib/google-cloud-sdk/bin")
WRITES: Final = ("patch", "update", "delete")
DEADLINE_S: Final = 40.0  # of what takes a few seconds: a new Pod on a busy machine


def kubectls() -> dict[str, str]:
    """Every kubectl on this machine by its minor version; empty where there is none."""
    found = {path.name.removeprefix("kubectl."): str(path) for path in sorted(KUBECTL_DIR.glob("kubectl.1.*"))}
    if not found and (default := shutil.which("kubectl")):
        found["default"] = default
    return found


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Asked:
    """One request that the API server has logged, as far as tests judge it. `patched` is what a JSON Patch names."""

    verb: str
    resource: str
    name: str
    user: str
    code: int
    patched: tuple[str, ...] = ()


def command(*args: str, kubeconfig: Path | None = None, stdin: str | None = None, timeout: float = 60.0) -> Done:
    """Run a command to its end."""
    environ = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "KRUNTIMES_DATA_DIR")}
    if kubeconfig is not None:
        environ["KUBECONFIG"] = str(kubeconfig)
    done = subprocess.run(
        args, cwd=ROOT, env=environ, input=stdin, text=True, capture_output=True, timeout=timeout, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def krt(*args: str, **options: Any) -> Done:
    """Run `krt`."""
    return command(sys.executable, "-m", "controlplane.cli", *args, **options)


def until(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_S) -> Any:
    """The first true value of `condition`, looked at again and again up to a deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Stack(ABC):
    """A running system, a namespace of it with Runtimes `python` and `bash`, and what talks to both."""

    kubeconfig: Path
    """The administrator's, for `namespace`."""
    namespace: str
    gateway: str
    """The base of every endpoint's URL."""

    @abstractmethod
    def start(self) -> None:
        """Bring it up and wait until it serves."""

    @abstractmethod
    def image(self, language: str) -> str:
        """The image of that language's Runtime."""

    @abstractmethod
    def token(self) -> str:
        """A bearer token of somebody who may do anything in the namespace."""

    @abstractmethod
    def root(self) -> str:
        """The installation's root certificate, PEM."""

    @abstractmethod
    def addresses(self) -> dict[int, str]:
        """Where the gateway's name leads, by port, where this machine's resolver does not know; else nothing."""

    @abstractmethod
    def another_gateway(self, *, routing: str) -> AbstractAsyncContextManager[str]:
        """A second gateway of the same installation, with the gateway's own identity; yields its base URL."""

    @abstractmethod
    def requests(self, name: str = "") -> list[Asked]:
        """What the API server was asked, in the order of its log; with a name, of objects of that name alone."""

    @abstractmethod
    def kill(self, pod_uid: str, *containers: str) -> None:
        """kill -9 of the containers' first processes, all at once; returns when they are dead."""

    @abstractmethod
    def left_on_disk(self, uid: str = "") -> list[str]:
        """What the folders of Pods hold of this Run, or of any."""

    def writes(self, name: str) -> list[Asked]:
        """What the system itself wrote to this Run, users' verbs and Events apart."""
        asked = self.requests(name)
        return [one for one in asked if one.resource == "runs" and one.verb in WRITES and one.user != "admin"]

    def krt(self, *args: str, **options: Any) -> Done:
        return krt(*args, kubeconfig=self.kubeconfig, **options)

    def kubectl(self, *args: str, version: str | None = None, **options: Any) -> Done:
        binaries = kubectls()
        binary = binaries[version] if version else next(reversed(binaries.values()))
        return command(binary, *args, kubeconfig=self.kubeconfig, **options)

    def curl(self, url: str, token: str, authority: Path) -> tuple[int, str]:
        """Status and body of a POST without a body, by curl."""
        host = self.gateway.partition("://")[2]
        places = [part for port, at in self.addresses().items() for part in ("--resolve", f"{host}:{port}:{at}")]
        asked = ("-H", f"Authorization: Bearer {token}", "-X", "POST", url, "-w", "\n%{http_code}")
        done = command("curl", "-sS", *places, "--cacert", str(authority), *asked)
        assert done.code == 0, done.err
        body, _, status = done.out.rpartition("\n")
        return int(status), body

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        """A Kubernetes client with the admin's credential; its namespace is that of the stack."""
        async with await KubeClient.connect(str(self.kubeconfig), user_agent="tests") as client:
            yield client
        await last_turns()

    @asynccontextmanager
    async def https(self, token: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
        """An HTTPS client that trusts the installation and carries a token."""
        context = ssl.create_default_context(cadata=self.root())
        resolver = self.resolver()
        connector = aiohttp.TCPConnector(ssl=context, limit=64, resolver=resolver)
        headers = {
            "Authorization": f"Bearer {token if token is not None else self.token()}",
            "Content-Type": "application/json",
        }
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            yield session
        await last_turns()

    def resolver(self) -> AbstractResolver | None:
        """Who finds the gateway's name; None: this machine's resolver."""
        return None

    def runtime(self, name: str, *, runs: str = "2", replicas: int = 1) -> dict[str, Any]:
        """A Runtime of Python."""
        container = {"name": "runtime", "image": self.image("python")}
        return {
            "apiVersion": "kruntimes.io/v1alpha1",
            "kind": "Runtime",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "capacity": {"resources": {"runs": runs}},
                "template": {"spec": {"containers": [container]}},
            },
        }


def ca_of(run: Any) -> bytes:
    """The PEM of status.endpoint.caBundle."""
    return base64.b64decode(run["status"]["endpoint"]["caBundle"])


def function(name: str, source: str, **spec: Any) -> dict[str, Any]:
    """A function Run with this Python source, handler main.invoke."""
    mode = {"handler": "main.invoke"} | spec.pop("mode", {})
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {
            "runtime": "python",
            "source": {"inlinePath": "main.py", "inline": source},
            "mode": {"function": mode},
        }
        | spec,
    }


def task(name: str, source: str, runtime: str = "python", **spec: Any) -> dict[str, Any]:
    """A task Run with this source."""
    mode = spec.pop("mode", {})
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {"runtime": runtime, "source": {"inline": source}, "mode": {"task": mode}} | spec,
    }


COUNTER: Final = (
    "count = 0\ndef invoke(request):\n    global count\n    count += 1\n    return {'outputs': {'count': count}}\n"
)
ECHO: Final = "def invoke(request):\n    return {'outputs': {'echo': request}}\n"


async def settled(call: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = DEADLINE_S) -> Any:
    """The first result of an awaitable `call` that is `wanted`."""
    async with asyncio.timeout(seconds):
        while True:
            value = await call()
            if wanted(value):
                return value
            await asyncio.sleep(0.02)


async def changes(client: KubeClient, since: str) -> AsyncIterator[RunObject]:
    """Every Run of the client's namespace, each time that it changes, from a list's version on.

    A real API server ends a watch that it finds slow; the next one starts where that one ended."""
    while True:
        async with aclosing(client.watch(RUNS, client.namespace, resource_version=since)) as events:
            async for event in events:
                since = event.resource_version
                if event.object is not None:
                    yield event.object


_NUMBERS: Final = itertools.count(1)


def names() -> Iterator[str]:
    """Fresh names for Runs: no two modules of one session get the same."""
    return (f"t{os.getpid() % 1000}-{number}" for number in _NUMBERS)
