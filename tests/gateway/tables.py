"""A Kubernetes API in memory that also serves Runs as Tables, as the real one does."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from controlplane.kube.api import WatchType
from controlplane.kube.errors import KubeError
from controlplane.kube.resources import RUNS
from controlplane.kube.types import RunObject
from tests.kit.fakekube import FakeKube

COLUMNS = ("Name", "Phase", "Ready", "Reason", "Runtime", "Pod", "Attempt", "Age", "UID", "Pod UID", "URL")


class TableKube(FakeKube):
    """`page_rows` bounds the rows of one page. Every Table asked for must leave its objects out."""

    def __init__(self) -> None:
        super().__init__()
        self.page_rows = 2
        self.columns = COLUMNS
        self.table_lists = 0
        self.table_watches = 0

    def _row(self, run: RunObject) -> dict[str, Any]:
        status = run.status
        cells = {
            "Name": run.metadata.name,
            "Phase": status.phase,
            "Runtime": run.spec.runtime,
            "Pod": status.assigned_pod,
            "Attempt": status.attempt,
            "UID": run.metadata.uid,
            "Pod UID": status.assigned_pod_uid,
        }
        return {"cells": [cells.get(column) for column in self.columns]}

    def _table(self, rows: list[dict[str, Any]], *, columns: bool, **metadata: str) -> dict[str, Any]:
        definitions = [{"name": column, "type": "string"} for column in self.columns] if columns else []
        return {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": definitions,
            "rows": rows,
        }

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        namespace = _namespace(path, query, headers)
        assert query is not None
        self.table_lists += 1
        found = await self.list(RUNS, namespace)
        start = int(query.get("continue", "0"))
        page = found.items[start : start + self.page_rows]
        more = {"continue": str(start + len(page))} if start + len(page) < len(found.items) else {}
        metadata = {"resourceVersion": found.resource_version, **more}
        return json.dumps(self._table([self._row(run) for run in page], columns=True, **metadata)).encode()

    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        idle_seconds: float,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncIterator[bytes]:
        namespace = _namespace(path, query, headers)
        assert query is not None
        self.table_watches += 1
        events = self.watch(RUNS, namespace, resource_version=query["resourceVersion"], on_open=on_open)
        first = True
        async with aclosing(cast(Any, events)):
            try:
                async for event in events:
                    rows = [self._row(event.object)] if event.type is not WatchType.BOOKMARK else [{"cells": []}]
                    table = self._table(rows, columns=first, resourceVersion=event.resource_version)
                    first = False
                    yield json.dumps({"type": event.type.value, "object": table}).encode()
            except KubeError as error:
                if error.status.code != 410:
                    raise
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                yield json.dumps({"type": "ERROR", "object": status}).encode()


def _namespace(path: str, query: Mapping[str, str] | None, headers: Mapping[str, str] | None) -> str:
    assert headers is not None
    assert "as=Table" in headers["Accept"]
    assert (query or {}).get("includeObject") == "None"
    parts = path.split("/")
    assert parts[-3] == "namespaces"
    assert parts[-1] == "runs"
    return parts[-2]
