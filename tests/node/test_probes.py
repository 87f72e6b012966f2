"""Probes on real sockets and files: who answers lives, what is there is ready, and the kernel may refuse to help."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.embedded.node import filewatch
from controlplane.embedded.node.filewatch import FileWatcher
from controlplane.embedded.node.probes import FileReadiness, Liveness, ask_alive
from controlplane.kube.types import Probe
from tests.kit.waiting import eventually

QUICK = Probe(period_seconds=0, timeout_seconds=1, failure_threshold=3)


async def serve(path: Path, on_connect: Callable[[asyncio.StreamWriter], None]) -> asyncio.Server:
    def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_connect(writer)

    return await asyncio.start_unix_server(connected, path)


async def test_no_socket_and_no_server_are_dead(tmp_path: Path) -> None:
    assert "FileNotFoundError" in await ask_alive(tmp_path / "none.sock", 1.0)
    server = await serve(tmp_path / "s.sock", lambda writer: writer.close())
    server.close()
    await server.wait_closed()
    assert await ask_alive(tmp_path / "s.sock", 1.0) != ""


async def test_a_server_that_closes_or_says_nothing_is_dead(tmp_path: Path) -> None:
    closes = await serve(tmp_path / "a.sock", lambda writer: writer.close())
    assert await ask_alive(tmp_path / "a.sock", 1.0) != ""
    kept: list[asyncio.StreamWriter] = []
    silent = await serve(tmp_path / "b.sock", kept.append)
    assert await ask_alive(tmp_path / "b.sock", 0.05) == "no answer within 0.05 s"
    for writer in kept:
        writer.close()
    for server in (closes, silent):
        server.close()
        await server.wait_closed()


async def test_the_probe_gives_up_after_its_threshold_and_says_so_once(tmp_path: Path) -> None:
    connections: list[asyncio.StreamWriter] = []

    def refuse(writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.close()

    server = await serve(tmp_path / "s.sock", refuse)
    problems: list[str] = []
    liveness = Liveness(tmp_path / "s.sock", QUICK, problems.append)
    await eventually(lambda: problems)
    assert len(connections) == QUICK.failure_threshold
    assert problems[0].startswith("Liveness probe failed: ")
    liveness.close()
    server.close()
    await server.wait_closed()
    assert len(problems) == 1


async def follow(watcher: FileWatcher, folder: Path) -> None:
    """A watched file comes, goes and comes again; afterwards nobody is called."""
    seen: list[bool] = []
    file = folder / "ready"
    readiness = FileReadiness(file, watcher.watch, seen.append)
    assert seen == [False]
    for there in (True, False, True):
        file.touch() if there else file.unlink()
        await eventually(lambda there=there: seen[-1] is there)  # type: ignore[misc]
    (folder / "other").touch()
    readiness.close()
    count = len(seen)
    file.unlink()
    other = FileReadiness(folder / "next", watcher.watch, seen.append)
    (folder / "next").touch()
    await eventually(lambda: seen[-1] is True)
    assert seen[count:] == [False, *[True] * (len(seen) - count - 1)]  # nothing of the file that is watched no more
    other.close()


async def test_a_watched_file_is_followed_until_the_watch_is_closed(tmp_path: Path) -> None:
    with contextlib.closing(FileWatcher()) as watcher:
        await follow(watcher, tmp_path)


async def test_without_inotify_files_are_followed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(filewatch, "Inotify", refuse)
    with contextlib.closing(FileWatcher()) as watcher:
        await follow(watcher, tmp_path)
