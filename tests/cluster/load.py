"""A caller in a process of its own: calls at a steady rate, each due at its time whatever became of the others.

    python -m tests.cluster.load < what.json     one call a line on stdout: number, began, took, outcome, Pod, attempt

It ends when its standard input does. `arena` starts it and reads what it wrote; a test's own work cannot slow it down.
"""

import asyncio
import json
import socket
import ssl
import sys
import time
from typing import Any, Final

import aiohttp
import uvloop
from aiohttp.abc import AbstractResolver, ResolveResult

CONNECTIONS_MAX: Final = 64  # the function's `concurrency`: more in flight are 429 (no queue), whatever else goes on
CALL_S: Final = 45.0  # the default deadline of a call is 30 s: the gateway answers first


class Fixed(AbstractResolver):
    """Every name is this address and port."""

    def __init__(self, address: str, port: int) -> None:
        self._address = address
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        port = self._port
        return [ResolveResult(hostname=host, host=self._address, port=port, family=socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        return


async def call(session: aiohttp.ClientSession, url: str, number: int, body: dict[str, Any]) -> None:
    """One call and its line."""
    began, pod, attempt = time.time(), "", ""
    clock = time.monotonic()
    try:
        async with session.post(url, data=json.dumps(body | {"n": number})) as answer:
            said = await answer.json(content_type=None)
        if answer.status == 200:
            out = said["outputs"]
            outcome = "ok" if out["n"] == number else f"the answer of call {out['n']}"
            pod, attempt = out["pod"], out["attempt"]
        else:
            outcome = f"{answer.status} {said['reason']}"
            pod = said["message"][:200]
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
        outcome = f"{type(error).__name__}: {error}"[:200]
    took = time.monotonic() - clock
    print(json.dumps([number, round(began, 4), round(took, 4), outcome, pod, attempt]), flush=True)  # noqa: T201


async def main() -> None:
    """Read what to do, call until standard input ends, wait for what is under way."""
    what: dict[str, Any] = json.loads(sys.stdin.readline())
    context = ssl.create_default_context(cadata=what["ca"])
    connector = aiohttp.TCPConnector(ssl=context, resolver=Fixed(what["address"], what["port"]), limit=CONNECTIONS_MAX)
    headers = {"Authorization": f"Bearer {what['token']}", "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=CALL_S)
    stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    calls: set[asyncio.Task[None]] = set()
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        number, due, pause = 0, time.monotonic(), 1 / what["perSecond"]
        while not stopped.done():
            task = asyncio.create_task(call(session, what["url"], number, what["body"]))
            calls.add(task)
            task.add_done_callback(calls.discard)
            number, due = number + 1, due + pause
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*calls)


if __name__ == "__main__":
    uvloop.run(main())
