"""A server in the test's own loop and a small client for it; both end with the test."""

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from controlplane.embedded.apiserver.config import Config, packaged_crd_dir
from controlplane.embedded.apiserver.main import Running

Object = dict[str, Any]

DEADLINE_SECONDS = 10.0
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
RUNS = "/apis/kruntimes.io/v1alpha1/namespaces/default/runs"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


class Answer:
    """A response that was read whole."""

    def __init__(self, code: int, headers: Mapping[str, str], body: bytes) -> None:
        self.code = code
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Object:
        return json.loads(self.body)

    def ok(self) -> Object:
        assert self.code < 300, (self.code, self.body)
        return self.json

    def refused(self, code: int, reason: str = "") -> Object:
        """The Status of a refusal, checked for its shape."""
        status = self.json
        assert (self.code, status["kind"], status["code"]) == (code, "Status", code), (self.code, self.body)
        assert status["status"] == "Failure"
        assert status["message"]
        if reason:
            assert status["reason"] == reason, status
        return status

    def fields(self) -> set[str]:
        """The fields that the causes of a refusal name."""
        return {cause["field"] for cause in self.json["details"]["causes"]}


class Watch:
    """An open watch; `next()` waits for one event."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> Object:
        line = await asyncio.wait_for(self.response.content.readline(), DEADLINE_SECONDS)
        assert line, "the watch ended"
        return json.loads(line)

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Types and names of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]

    async def rest(self) -> list[Object]:
        """Everything until the server ends the watch."""
        body = await asyncio.wait_for(self.response.content.read(), DEADLINE_SECONDS)
        return [json.loads(line) for line in body.splitlines()]


class Api:
    """A client with one credential."""

    def __init__(self, session: aiohttp.ClientSession, base: str, token: str) -> None:
        self._session = session
        self._base = base
        self._token = token

    def with_token(self, token: str) -> "Api":
        return Api(self._session, self._base, token)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        stream = None if data is None else io.BytesIO(data)
        sent = {"Content-Type": content_type, **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        async with self._session.request(method, self._base + path, data=stream, headers=sent) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, *, accept: str = "application/json") -> Answer:
        return await self.call("GET", path, headers={"Accept": accept})

    async def post(self, path: str, body: Any) -> Answer:
        return await self.call("POST", path, body)

    async def put(self, path: str, body: Any) -> Answer:
        return await self.call("PUT", path, body)

    async def delete(self, path: str, body: Any = None) -> Answer:
        return await self.call("DELETE", path, body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE_PATCH) -> Answer:
        return await self.call("PATCH", path, body, content_type=content_type)

    async def apply(self, path: str, body: Any, manager: str, *, force: bool = False, query: str = "") -> Answer:
        forced = "&force=true" if force else ""
        return await self.patch(f"{path}?fieldManager={manager}{forced}{query}", body, APPLY_PATCH)

    def watch(
        self, path: str, query: str = "", *, accept: str = "application/json"
    ) -> AbstractAsyncContextManager[Watch]:
        return self.stream(f"{path}?watch=true{query}", accept=accept)

    @asynccontextmanager
    async def stream(self, path: str, *, accept: str = "application/json") -> AsyncIterator[Watch]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": accept}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._base + path, headers=headers, timeout=timeout) as response:
            assert response.status == 200, await response.read()
            yield Watch(response)

    async def until_gone(self, path: str) -> None:
        """Wait for an object's removal, by a watch and not by time."""
        collection, _, name = path.rpartition("/")
        listed = (await self.get(f"{collection}?fieldSelector=metadata.name={name}")).ok()
        if not listed["items"]:
            return
        version = listed["metadata"]["resourceVersion"]
        query = f"&resourceVersion={version}&fieldSelector=metadata.name={name}"
        async with self.watch(collection, query) as watch:
            while (await watch.next())["type"] != "DELETED":
                pass


def client_context(data: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(data / "pki" / "root.crt"))


@asynccontextmanager
async def serving(data: Path) -> AsyncIterator[tuple[Running, Api]]:
    """A server over a data directory, and its administrator."""
    config = Config(data_dir=data, pki_dir=data / "pki", crd_dir=packaged_crd_dir(), port=0)
    running = Running(config)
    await running.start()
    connector = aiohttp.TCPConnector(ssl=client_context(data))
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield running, Api(session, f"https://127.0.0.1:{running.port}", running.admin_token)
    finally:
        await running.stop()


def run(name: str, **spec: Any) -> Object:
    """A function Run that is valid."""
    return {
        "apiVersion": "kruntimes.io/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {
            "runtime": "python",
            "source": {"inlinePath": "main.py", "inline": "def invoke(request):\n    return {}\n"},
            "mode": {"function": {"handler": "main.invoke"}},
            **spec,
        },
    }


def pod(name: str, **spec: Any) -> Object:
    """A Pod with one container."""
    containers = [{"name": "runtime", "image": "kruntimes/python-runtime"}]
    return {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def config_map(name: str, **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "data": {"key": "value"}}


def owned_by(owner: Object, **more: Any) -> list[Object]:
    """ownerReferences to one owner."""
    metadata = owner["metadata"]
    api_version, kind = owner["apiVersion"], owner["kind"]
    return [{"apiVersion": api_version, "kind": kind, "name": metadata["name"], "uid": metadata["uid"], **more}]
