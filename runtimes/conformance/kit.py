"""The few verbs that the suite needs, over the socket of any Runtime Server. No test framework: a case is a coroutine
that raises AssertionError. `functions`, `server` and `tasks` hold the cases, `runner` runs them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from runtimes.conformance.dialects import Dialect
from runtimes.contract import messages as m
from runtimes.contract.client import RuntimeClient
from runtimes.contract.mux import CallError

POD = "pod-of-the-suite"
_numbers = itertools.count(1)
_run = f"{time.time_ns():x}"
Case = TypeVar("Case", bound=Callable[..., Any])


def each(names: str | tuple[str, ...], values: list[Any]) -> Callable[[Case], Case]:
    """The case is run once for each value (of one name, or a tuple of several)."""

    def mark(case: Case) -> Case:
        case.each = (names, values)  # type: ignore[attr-defined]
        return case

    return mark


def fail(message: str) -> NoReturn:
    """The server does not keep the line."""
    raise AssertionError(message)


class Server(Protocol):
    """A Runtime Server under test. `start`, `kill` and `stop` are asked of one that the suite has started itself."""

    @property
    def dialect(self) -> Dialect: ...
    @property
    def folder(self) -> Path:
        """Its work folder."""
        ...

    @property
    def socket(self) -> Path: ...
    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def stop(self) -> int:
        """End it as the node does (SIGTERM); its exit status."""
        ...

    async def connect(self) -> RuntimeClient: ...
    def homes(self) -> list[Path]:
        """The private folders of Runs that are on disk."""
        ...


@dataclass
class Bench:
    """A client and the shortcuts of the suite."""

    client: RuntimeClient
    server: Server
    tmp: Path

    @property
    def dialect(self) -> Dialect:
        return self.server.dialect

    def epoch(self, run_uid: str | None = None, attempt: int = 1, pod_uid: str = POD) -> m.Epoch:
        return m.Epoch(run_uid=run_uid or f"run-{_run}-{next(_numbers)}", attempt=attempt, pod_uid=pod_uid)

    def source(self, epoch: m.Epoch, files: dict[str, str]) -> str:
        folder = self.server.folder / "runs" / epoch.run_uid / str(epoch.attempt) / "src"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(folder)

    def function(
        self,
        program: str,
        *,
        epoch: m.Epoch | None = None,
        handler: str = "main.invoke",
        files: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
        concurrency: int = 1,
        idle_timeout_ms: int | None = None,
    ) -> m.RegisterRequest:
        """The head that registers a program of the dialect (or `files`)."""
        epoch = epoch or self.epoch()
        files = files or {self.dialect.file(): self.dialect.function(program)}
        return m.RegisterRequest(
            epoch=epoch,
            directory=self.source(epoch, files),
            handler=handler,
            env=env or {},
            concurrency=concurrency,
            idle_timeout_ms=idle_timeout_ms,
            digest=m.register_digest(
                epoch=epoch, handler=handler, env=env or {}, idle_timeout_ms=idle_timeout_ms, concurrency=concurrency
            ),
        )

    async def register(self, program: str, *, timeout: float = 20, **more: Any) -> tuple[m.Epoch, str]:
        head = self.function(program, **more)
        reply = await self.client.register_function(head, timeout=timeout)
        return head.epoch, reply.registration_id

    async def invoke(
        self,
        registration: str,
        request: Any = None,
        *,
        raw: bytes | None = None,
        timeout: float = 10,
        invocation: str = "i-1",
    ) -> Any:
        """The answer, decoded."""
        encoded = b"" if request is None else json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()
        body = encoded if raw is None else raw
        head = m.InvokeRequest(registration_id=registration, invocation_id=invocation)
        _, answer = await self.client.invoke_function(head, body, timeout=timeout)
        return json.loads(answer)

    async def call(self, registration: str, request: Any) -> tuple[m.InvokeReply, Any]:
        """The head of the answer, and the answer, decoded."""
        request_head = m.InvokeRequest(registration_id=registration, invocation_id="i-1")
        head, answer = await self.client.invoke_function(request_head, json.dumps(request).encode(), timeout=10)
        return head, json.loads(answer)

    def task(
        self,
        program: str,
        *args: str,
        epoch: m.Epoch | None = None,
        env: dict[str, str] | None = None,
        entrypoint: str = "",
        files: dict[str, str] | None = None,
    ) -> m.ExecuteTaskRequest:
        epoch = epoch or self.epoch()
        files = files or {self.dialect.file(): self.dialect.task(program)}
        return m.ExecuteTaskRequest(
            epoch=epoch,
            directory=self.source(epoch, files),
            entrypoint=entrypoint,
            args=args,
            env=env or {},
            digest=m.task_digest(epoch=epoch, entrypoint=entrypoint, args=args, env=env or {}),
        )

    async def run(self, program: str, *args: str, **more: Any) -> tuple[m.Epoch, m.TaskResult]:
        """Execute a task and wait for its result."""
        head = self.task(program, *args, **more)
        await self.client.execute_task(head, timeout=20)
        return head.epoch, await self.result(head.epoch)

    async def result(self, epoch: m.Epoch) -> m.TaskResult:
        status = await self.client.task_status(epoch, wait_ms=20_000)
        assert status.state == "exited" and status.result is not None, status
        return status.result

    async def unregister(self, epoch: m.Epoch, *, wait_ms: int = 10_000, **more: Any) -> m.UnregisterReply:
        return await self.client.unregister_function(m.UnregisterRequest(epoch=epoch, wait_ms=wait_ms, **more))

    def log(self, run_uid: str) -> list[dict[str, Any]]:
        path = self.server.folder / "logs" / f"{run_uid}.ndjson"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def held(self, run_uid: str) -> list[m.HeldEpoch]:
        return [held for held in (await self.client.hello()).held if held.epoch.run_uid == run_uid]


@contextlib.asynccontextmanager
async def failing(reason: str) -> AsyncIterator[list[m.ErrorHead]]:
    """Asserts that the block ends in an ERROR of this reason, with a message; yields a list that will hold its head."""
    caught: list[m.ErrorHead] = []
    try:
        yield caught
    except CallError as error:
        if error.error.reason != reason:
            fail(f"expected {reason}, got {error}")
        assert error.error.message
        caught.append(error.error)
    else:
        fail(f"expected {reason}, got no error")


async def until(condition: Callable[[], object], what: str, *, seconds: float = 10) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            fail(f"not within {seconds} s: {what}")
        await asyncio.sleep(0.005)


def descendants(pid: int) -> dict[int, str]:
    """Every process below `pid`: pid -> command line ('' for a zombie)."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for child in parents:
        above: int | None = child
        while above is not None and above != pid:
            above = parents.get(above)
        if above == pid and child != pid:
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def until_held(bench: Bench, run_uid: str) -> None:
    """Wait until the server says that it holds this Run."""
    for _ in range(1000):
        if await bench.held(run_uid):
            return
        await asyncio.sleep(0.005)
    fail("it is not held")


async def until_free(bench: Bench, registration: str) -> None:
    """Wait until no call of this registration is in flight."""
    for _ in range(1000):
        if not (await bench.client.function_status(registration)).in_flight:
            return
        await asyncio.sleep(0.005)
    fail("its slot is not free")


def folder_mode(path: str) -> int | None:
    """Permission bits of a folder, None when it does not exist."""
    folder = Path(path)
    return folder.stat().st_mode & 0o777 if folder.is_dir() else None
