"""The request log: one JSON line for each finished request and each started watch.

Lives here: the file, its bound and its rotation. May not live here: what is allowed or answered. `server.py` writes it;
tests count writes with it.
"""

import contextlib
import datetime
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from controlplane.embedded.apiserver import limits
from controlplane.embedded.apiserver.requests import Call


class RequestLog:
    """Appends lines to one file and keeps one rotated file. A full disk loses the line, never a request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._size = 0

    def write(self, call: Call, *, code: int, seconds: float, at: datetime.datetime) -> None:
        target = call.target
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="microseconds"),
            "verb": call.verb or call.method.lower(),
            "user": call.user.name,
            "userAgent": call.headers.get("User-Agent", ""),
            "group": target.group,
            "resource": target.resource,
            "subresource": target.subresource,
            "namespace": target.namespace,
            "name": target.name,
            "code": code,
            "latencyMs": round(seconds * 1000, 3),
        }
        if not target.resource:
            line["path"] = call.path
        if call.verb == "patch":
            paths = _patch_paths(call.body)
            if paths:
                line["patchPaths"] = paths
        self._append(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _append(self, line: bytes) -> None:
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
                self._size = self._file.tell()
            if self._size + len(line) > limits.REQUEST_LOG_MAX_BYTES:
                self.close()
                self._path.replace(self._path.with_suffix(".1.ndjson"))
                self._file = self._path.open("ab", buffering=0)
                self._size = 0
            self._size += self._file.write(line)
        except OSError:
            self.close()


def _patch_paths(body: bytes) -> list[str]:
    """Paths that a JSON Patch writes; its tests and other kinds of patches have none."""
    if not body.startswith(b"["):
        return []
    with contextlib.suppress(msgspec.MsgspecError):
        return [each.path for each in msgspec.json.decode(body, type=list[_Operation]) if each.op != "test"]
    return []


class _Operation(msgspec.Struct):
    op: str
    path: str
