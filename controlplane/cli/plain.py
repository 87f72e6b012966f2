"""The Kubernetes API for commands that ask and are done: plain requests on one connection, no event loop.

It answers and fails as `controlplane.kube.client` does, which follows watches and costs ten times as much to start.
"""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlencode

import msgspec

from controlplane.cli.credentials import Credential, credential_of
from controlplane.cli.https import Answer, Link
from controlplane.cli.tls import address, api_trust, connect, route, split
from controlplane.kube.errors import Gone, error_of, malformed
from controlplane.kube.kubeconfig import Access
from controlplane.kube.meta import Status

REQUEST_TIMEOUT_S: Final = 30.0
TEXT_MAX_CHARS: Final = 512  # of an answer that is no Status, quoted in our message

PAGE_ITEMS: Final = 500  # kubectl's
TABLE_ACCEPT: Final = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
METADATA_ACCEPT: Final = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"

RUNS_API: Final = "/apis/kruntimes.io/v1alpha1"
LOGS_API: Final = "/apis/logs.kruntimes.io/v1alpha1"


def runs_path(namespace: str | None, name: str | None = None, *, api: str = RUNS_API, subresource: str = "") -> str:
    """The path of Runs: of every namespace, of one, or of a Run or its subresource."""
    path = f"{api}/namespaces/{quote(namespace, safe='')}/runs" if namespace is not None else f"{api}/runs"
    path = f"{path}/{quote(name, safe='')}" if name is not None else path
    return f"{path}/{subresource}" if subresource else path


def pages_of(api: "PlainApi", path: str, query: Mapping[str, str], accept: str) -> list[dict[str, Any]]:
    """A whole list, read in pages as kubectl does; in one piece where its snapshot went meanwhile."""
    pages: list[dict[str, Any]] = []
    paging = {"limit": str(PAGE_ITEMS)}
    while True:
        try:
            page = api.get(path, query={**query, **paging}, accept=accept)
        except Gone:
            if "continue" not in paging:
                raise
            pages, paging = [], {}
            continue
        pages.append(page)
        following = (page.get("metadata") or {}).get("continue")
        if not following:
            return pages
        paging = {"limit": str(PAGE_ITEMS), "continue": following}


class PlainApi:
    """One API server and one credential. Connects at the first request."""

    def __init__(self, access: Access) -> None:
        self._link: Link | None = None
        self._access = access
        self._base = split(access.server, "the kubeconfig's server")

    @cached_property
    def credential(self) -> Credential:
        """Who we are to it, and to a gateway."""
        return credential_of(self._access)

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        accept: str = "application/json",
        content_type: str = "application/json",
        timeout: float = REQUEST_TIMEOUT_S,
    ) -> bytes:
        """The body of a success. KubeError for a refusal, Failure when there is no answer."""
        headers = {"Accept": accept, "User-Agent": "krt"}
        sent = None
        if body is not None:
            headers["Content-Type"] = content_type
            sent = msgspec.json.encode(body)
        target = f"{self._base.path}{path}?{urlencode(query)}" if query else f"{self._base.path}{path}"
        if self._link is None or not self._link.usable:
            self.close()
            trust, dial = api_trust(self._access), route(self._base, self._access.proxy)
            self._link = Link(self._base, self.credential, trust, dial)
        answer = self._link.send(method, target, headers, sent, timeout)
        if not 200 <= answer.status < 300:
            _refuse(answer)
        return answer.body

    def get(self, path: str, **options: Any) -> Any:
        """GET, decoded."""
        raw = self.ask("GET", path, **options)
        try:
            return msgspec.json.decode(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise malformed(f"GET {path}: the answer is no JSON: {error}") from error

    def open(self, path: str) -> tuple[Any, str, str, dict[str, str]]:
        """A connection of its own, for what is no plain exchange: (socket, host, target, headers to send)."""
        dial = route(self._base, self._access.proxy)
        secured, _ = connect(self._base, self.credential, api_trust(self._access), dial)
        authorization = self.credential.authorization
        host, port = address(self._base)
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return secured, name, f"{self._base.path}{path}", {"Authorization": authorization} if authorization else {}

    def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._link.close()
            self._link = None


def _refuse(answer: Answer) -> NoReturn:
    try:
        status = msgspec.json.decode(answer.body, type=Status)
    except (msgspec.MsgspecError, RecursionError):
        text = answer.body[:TEXT_MAX_CHARS].decode("utf-8", "replace").strip()
        status = Status(message=text or f"the API server answered {answer.status}")
    reason = status.reason or f"HTTP{answer.status}"
    raise error_of(msgspec.structs.replace(status, code=answer.status, reason=reason))


def decoded(raw: bytes) -> dict[str, Any]:
    """An object of the API as plain data."""
    found: dict[str, Any] = json.loads(raw)
    return found
