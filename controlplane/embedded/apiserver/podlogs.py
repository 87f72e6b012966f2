"""`kubectl logs`: the log file of one container of a Pod of this machine.

Lives here: tail, follow, limits, which file. May not live here: writing logs (the node's containers do), logs of Runs
(`runlogs.py`). `subresources.py` calls it.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from controlplane.embedded.apiserver import errors, limits
from controlplane.embedded.apiserver.hub import Hub
from controlplane.embedded.apiserver.records import Key
from controlplane.embedded.apiserver.requests import Call
from controlplane.embedded.apiserver.store import Store

Object = dict[str, Any]


class LogOptions(msgspec.Struct, frozen=True):
    """What a client wants of a log. `tail` is None for all of it."""

    container: str = ""
    follow: bool = False
    tail: int | None = None
    limit_bytes: int | None = None


def parse_options(call: Call) -> LogOptions:
    """Raises 400 for a number that is none and 501 for what the node does not record."""
    for name in ("sinceSeconds", "sinceTime", "timestamps"):
        if call.query.get(name, "false") != "false":
            raise errors.not_implemented(f"{name} of logs: the node notes no time for each line")
    if call.flag("previous"):
        raise errors.not_implemented("previous logs: all lives of a container write one log")
    tail, limit = call.query.get("tailLines", ""), call.query.get("limitBytes", "")
    return LogOptions(
        container=call.query.get("container", ""),
        follow=call.flag("follow"),
        tail=call.number("tailLines", 0) if tail else None,
        limit_bytes=call.number("limitBytes", 0) if limit else None,
    )


class PodLogs:
    """Reads DIR/pods/<uid>/logs/<container>.log."""

    def __init__(self, store: Store, hub: Hub, pods_dir: Path) -> None:
        self._store = store
        self._hub = hub
        self._pods_dir = pods_dir

    def stream(self, pod: Object, options: LogOptions) -> AsyncIterator[bytes]:
        """The log's bytes. Raises 400 when the container is not named and not clear, or has not started."""
        container = _container(pod, options.container)
        path = self._pods_dir / pod["metadata"]["uid"] / "logs" / f"{container}.log"
        if not path.is_file():
            name = pod["metadata"]["name"]
            why = f'container "{container}" in pod "{name}" is waiting to start: it has no log yet'
            raise errors.bad_request(why)
        key = Key("/pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        uid = pod["metadata"]["uid"]
        return _read(path, options, lambda: self._runs(key, uid, container))

    def _runs(self, key: Key, uid: str, container: str) -> bool:
        """Whether more may come: the server goes on, the Pod is there, the container has not ended for good."""
        row = self._store.get(key)
        if row is None or self._hub.ended:
            return False
        pod = msgspec.json.decode(row.value)
        if pod["metadata"]["uid"] != uid:
            return False
        status = pod.get("status") or {}
        if status.get("phase") in {"Succeeded", "Failed"}:
            return False
        ends = pod["metadata"].get("deletionTimestamp") or pod["spec"].get("restartPolicy") == "Never"
        every = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
        states = [each.get("state") or {} for each in every if each.get("name") == container]
        return not (ends and any("terminated" in state for state in states))


def _container(pod: Object, asked: str) -> str:
    spec = pod["spec"]
    known = [each["name"] for field in ("containers", "initContainers") for each in spec.get(field) or ()]
    name = pod["metadata"]["name"]
    if asked:
        if asked not in known:
            raise errors.bad_request(f"container {asked} is not valid for pod {name}")
        return asked
    if len(spec.get("containers") or ()) == 1:
        return str(spec["containers"][0]["name"])
    raise errors.bad_request(f"a container name must be specified for pod {name}, choose one of: [{' '.join(known)}]")


async def _read(path: Path, options: LogOptions, runs: Callable[[], bool]) -> AsyncIterator[bytes]:
    left = options.limit_bytes
    with path.open("rb") as file:
        file.seek(_tail_offset(file, options.tail))
        while True:
            running = runs()
            while chunk := file.read(limits.LOG_CHUNK_BYTES):
                if left is not None:
                    chunk = chunk[:left]
                    left -= len(chunk)
                if chunk:
                    yield chunk
                if left == 0:
                    return
                await asyncio.sleep(0)
            if not options.follow or not running:
                return
            await asyncio.sleep(limits.LOG_FOLLOW_SECONDS)
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)


def _tail_offset(file: BinaryIO, lines: int | None) -> int:
    """Where the last lines begin."""
    if lines is None:
        return 0
    end = file.seek(0, 2)
    if lines == 0:
        return end
    position, found = end, 0
    while position > 0:
        start = max(0, position - limits.LOG_CHUNK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        cut = len(block) - 1 if position == end and block.endswith(b"\n") else len(block)
        while (place := block.rfind(b"\n", 0, cut)) >= 0:
            found += 1
            if found == lines:
                return start + place + 1
            cut = place
        position = start
    return 0
